"""Why a request is turned away before anything is done for it. The statuses are in `app.api.problems`."""

from collections.abc import Mapping
from typing import ClassVar

from app.api.schemas import FieldProblem
from app.deliberation.errors import DeliberationError

REALM = "deliberation-gateway"


class Refusal(DeliberationError):
    """Turned away; `headers` go with the answer, `errors` name what is at fault and what to do."""

    pointer: ClassVar[str] = "Authorization"

    def __init__(self, detail: str, remedy: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.headers = dict(headers or {})
        self.errors = (self._fault(detail, remedy),)

    def _fault(self, detail: str, remedy: str) -> FieldProblem:
        return FieldProblem(location="header", pointer=self.pointer, code=self.code, detail=detail, remedy=remedy)


class Unauthenticated(Refusal):
    """No credential, or none that is good (RFC 6750)."""

    code = "unauthenticated"

    def __init__(self, detail: str, *, given: bool) -> None:
        challenge = f'Bearer realm="{REALM}"'
        if given:
            challenge += f', error="invalid_token", error_description="{detail}"'
        remedy = "Send `Authorization: Bearer <key>`; whoever runs this gateway makes keys by `deliberate keys create`."
        super().__init__(detail, remedy, {"WWW-Authenticate": challenge})


class InsufficientScope(Refusal):
    """The credential is good, and does not permit this (RFC 6750)."""

    code = "insufficient_scope"

    def __init__(self, needed: str) -> None:
        challenge = f'Bearer realm="{REALM}", error="insufficient_scope", scope="{needed}"'
        remedy = f"Use a key with the scope {needed}: `deliberate keys create --scope {needed}`."
        super().__init__(f"The key lacks the scope {needed}.", remedy, {"WWW-Authenticate": challenge})


class CrossSite(Refusal):
    """Another site's page asks for a change with this site's cookie."""

    code = "cross_site"
    pointer = "Origin"


class ForeignHost(Refusal):
    """Asked under a name that is not this machine's, while no keys are asked for."""

    code = "foreign_host"
    pointer = "Host"


class KeyInUrl(Refusal):
    """A credential stands in the URL, where proxies and browsers keep it."""

    code = "key_in_url"

    def __init__(self, parameter: str) -> None:
        remedy = "Send it as `Authorization: Bearer <key>`, and revoke this one: URLs are kept in logs and histories."
        self._parameter = parameter
        super().__init__("A credential stands in the URL.", remedy)

    def _fault(self, detail: str, remedy: str) -> FieldProblem:
        place = "query" if self._parameter else "path"
        return FieldProblem(location=place, pointer=self._parameter, code=self.code, detail=detail, remedy=remedy)


class RateLimited(Refusal):
    """The tenant asks more often than it may."""

    code = "rate_limited"
    retryable = True

    def __init__(self, per_minute: int, retry_after_s: int) -> None:
        detail = f"More than {per_minute} requests a minute of this tenant."
        super().__init__(detail, "Ask less often, and heed RateLimit.", {"Retry-After": str(retry_after_s)})
