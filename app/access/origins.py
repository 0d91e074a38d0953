"""Origins of requests: this machine, this site, or another site's page in a browser."""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[1-9][0-9]{0,4})?")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}

# What pages of listed origins may send and read beyond the browsers' safelists.
CORS: Mapping[str, Any] = {
    "allow_credentials": True,
    "allow_methods": ("GET", "POST", "DELETE"),
    "allow_headers": (
        "Authorization",
        "Content-Type",
        "Idempotency-Key",
        "If-None-Match",
        "Last-Event-ID",
        "Prefer",
        "X-Request-Id",
        "traceparent",
    ),
    "expose_headers": (
        "Development-Mode",
        "ETag",
        "Idempotency-Replayed",
        "Link",
        "Location",
        "Preference-Applied",
        "RateLimit",
        "RateLimit-Policy",
        "Retry-After",
        "WWW-Authenticate",
        "X-Deliberation-Id",
        "X-Request-Id",
        "X-Should-Retry",
    ),
    "max_age": 600,
}


def checked_origin(origin: str) -> str:
    """An origin as browsers spell it: `scheme://host`, lower case, without a default port; raises ValueError."""
    scheme = origin.partition(":")[0]
    if _ORIGIN.fullmatch(origin) is None or origin.endswith(_DEFAULT_PORTS[scheme]):
        raise ValueError(f"{origin!r} is not an origin: give https://host or https://host:port, without a path or `*`")
    return origin


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address or name."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=256)
def own_name(host: str) -> bool:
    """Whether a Host header names this machine or has no dot, unlike every name that another site can register.

    This prevents DNS rebinding: another site's name that resolves to loopback would let its page read the answers.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return is_loopback(name) or not any(sign in name for sign in ".:")


def same_site(headers: Mapping[str, str], allowed: Collection[str]) -> bool | None:
    """Whether the browser names this site or an allowed origin as the source; None if the client is no browser."""
    origin, fetched = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and origin in allowed:
        return True
    if fetched is not None:
        return fetched == "same-origin"
    if origin is None:
        return None
    scheme, _, authority = origin.partition("://")
    port = _DEFAULT_PORTS.get(scheme, "")
    return authority.removesuffix(port) == headers.get("host", "").lower().removesuffix(port)
