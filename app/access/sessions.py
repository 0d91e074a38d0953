"""Browser sessions: a signed token in a cookie, with the key's id and the session's end.

Gateways store and share nothing; a session ends at its time or with its key.
"""

import base64
from hmac import compare_digest

from app.access.keys import HeldKey, Pepper


class Sessions:
    def __init__(self, pepper: Pepper, lifetime_s: int) -> None:
        self._pepper = pepper
        self._lifetime_s = lifetime_s

    def begin(self, key: HeldKey, now_s: float) -> tuple[str, int]:
        """A token, and its end in seconds since 1970, which is never later than the key's."""
        ends_at_s = int(min(now_s + self._lifetime_s, key.expires_at_s))
        payload = f"{key.fact.key_id}.{ends_at_s}"
        return f"{payload}.{self._signature(payload)}", ends_at_s

    def read(self, token: str, now_s: float) -> tuple[str, int] | None:
        """The key's id and the session's end; None unless the signature is valid and the end is ahead."""
        payload, _, signature = token.rpartition(".")
        if not compare_digest(signature.encode(), self._signature(payload).encode()):
            return None
        key_id, _, ends_at = payload.partition(".")
        return (key_id, int(ends_at)) if now_s < int(ends_at) else None

    def _signature(self, payload: str) -> str:
        return base64.urlsafe_b64encode(self._pepper.digest("session", payload)).decode().rstrip("=")
