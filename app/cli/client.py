"""A thin HTTP client of the gateway, for the command line alone.

It turns problem documents into `CommandError`s with a remedy, sends a submission again under its own idempotency key
when the connection broke, and follows the event stream across restarts of the gateway by its cursor.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import httpx
from pydantic import BaseModel, ValidationError

from app.api.schemas import Problem
from app.cli.exits import CommandError, Exit, FieldFault
from app.client import EventStream, Frame, Retry, StreamLost, StreamRefused, Waits

_CONNECT_TIMEOUT_S = 2.0
_READ_TIMEOUT_S = 10.0
_SUBMIT_ATTEMPTS = 4
_BACKOFF_FIRST_S = 0.25
_BACKOFF_MAX_S = 5.0
_URL_REMEDY = "name a gateway by --url http://host:port or DELIBERATE_URL"
_START_ONE = "start one with `deliberate up`, or name another by --url or DELIBERATE_URL"

_REMEDIES = {
    "not_found": "`deliberate list` shows what this gateway holds",
    "gone": "its facts were removed; GET retention_until tells how long they are kept",
    "invalid_id": "an id consists of a-z, 0-9, _ and -, at most 64 of them",
    "invalid_cursor": "leave --after out to read from the beginning",
    "unknown_role": "`deliberate roles` lists the roles",
    "unknown_strategy": "`deliberate strategies` lists the strategies",
    "idempotency_conflict": "send the same body, or another --idempotency-key",
    "queue_full": "try again later",
    "unauthenticated": "give a good key by --api-key or DELIBERATE_API_KEY; `deliberate keys create` makes one",
    "rate_limited": "ask less often",
    "journal_unavailable": "the gateway cannot reach NATS; try again, or look at its /readyz",
}


JsonObject = dict[str, Any]
_Model = TypeVar("_Model", bound=BaseModel)


class GatewayUnreachable(CommandError):
    """Nobody answers there, or what answers cannot serve now."""


class GatewayRefused(CommandError):
    """The gateway answered 4xx."""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _authorization(api_key: str | None) -> dict[str, str]:
    """The header that a key is sent in. The key itself is told nowhere, also where it is none."""
    given = (api_key or "").strip()
    if not given:
        return {}
    if not given.isascii() or not given.isprintable() or " " in given:
        detail = "what --api-key or DELIBERATE_API_KEY holds is no key"
        raise CommandError(Exit.USAGE, "invalid_key", detail, remedy="`deliberate keys create` makes one")
    return {"Authorization": f"Bearer {given}"}


def _unreachable(url: str, exc: httpx.TransportError) -> GatewayUnreachable:
    match exc:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            detail = f"no gateway answers at {url}"
        case httpx.TimeoutException():
            detail = f"nothing was heard from {url} in time"
        case _:
            detail = f"the connection to {url} broke"
    return GatewayUnreachable(Exit.UNREACHABLE, "unreachable", detail, remedy=_START_ONE)


def _not_a_gateway(url: str, detail: str) -> GatewayUnreachable:
    remedy = "name the gateway's base URL by --url or DELIBERATE_URL"
    return GatewayUnreachable(Exit.UNREACHABLE, "not_a_gateway", f"{url} {detail}", remedy=remedy)


def understood(model: type[_Model], document: JsonObject) -> _Model:
    """A resource as this version reads it; raises CommandError when it lacks what is needed. New fields are dropped."""
    try:
        return model.model_validate(document)
    except ValidationError as exc:
        where = ".".join(map(str, exc.errors(include_url=False)[0]["loc"]))
        detail = f"the gateway's {model.__name__} is of another version: {where}"
        raise CommandError(Exit.REFUSED, "not_understood", detail, remedy="--json prints it as it is") from exc


def problem_of(response: httpx.Response) -> CommandError:
    """The error that a 4xx or 5xx response tells, whether or not its body is a problem document."""
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        return _error(
            response, f"http_{response.status_code}", response.reason_phrase or "no problem document", (), None
        )
    faults = tuple(FieldFault(fault.pointer, fault.detail, fault.remedy) for fault in problem.errors)
    return _error(response, problem.code, problem.detail, faults, problem.request_id)


def _error(
    response: httpx.Response, code: str, detail: str, faults: tuple[FieldFault, ...], request_id: str | None
) -> CommandError:
    remedy = _REMEDIES.get(code) or (faults[0].remedy if code == "insufficient_scope" and faults else None)
    if wait_s := response.headers.get("Retry-After"):
        remedy = f"{remedy or 'try again'}; the gateway says in {wait_s} s"
    if response.status_code >= 500:
        return GatewayUnreachable(Exit.UNREACHABLE, code, detail, fields=faults, remedy=remedy, request_id=request_id)
    return GatewayRefused(Exit.REFUSED, code, detail, fields=faults, remedy=remedy, request_id=request_id)


class GatewayClient:
    """One gateway, for the life of a command. Use as an async context."""

    def __init__(
        self, url: str, api_key: str | None = None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """`transport` replaces the network in tests. Raises CommandError when `url` is no URL, or the key is none."""
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as exc:
            raise CommandError(Exit.USAGE, "invalid_url", f"{url!r} is not a URL: {exc}", remedy=_URL_REMEDY) from exc
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise CommandError(
                Exit.USAGE, "invalid_url", f"--url takes http://host:port, not {url!r}", remedy=_URL_REMEDY
            )
        self.url = url.rstrip("/")
        self._http = httpx.AsyncClient(
            base_url=self.url,
            transport=transport,
            timeout=httpx.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
            # A proxy of the environment must not swallow what is meant for this machine.
            trust_env=not _is_loopback(parsed.host),
            headers={"User-Agent": "deliberate"} | _authorization(api_key),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: JsonObject | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0,
    ) -> JsonObject:
        timeout = httpx.Timeout(_READ_TIMEOUT_S + wait_s, connect=_CONNECT_TIMEOUT_S)
        sent = dict(headers or {}) | ({"Prefer": f"wait={wait_s:g}"} if wait_s else {})
        try:
            response = await self._http.request(method, path, params=params, json=body, headers=sent, timeout=timeout)
        except httpx.TransportError as exc:
            raise _unreachable(self.url, exc) from exc
        if response.status_code >= 400:
            raise problem_of(response)
        try:
            document = response.json()
        except ValueError as exc:
            raise _not_a_gateway(self.url, f"answers {path} without JSON") from exc
        if not isinstance(document, dict):
            raise _not_a_gateway(self.url, f"answers {path} without a JSON object")
        return cast(JsonObject, document)

    async def submit(self, body: JsonObject, idempotency_key: str, *, wait_s: float = 0) -> JsonObject:
        """POST a deliberation; returns the resource. Sent again under the same key when the answer is in doubt."""
        for attempt in range(1, _SUBMIT_ATTEMPTS + 1):
            try:
                headers = {"Idempotency-Key": idempotency_key}
                return await self._request("POST", "/deliberations", body=body, headers=headers, wait_s=wait_s)
            except GatewayUnreachable as error:
                never_connected = isinstance(error.__cause__, httpx.ConnectError | httpx.UnsupportedProtocol)
                if never_connected or attempt == _SUBMIT_ATTEMPTS:
                    raise
                await asyncio.sleep(_backoff_s(attempt))
        raise AssertionError("the last attempt returns or raises")

    async def deliberation(self, deliberation_id: str) -> JsonObject:
        """The resource of one deliberation."""
        return await self._request("GET", f"/deliberations/{deliberation_id}")

    async def deliberations(self, filters: Mapping[str, Any]) -> JsonObject:
        """One page `{items, next_cursor}`, newest first."""
        return await self._request("GET", "/deliberations", params=filters)

    async def cancel(self, deliberation_id: str, reason: str | None, *, wait_s: float = 0) -> JsonObject:
        """Ask to stop; returns the resource, cancelling or ended."""
        body = {} if reason is None else {"reason": reason}
        return await self._request("POST", f"/deliberations/{deliberation_id}/cancel", body=body, wait_s=wait_s)

    async def read(self, path: str) -> JsonObject:
        """The JSON of a plain GET: /roles, /strategies."""
        return await self._request("GET", path)

    async def follow(
        self,
        deliberation_id: str,
        *,
        after: str = "0",
        deltas: bool = True,
        patience_s: float = 60.0,
        on_retry: Callable[[Retry], None] | None = None,
    ) -> AsyncGenerator[Frame]:
        """Every event after the cursor `after`, until the terminal one; ends at once when there is none left.

        A broken stream is opened again at the last cursor; when nothing came for `patience_s` seconds of trying,
        GatewayUnreachable is raised. A refusal that is final is raised at once. Iterate in `aclosing`.
        """
        waits = Waits(first_s=_BACKOFF_FIRST_S, most_s=_BACKOFF_MAX_S, patience_s=patience_s)
        stream = EventStream(self._http, deliberation_id, after=after, deltas=deltas, waits=waits, on_retry=on_retry)
        try:
            async with stream:
                async for frame in stream.frames():
                    yield frame
        except StreamRefused as exc:
            raise problem_of(exc.response) from exc
        except StreamLost as exc:
            if exc.response is not None:
                raise problem_of(exc.response) from exc
            raise GatewayUnreachable(Exit.UNREACHABLE, "unreachable", f"{self.url}: {exc}", remedy=_START_ONE) from exc


def _backoff_s(attempt: int) -> float:
    ceiling = min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2 ** (attempt - 1))
    return ceiling * random.uniform(0.5, 1.0)
