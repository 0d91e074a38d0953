"""Origins of requests: this machine, this site, or another site's page in a browser."""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse, Response

from app.access.loopback import is_loopback
from app.api.responses import HEADERS

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[1-9][0-9]{0,4})?")
# A Host header: no userinfo, no trailing dot, nothing that parsers read differently.
_HOST = re.compile(
    r"(?P<name>[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?", re.IGNORECASE | re.ASCII
)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def cors() -> dict[str, Any]:
    """The CORS headers for pages of listed origins."""
    return {
        "allow_credentials": True,
        "allow_methods": ("GET", "HEAD", "POST", "DELETE"),
        # Every SDK sends headers of its own, so that a list of them would refuse the next one.
        "allow_headers": ("*",),
        "allow_private_network": True,
        "expose_headers": sorted(HEADERS.keys() - {"Set-Cookie"}),
        "max_age": 600,
    }


REQUESTED_HEADERS_MAX = 64
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")


class Cors(CORSMiddleware):
    """CORS that repeats the header names of a preflight, if they are names and few."""

    def preflight_response(self, request_headers: Headers) -> Response:
        requested = request_headers.get("access-control-request-headers", "")
        names = [name.strip(" \t") for name in requested.split(",", REQUESTED_HEADERS_MAX)]
        if len(names) > REQUESTED_HEADERS_MAX or not all(map(_HEADER_NAME.fullmatch, filter(None, names))):
            refusal = "Access-Control-Request-Headers is not valid. Give at most 64 names of at most 64 characters."
            return PlainTextResponse(refusal, 400)
        return super().preflight_response(request_headers)


def checked_origin(origin: str) -> str:
    """An origin as browsers spell it: `scheme://host`, lower case, without a default port; raises ValueError."""
    scheme = origin.partition(":")[0]
    if _ORIGIN.fullmatch(origin) is None or origin.endswith(_DEFAULT_PORTS[scheme]):
        raise ValueError(f"{origin!r} is not an origin: give https://host or https://host:port, without a path or `*`")
    return origin


def checked_host(host: str) -> str:
    """A name or address as it stands in Host headers, lower case, without a port; raises ValueError."""
    match = _HOST.fullmatch(host)
    if match is None or match["port"] is not None or host != host.lower():
        raise ValueError(f"{host!r} is not a host: give a name or address in lower case, without a scheme or port")
    return host


@lru_cache(maxsize=256)
def known_host(host: str, listed: frozenset[str]) -> bool:
    """Whether a Host header names loopback or a listed host, at any port.

    The check prevents DNS rebinding: another site's name that resolves to loopback would let its page read the answers.
    """
    match = _HOST.fullmatch(host)
    if match is None or not 0 < int(match["port"] or 80) <= 65_535:
        return False
    name = match["name"].lower()
    return name in listed or is_loopback(name.strip("[]"))


def same_site(headers: Headers, scheme: str, allowed: Collection[str]) -> bool | None:
    """Whether the browser names this site or an allowed origin as the source; None if the client is no browser.

    Origin and Sec-Fetch-Site must agree: a sibling domain (`same-site`), an opaque origin (`null`) and a repeated
    header are foreign.
    """
    origins, sites = headers.getlist("origin"), headers.getlist("sec-fetch-site")
    if len(origins) > 1 or len(sites) > 1:
        return False
    if origins and origins[0] in allowed:
        return True
    if origins and not _is_own(origins[0], scheme, headers.get("host", "")):
        return False
    if sites:
        return sites[0] == "same-origin"
    return True if origins else None


def _is_own(origin: str, scheme: str, host: str) -> bool:
    named, sign, authority = origin.partition("://")
    port = _DEFAULT_PORTS.get(scheme)
    if not sign or not host or port is None or named != scheme or _HOST.fullmatch(authority) is None:
        return False
    return authority.removesuffix(port) == host.lower().removesuffix(port)
