"""Where a webhook may go: what a URL may look like, and which addresses are never connected to.

A URL is checked twice: as text when it is accepted, and by the addresses that its name has at each attempt. Only the
second can keep a request out of private networks, since a name may point anywhere, and elsewhere a moment later.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

URL_CHARS_MAX = 2_048
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::(?P<port>[0-9]{1,5}))?(?P<path>[/?][^\s#\\]*)?",
    re.ASCII,
)
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_HOST_CHARS_MAX = 253
_DEFAULT_PORTS = {"https": 443, "http": 80}

# IANA's special-purpose registries (RFC 6890), and one public address that clouds give to their own machines.
_REFUSED_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's metadata and agents
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
    )
)
# Of IPv6 nothing but what is given out to the world, less what carries an IPv4 address inside (Teredo, 6to4) or none.
_GLOBAL_V6 = IPv6Network("2000::/3")
_REFUSED_V6 = tuple(
    IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)


class UnfitUrl(ValueError):
    """A URL that no webhook may have; the text says why, `remedy` what to do."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.remedy = remedy


def address_refused(address: str) -> bool:
    """Whether an IP address must not be connected to: private, local, reserved, or no address at all."""
    try:
        parsed: IPv4Address | IPv6Address = ip_address(address)
    except ValueError:
        return True
    if isinstance(parsed, IPv4Address):
        return any(parsed in network for network in _REFUSED_V4)
    return parsed.scope_id is not None or parsed not in _GLOBAL_V6 or any(parsed in each for each in _REFUSED_V6)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes, and all of a URL that may be logged. `host` is lower case, and bare where it is IPv6."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def literal(self) -> bool:
        """Whether the host is an address rather than a name."""
        try:
            ip_address(self.host)
        except ValueError:
            return False
        return True


def parsed(url: str) -> Target:
    """The target of a URL; raises UnfitUrl when it is none that a webhook can have, by whatever rules."""
    if len(url) > URL_CHARS_MAX or not url.isascii() or not url.isprintable():
        raise UnfitUrl("It is no URL of visible ASCII characters", f"Give at most {URL_CHARS_MAX}, escaped as needed.")
    if "@" in url.partition("://")[2].partition("/")[0].partition("?")[0]:
        raise UnfitUrl("Credentials stand in it", "Leave them out: requests are signed, which tells who sends them.")
    found = _URL.fullmatch(url)
    if found is None:
        raise UnfitUrl("It is no https URL", "Give https://host/path, without a fragment.")
    host, port = found["host"].lower(), int(found["port"] or _DEFAULT_PORTS[found["scheme"]])
    if not 0 < port < 65_536:
        raise UnfitUrl("There is no such port", "Give one from 1 to 65535.")
    return Target(found["scheme"], _checked_host(host), port)


def _checked_host(host: str) -> str:
    """A name, or an address in its one usual spelling; raises UnfitUrl."""
    bare = host[1:-1] if host.startswith("[") else host
    try:
        return str(ip_address(bare))
    except ValueError:
        labels = bare.split(".")
    if (
        len(bare) > _HOST_CHARS_MAX
        or not all(_LABEL.fullmatch(label) for label in labels)
        or _NUMERIC.fullmatch(labels[-1])
    ):
        raise UnfitUrl("Its host is neither a name nor an address", "Give a name such as hooks.example.com.")
    return bare


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator allows: `ports` for everybody, and `hosts` without further questions.

    A host is listed as `name` or `name:port`; it may be private, and be spoken to without TLS and on any port.
    """

    ports: frozenset[int]
    hosts: frozenset[str]

    @classmethod
    def of(cls, ports: Iterable[int], hosts: Iterable[str]) -> "Rules":
        """The rules of two settings."""
        return cls(frozenset(ports), frozenset(host.lower() for host in hosts))

    def listed(self, target: Target) -> bool:
        """Whether the operator has named the target's host."""
        return target.host in self.hosts or f"{target.host}:{target.port}" in self.hosts

    def check(self, url: str) -> Target:
        """The target of a URL; raises UnfitUrl unless it may be told to, as far as the text of it shows."""
        target = parsed(url)
        if self.listed(target):
            return target
        if target.scheme != "https":
            raise UnfitUrl("It is not https", "Give an https URL: what is told is nobody else's to read.")
        if target.port not in self.ports:
            ports = ", ".join(map(str, sorted(self.ports)))
            raise UnfitUrl(f"Its port is {target.port}", f"Use one of {ports}.")
        if target.host == "localhost" or target.host.endswith((".localhost", ".local", ".internal")):
            raise UnfitUrl("Its host is a private one", "Give a host that the Internet can reach.")
        if target.literal and address_refused(target.host):
            raise UnfitUrl("Its address is a private or reserved one", "Give a host that the Internet can reach.")
        return target
