"""Authenticates and authorizes requests: the tenant comes from the credential alone."""

import base64
from collections.abc import Collection, Mapping
from dataclasses import replace
from hmac import compare_digest

from starlette.datastructures import Headers
from starlette.types import Scope as AsgiScope

from app.access.keyring import Keyring
from app.access.keys import SCOPES, Caller, HeldKey, Pepper, Scope
from app.access.origins import SAFE_METHODS, known_host, same_site
from app.access.rate_limit import Rates
from app.api.refusals import CrossSite, InsufficientScope, RateLimited, Unauthenticated
from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import Clock

# The scopes that each operation requires, all of them. Empty: any valid key; None: nothing. Every operation must be
# listed. An answer that shows content needs `read`, or leaves the content out for a caller without it.
ACCESS: Mapping[str, tuple[Scope, ...] | None] = {
    "create_deliberation": ("submit",),
    "quote_deliberation": ("submit",),
    "cancel_deliberation": ("submit",),
    "delete_deliberation": ("submit",),
    "create_chat_completion": ("submit", "read"),
    "create_response": ("submit", "read"),
    "get_response": ("read",),
    "cancel_response": ("submit", "read"),
    "delete_response": ("submit",),
    "list_input_items": ("read",),
    "refuse_operation": ("submit", "read"),
    "run_agent": ("submit", "read"),
    "connect_agent": ("read",),
    "approve_plan": ("submit", "read"),
    # Each message of MCP asks REST operations, which check their own scopes; A2A checks those of each method.
    "call_mcp": (),
    "call_a2a": (),
    "get_agent_card": None,
    "get_plan": ("read",),
    "create_file": ("submit",),
    "list_files": ("read",),
    "get_file": ("read",),
    "get_file_content": ("read",),
    "delete_file": ("submit",),
    "create_openai_file": ("submit", "read"),
    "list_openai_files": ("read",),
    "get_openai_file": ("read",),
    "get_openai_file_content": ("read",),
    "delete_openai_file": ("submit",),
    "list_deliberations": ("read",),
    "get_deliberation": ("read",),
    "read_deliberation_events": ("read",),
    "read_events": ("read",),
    "list_deliveries": ("read",),
    "redeliver": ("submit",),
    "get_stats": ("read",),
    "list_roles": ("read",),
    "get_role": ("read",),
    "list_strategies": ("read",),
    "list_tools": ("read",),
    "list_models": ("read",),
    "get_model": ("read",),
    "get_metrics": ("admin",),
    "get_status": ("admin",),
    "list_keys": ("admin",),
    "create_key": ("admin",),
    "revoke_key": ("admin",),
    "get_session": (),
    "log_in": None,
    "log_out": None,
    "get_health": None,
    "get_readiness": None,
}
DEVELOPER = Caller("default", frozenset(SCOPES))
ANONYMOUS = Caller("", frozenset())


class Sessions:
    """Sessions of browsers: a signed token in a cookie, with the key's id and the session's end.

    Gateways store and share nothing; a session ends at its time or with its key.
    """

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


class Access:
    """Authorizes every request. Without a keyring it is development mode: one tenant with all scopes."""

    def __init__(
        self,
        clock: Clock,
        keyring: Keyring | None,
        sessions: Sessions | None,
        rates: Rates,
        *,
        origins: Collection[str] = (),
        hosts: Collection[str] = (),
    ) -> None:
        """`origins` are the origins of other sites' pages that may send requests, `hosts` the names of this site."""
        assert (keyring is None) == (sessions is None), "keys and sessions are signed with one pepper"
        self.keyring = keyring
        self.sessions = sessions
        self._clock = clock
        self._rates = rates
        self._origins = frozenset(origins)
        self._hosts = frozenset(hosts)

    @property
    def development(self) -> bool:
        return self.keyring is None

    def now_s(self) -> float:
        return self._clock.now().timestamp()

    def permit(self, scope: AsgiScope, operation: str) -> None:
        """Set `caller` and `rate_headers` in the scope of a permitted request.

        A change without a credential is refused to another site's page, in development mode too. Raises
        Unauthenticated, CrossSite, RateLimited, InsufficientScope, and JournalUnavailable while the keys have not been
        read.
        """
        needed = ACCESS[operation]
        if self.keyring is None or needed is None:
            if scope["method"] not in SAFE_METHODS and self._same_site(scope) is False:
                raise CrossSite(development=self.development)
            scope["caller"] = DEVELOPER if self.keyring is None else ANONYMOUS
            return
        # A façade asks operations on behalf of a request that is authenticated and counted already.
        caller: Caller | None = scope.get("caller")
        if caller is None:
            caller = scope["caller"] = self._authenticate(scope)
            rate = self._rates.admit(caller.tenant)
            scope["rate_headers"] = self._rates.headers(rate)
            if not rate.admitted:
                raise RateLimited(self._rates.per_minute, rate.reset_s)
        missing = [right for right in needed if right not in caller.scopes]
        if missing:
            raise InsufficientScope(needed, missing)

    def knows_host(self, scope: AsgiScope) -> bool:
        """Whether the request has one Host that names this site; with keys and without listed hosts, any one will do.

        HTTP/1.0 has requests without Host; they pass where any Host does.
        """
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if not self.development and not self._hosts:
            return len(hosts) <= 1
        return len(hosts) == 1 and known_host(hosts[0], self._hosts)

    def _same_site(self, scope: AsgiScope) -> bool | None:
        return same_site(Headers(scope=scope), scope["scheme"], self._origins)

    def _authenticate(self, scope: AsgiScope) -> Caller:
        credentials = [value for name, value in scope["headers"] if name == b"authorization"]
        if not credentials:
            return self._session(scope)
        scheme, _, key = credentials[0].decode("latin-1").partition(" ")
        if len(credentials) > 1 or scheme.lower() != "bearer":
            raise Unauthenticated("Send one Authorization header with the scheme Bearer.", credential_sent=True)
        return self.holder(key.strip()).caller

    def _keys(self) -> Keyring:
        assert self.keyring is not None, "development mode has no keyring"
        if not self.keyring.caught_up:
            raise JournalUnavailable("The keys have not been read yet; the log may not be reachable.")
        return self.keyring

    def holder(self, key: str) -> HeldKey:
        """The key with this text; raises Unauthenticated unless it is valid now, and JournalUnavailable.

        Only the holder of a key learns that it is revoked or has expired.
        """
        keyring = self._keys()
        held = keyring.holder(key)
        if held is None:
            raise Unauthenticated("This key does not exist.", credential_sent=True)
        if keyring.good(held.fact.key_id) is None:
            raise Unauthenticated("This key has been revoked.", credential_sent=True)
        if self.now_s() >= held.expires_at_s:
            raise Unauthenticated("This key has expired.", credential_sent=True)
        return held

    def _session(self, scope: AsgiScope) -> Caller:
        token = session_token(scope)
        if token is None:
            raise Unauthenticated("This operation requires a key.", credential_sent=False)
        assert self.sessions is not None
        session = self.sessions.read(token, self.now_s())
        held = None if session is None else self._keys().good(session[0])
        if session is None or held is None:
            raise Unauthenticated("The session has ended: log in again.", credential_sent=True)
        if scope["method"] not in SAFE_METHODS and not self._same_site(scope):
            raise CrossSite(development=False)
        return replace(held.caller, valid_until_s=session[1])


def cookie_name(scope: AsgiScope) -> str:
    return "__Host-deliberate" if scope["scheme"] == "https" else "deliberate"


def session_token(scope: AsgiScope) -> str | None:
    wanted = cookie_name(scope)
    for name, value in scope["headers"]:
        if name == b"cookie":
            for cookie in value.decode("latin-1").split(";"):
                key, _, content = cookie.strip().partition("=")
                if key == wanted:
                    return content
    return None
