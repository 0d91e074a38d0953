"""The permitted targets of webhooks: rules for URLs, and the addresses that are refused.

A URL is checked twice: its text at acceptance, and the addresses of its host at each attempt. Only the second check
keeps requests out of private networks, because a name may resolve to any address and change at any time.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

URL_CHARS_MAX = 2_048
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^#]*)(?P<fragment>#.*)?")
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(?::(?P<port>[0-9]{0,5}))?")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_HOST_CHARS_MAX = 253
_DEFAULT_PORTS = {"https": 443, "http": 80}

# IANA's special-purpose registries (RFC 6890), and one public address that Azure uses internally.
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
# Of IPv6 only global unicast is allowed, without the prefixes that embed an IPv4 address (Teredo, 6to4).
_GLOBAL_V6 = IPv6Network("2000::/3")
_REFUSED_V6 = tuple(
    IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)


class UnfitUrl(ValueError):
    """A URL that a webhook must not have; the message is the reason, `remedy` the advice to the client."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.remedy = remedy


def address_refused(address: str) -> bool:
    try:
        parsed: IPv4Address | IPv6Address = ip_address(address)
    except ValueError:
        return True
    if isinstance(parsed, IPv4Address):
        return any(parsed in network for network in _REFUSED_V4)
    return parsed.scope_id is not None or parsed not in _GLOBAL_V6 or any(parsed in network for network in _REFUSED_V6)


@dataclass(frozen=True, slots=True)
class Target:
    scheme: str
    host: str
    port: int
    path: str = "/"

    @property
    def url(self) -> str:
        """The URL in the one spelling in which it is requested."""
        return f"{self}{self.path}"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def literal(self) -> bool:
        try:
            ip_address(self.host)
        except ValueError:
            return False
        return True


def parsed(url: str) -> Target:
    """The target of a URL, read as RFC 3986 says: scheme and host in any case. Raises UnfitUrl."""
    whole = _URL.fullmatch(url)
    if len(url) > URL_CHARS_MAX:
        raise UnfitUrl("It is too long", f"Give at most {URL_CHARS_MAX} characters.")
    if whole is None:
        raise UnfitUrl("It is not an https URL", "Give https://host/path.")
    scheme, authority = whole["scheme"].lower(), whole["authority"]
    if not authority.isascii():
        raise UnfitUrl(
            "Its host has other characters than ASCII", "Write the host as DNS does, such as xn--bcher-kva.de."
        )
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise UnfitUrl("It has characters that a URL must escape", "Percent-encode them, such as a blank as %20.")
    if scheme not in _DEFAULT_PORTS:
        raise UnfitUrl(f"Its scheme is {scheme[:16]}", "Give an https URL.")
    if "@" in authority:
        raise UnfitUrl("It contains credentials", "Leave them out: the signature authenticates the sender.")
    if whole["fragment"] is not None:
        raise UnfitUrl("It has a fragment", "Leave out what begins with #: no server receives it.")
    place = _AUTHORITY.fullmatch(authority)
    if place is None:
        raise UnfitUrl("Its host or its port cannot be read", "Give https://host/path or https://host:port/path.")
    port = int(place["port"] or _DEFAULT_PORTS[scheme])
    if not 0 < port < 65_536:
        raise UnfitUrl("Its port is out of range", "Give one from 1 to 65535.")
    path = whole["path"] if whole["path"].startswith("/") else f"/{whole['path']}"
    return Target(scheme, _checked_host(place["host"].lower()), port, path)


def _checked_host(host: str) -> str:
    bare = host[1:-1] if host.startswith("[") else host
    try:
        return str(ip_address(bare))
    except ValueError:
        labels = bare.split(".")
    if "_" in bare:
        raise UnfitUrl("Its host has an underscore", "Give a name of letters, digits and hyphens.")
    if bare.endswith("."):
        raise UnfitUrl("Its host ends with a dot", "Leave the dot out.")
    if (
        len(bare) > _HOST_CHARS_MAX
        or not all(_LABEL.fullmatch(label) for label in labels)
        or _NUMERIC.fullmatch(labels[-1])
    ):
        raise UnfitUrl("Its host is neither a DNS name nor an IP address", "Give a name such as hooks.example.com.")
    return bare


@dataclass(frozen=True, slots=True)
class Rules:
    """The operator's rules: `ports` allowed to all, and `hosts` (`name` or `name:port`) exempt from all checks."""

    ports: frozenset[int]
    hosts: frozenset[str]

    @classmethod
    def of(cls, ports: Iterable[int], hosts: Iterable[str]) -> "Rules":
        return cls(frozenset(ports), frozenset(host.lower() for host in hosts))

    def listed(self, target: Target) -> bool:
        return target.host in self.hosts or f"{target.host}:{target.port}" in self.hosts

    def check(self, url: str) -> Target:
        target = parsed(url)
        if self.listed(target):
            return target
        if target.scheme != "https":
            raise UnfitUrl("It is not https", "Give an https URL, so that only the receiver can read the events.")
        if target.port not in self.ports:
            ports = ", ".join(map(str, sorted(self.ports)))
            raise UnfitUrl(f"Its port is {target.port}", f"Use one of {ports}.")
        if target.host == "localhost" or target.host.endswith((".localhost", ".local", ".internal")):
            raise UnfitUrl("Its host is private", "Give a host that the Internet can reach.")
        if target.literal and address_refused(target.host):
            raise UnfitUrl("Its address is private or reserved", "Give a host that the Internet can reach.")
        return target
