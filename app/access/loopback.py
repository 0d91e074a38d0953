"""The names and addresses of this machine. The command line asks too, which needs no server of HTTP."""

from contextlib import suppress
from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False
