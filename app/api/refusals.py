"""Errors of the HTTP layer that refuse a request before a route runs. The statuses are in `app.api.problems`."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import ClassVar

from app.api.schemas import FieldProblem, Spend
from app.deliberation.calls import Money
from app.deliberation.errors import DeliberationError, QueueFull

REALM = "deliberation-gateway"


class HttpError(DeliberationError):
    """An error of the HTTP layer; its answer carries `headers`, and `errors` with a remedy for each fault."""

    headers: Mapping[str, str] = MappingProxyType({})
    errors: tuple[FieldProblem, ...] = ()


class ConnectionClosed(HttpError):
    """A request that is not read to its end, so that its connection cannot carry another one."""

    headers = MappingProxyType({"Connection": "close"})


class Refusal(HttpError):
    """A request that is refused for one header, parameter or path, named by `pointer`."""

    pointer: ClassVar[str] = "Authorization"

    def __init__(self, detail: str, remedy: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.headers = headers or {}
        fault = FieldProblem(location="header", pointer=self.pointer, code=self.code, detail=detail, remedy=remedy)
        self.errors = (fault,)


class Unauthenticated(Refusal):
    code = "unauthenticated"

    def __init__(self, detail: str, *, credential_sent: bool) -> None:
        challenge = f'Bearer realm="{REALM}"'
        if credential_sent:
            challenge += f', error="invalid_token", error_description="{detail}"'
        remedy = "Send `Authorization: Bearer <key>`; the operator creates keys with `deliberate keys create`."
        super().__init__(detail, remedy, {"WWW-Authenticate": challenge})


class InsufficientScope(Refusal):
    code = "insufficient_scope"

    def __init__(self, needed: Sequence[str], missing: Sequence[str]) -> None:
        challenge = f'Bearer realm="{REALM}", error="insufficient_scope", scope="{" ".join(needed)}"'
        options = " ".join(f"--scope {scope}" for scope in needed)
        remedy = f"Use a key with the {_scopes(needed)}: `deliberate keys create {options}`."
        super().__init__(f"The key lacks the {_scopes(missing)}.", remedy, {"WWW-Authenticate": challenge})


def _scopes(names: Sequence[str]) -> str:
    return f"scope{'s' if len(names) > 1 else ''} {' and '.join(names)}"


class CrossSite(Refusal):
    code = "cross_site"
    pointer = "Origin"

    def __init__(self, *, development: bool) -> None:
        remedy = "Use a page of this site, or list the page's origin in CORS_ORIGINS."
        if not development:
            remedy = (
                "Use a page of this site, list the page's origin in CORS_ORIGINS, or send a key as Bearer. Behind a "
                "proxy that ends TLS, list the proxy in FORWARDED_ALLOW_IPS."
            )
        super().__init__("A page of another site requests a change.", remedy)


class ForeignHost(Refusal):
    code = "foreign_host"
    pointer = "Host"

    def __init__(self) -> None:
        super().__init__(
            "The Host header does not name this gateway, or there are several.",
            "Use localhost, or list the name in ALLOWED_HOSTS.",
        )


class KeyInUrl(Refusal):
    code = "key_in_url"

    def __init__(self, parameter: str) -> None:
        remedy = "Send it as `Authorization: Bearer <key>`, and revoke this one: logs and histories store URLs."
        super().__init__("The URL contains a credential.", remedy)
        place = {"location": "query" if parameter else "path", "pointer": parameter}
        self.errors = (self.errors[0].model_copy(update=place),)


class PreconditionFailed(Refusal):
    code = "precondition_failed"
    pointer = "If-Match"

    def __init__(self, etag: str) -> None:
        remedy = f"Read it again, and send its ETag, which is {etag}."
        super().__init__("If-Match does not name the present ETag.", remedy, {"ETag": etag})


class KeysReadOnly(HttpError):
    code = "keys_read_only"

    def __init__(self, *, development: bool) -> None:
        detail = "This gateway asks for no keys." if development else "This gateway may not write keys."
        remedy = (
            "Start it with KEY_PEPPER, then make the first key with `deliberate keys create`."
            if development
            else "Use `deliberate keys`, or have the operator set KEYS_NATS_URL to the NATS user that may write keys."
        )
        super().__init__(detail)
        fault = FieldProblem(location="service", pointer="keys", code=self.code, detail=detail, remedy=remedy)
        self.errors = (fault,)


class RateLimited(Refusal):
    code = "rate_limited"
    retryable = True

    def __init__(self, per_minute: int, retry_after_s: int, what: str = "requests") -> None:
        detail = f"This tenant exceeds {per_minute} {what} a minute."
        remedy = "Send fewer requests, as the RateLimit header allows."
        super().__init__(detail, remedy, {"Retry-After": str(retry_after_s)})


class SpendExhausted(QueueFull, HttpError):
    code = "spend_exhausted"

    def __init__(self, spend: Spend, retry_after_s: int, max_cost: Decimal | None) -> None:
        spent, reserved, limit, left = (
            str(Money(amount=max(Decimal(0), amount), currency=spend.currency))
            for amount in (spend.spent, spend.reserved, spend.limit, spend.left)
        )
        running = f", and what runs may cost {reserved}" if spend.reserved else ""
        super().__init__(f"This tenant has spent {spent} of {limit} today in UTC{running}.", retry_after_s)
        self.headers = {"Retry-After": str(retry_after_s)}
        place = {"location": "service", "pointer": "spend"}
        remedy = f"Send it again after {spend.resets_at:%Y-%m-%dT%H:%MZ}, or have the operator raise SPEND_PER_DAY."
        if spend.spent < spend.limit:
            remedy = f"Send it again when some of that has ended, or after {spend.resets_at:%Y-%m-%dT%H:%MZ}."
            if max_cost is not None and spend.left > 0:
                place = {"location": "body", "pointer": "/budget/max_cost"}
                remedy = f"Give a max_cost of at most {left}, or send it after {spend.resets_at:%Y-%m-%dT%H:%MZ}."
        self.errors = (
            FieldProblem.model_validate({**place, "code": self.code, "detail": str(self), "remedy": remedy}),
        )
