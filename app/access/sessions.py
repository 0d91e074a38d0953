"""Sessions of browsers: a signed token in a cookie, which names a key and an end, and holds no secret of either.

Ten lines rather than a library: the token is three fields that never change, and the signature is the one that keys
are kept with. Nothing is stored or shared between gateways; a session ends with its time or with its key.
"""

import base64
from hmac import compare_digest

from app.access.keys import HeldKey, Pepper


class Sessions:
    """Begins sessions of at most `lifetime_s` seconds, and reads their tokens."""

    def __init__(self, pepper: Pepper, lifetime_s: int) -> None:
        self._pepper = pepper
        self._lifetime_s = lifetime_s

    def begin(self, key: HeldKey, now_s: float) -> tuple[str, int]:
        """A token, and when it ends in seconds since 1970: never later than its key does."""
        ends_at_s = int(min(now_s + self._lifetime_s, key.expires_at_s))
        told = f"{key.fact.key_id}.{ends_at_s}"
        return f"{told}.{self._signature(told)}", ends_at_s

    def read(self, token: str, now_s: float) -> tuple[str, int] | None:
        """The key's id and the session's end; None unless the token is from here and its time has not passed."""
        told, _, signature = token.rpartition(".")
        if not compare_digest(signature.encode(), self._signature(told).encode()):
            return None
        key_id, _, ends_at = told.partition(".")
        return (key_id, int(ends_at)) if now_s < int(ends_at) else None

    def _signature(self, told: str) -> str:
        return base64.urlsafe_b64encode(self._pepper.digest("session", told)).decode().rstrip("=")
