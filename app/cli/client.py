"""A thin HTTP client of the gateway for the command line; its errors are `CommandError`s with a remedy."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, BinaryIO, Self, TypeVar, cast

import httpx
from pydantic import BaseModel, ValidationError

from app.access.loopback import is_loopback
from app.api.schemas import Problem
from app.cli.exits import CommandError, Exit, FieldFault
from app.client import EventStream, Frame, Retry, StreamLost, StreamRefused, Waits

_CONNECT_TIMEOUT_S = 2.0
_READ_TIMEOUT_S = 10.0
# The gateway reads a PDF before it answers.
_UPLOAD_READ_TIMEOUT_S = 180.0
_SUBMIT_ATTEMPTS = 4
_EVENTS_ON_PAGE = 1_000
_BACKOFF_FIRST_S = 0.25
_BACKOFF_MAX_S = 5.0
_URL_REMEDY = "give the gateway's URL, such as http://host:port, by --url, DELIBERATE_URL or `deliberate context use`"
_UNREACHABLE_REMEDY = "start one with `deliberate up`, or name another by --url, DELIBERATE_URL or a context"

_REMEDIES = {
    "not_found": "`deliberate list` shows the deliberations of this gateway",
    "gone": "`deliberate list` shows the deliberations that are kept",
    "invalid_id": "an id consists of a-z, 0-9, _ and -, at most 64 of them",
    "unknown_role": "`deliberate roles` lists the roles",
    "unknown_strategy": "`deliberate strategies` lists the strategies",
    "plan_conflict": "give the plan another plan_id",
    "idempotency_conflict": "send the same body, or another --idempotency-key",
    "queue_full": "try again later",
    "unauthenticated": "give a valid key by --api-key or DELIBERATE_API_KEY; `deliberate keys create` makes one",
    "rate_limited": "send fewer requests",
    "journal_unavailable": "the gateway cannot reach NATS; try again, or look at its /readyz",
}

JsonObject = dict[str, Any]
_Model = TypeVar("_Model", bound=BaseModel)


class GatewayUnreachable(CommandError):
    """No gateway responds, or it cannot serve now."""


class GatewayRefused(CommandError):
    """The gateway answered 4xx."""


def _authorization(api_key: str | None) -> dict[str, str]:
    key = (api_key or "").strip()
    if not key:
        return {}
    if not key.isascii() or not key.isprintable() or " " in key:
        detail = "the value of --api-key or DELIBERATE_API_KEY is not a key"
        raise CommandError(Exit.USAGE, "invalid_key", detail, remedy="`deliberate keys create` makes one")
    return {"Authorization": f"Bearer {key}"}


def _unreachable(url: str, source: str, exc: httpx.TransportError) -> GatewayUnreachable:
    match exc:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            detail = f"no gateway answers at {url} (from {source})"
        case httpx.TimeoutException():
            detail = f"{url} did not answer in time"
        case _:
            detail = f"the connection to {url} broke"
    return GatewayUnreachable(Exit.UNREACHABLE, "unreachable", detail, remedy=_UNREACHABLE_REMEDY)


def not_a_gateway(url: str, path: str) -> GatewayUnreachable:
    detail = f"{url} answers {path} without a JSON object"
    return GatewayUnreachable(Exit.UNREACHABLE, "not_a_gateway", detail, remedy=_URL_REMEDY)


def parsed(model: type[_Model], document: JsonObject) -> _Model:
    """The parsed resource; raises CommandError when fields are missing or invalid. Unknown fields are dropped."""
    try:
        return model.model_validate(document)
    except ValidationError as exc:
        where = ".".join(map(str, exc.errors(include_url=False)[0]["loc"]))
        detail = f"the gateway's {model.__name__} has another version: {where}"
        raise CommandError(Exit.REFUSED, "not_understood", detail, remedy="--json prints it unparsed") from exc


def command_error(response: httpx.Response) -> CommandError:
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        code, detail = f"http_{response.status_code}", response.reason_phrase or "no problem document"
        faults, request_id = (), None
    else:
        code, detail, request_id = problem.code, problem.detail, problem.request_id
        faults = tuple(FieldFault(fault.pointer, fault.detail, fault.remedy) for fault in problem.errors)
    remedy = _REMEDIES.get(code) or (faults[0].remedy if code == "insufficient_scope" and faults else None)
    if wait_s := response.headers.get("Retry-After"):
        remedy = f"{remedy or 'try again'}; the gateway says in {wait_s} s"
    if response.status_code >= 500:
        return GatewayUnreachable(Exit.UNREACHABLE, code, detail, fields=faults, remedy=remedy, request_id=request_id)
    return GatewayRefused(Exit.REFUSED, code, detail, fields=faults, remedy=remedy, request_id=request_id)


class GatewayClient:
    """A connection to one gateway, an async context. `options` name the gateway again on a command line."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        source: str = "--url",
        options: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Raises CommandError for an invalid URL or key; `source` named the URL. `transport` is for tests."""
        try:
            base = httpx.URL(url)
        except httpx.InvalidURL:
            base = httpx.URL()
        if base.scheme not in ("http", "https") or not base.host:
            detail = f"{source} takes http://host:port, not {url!r}"
            raise CommandError(Exit.USAGE, "invalid_url", detail, remedy=_URL_REMEDY)
        self.url = url.rstrip("/")
        self.options = options
        self.source = source
        self._http = httpx.AsyncClient(
            base_url=self.url,
            transport=transport,
            # A proxy of the environment must not receive requests to this machine.
            trust_env=not is_loopback(base.host),
            headers={"User-Agent": "deliberate"} | _authorization(api_key),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: JsonObject | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> JsonObject:
        """The JSON object of an answer, empty for 204; raises CommandError. The gateway may wait up to `wait_s`."""
        response = await self.answer(method, path, params=params, body=body, headers=headers, wait_s=wait_s)
        return self._document(response, path)

    async def upload(self, name: str, content: BinaryIO) -> JsonObject:
        """POST a file, which is read as it is sent; returns what the gateway says of it. Raises CommandError."""
        timeout = httpx.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S, read=_UPLOAD_READ_TIMEOUT_S)
        try:
            response = await self._http.post("/files", files={"file": (name, content)}, timeout=timeout)
        except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError) as exc:
            # A gateway that refuses a large body closes, and its answer may be lost with the connection.
            detail = f"the connection to {self.url} broke within the file: it stopped, or takes no file as large"
            raise GatewayUnreachable(
                Exit.UNREACHABLE, "upload_broke", detail, remedy="try again, or send a smaller file"
            ) from exc
        except httpx.TransportError as exc:
            raise _unreachable(self.url, self.source, exc) from exc
        return self._document(response, "/files")

    def _document(self, response: httpx.Response, path: str) -> JsonObject:
        if response.status_code >= 400:
            raise command_error(response)
        if response.status_code == 204:
            return {}
        with suppress(ValueError):
            document = response.json()
            if isinstance(document, dict):
                return cast(JsonObject, document)
        raise not_a_gateway(self.url, path)

    async def answer(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> httpx.Response:
        """The answer, refusals included; raises GatewayUnreachable. A body of bytes needs its `Content-Type`."""
        timeout = httpx.Timeout(_READ_TIMEOUT_S + wait_s, connect=_CONNECT_TIMEOUT_S)
        sent = {**(headers or {}), **({"Prefer": f"wait={wait_s:g}"} if wait_s else {})}
        try:
            content, document = (body, None) if isinstance(body, bytes) else (None, body)
            return await self._http.request(
                method, path, params=params, content=content, json=document, headers=sent, timeout=timeout
            )
        except httpx.TransportError as exc:
            raise _unreachable(self.url, self.source, exc) from exc

    async def submit(self, body: JsonObject, idempotency_key: str) -> JsonObject:
        """POST a deliberation; returns the resource. Retries with the same key when the outcome is unknown."""
        for attempt in range(1, _SUBMIT_ATTEMPTS + 1):
            try:
                headers = {"Idempotency-Key": idempotency_key}
                return await self.request("POST", "/deliberations", body=body, headers=headers)
            except GatewayUnreachable as error:
                never_connected = isinstance(error.__cause__, httpx.ConnectError | httpx.UnsupportedProtocol)
                if never_connected or attempt == _SUBMIT_ATTEMPTS:
                    raise
                ceiling_s = min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2 ** (attempt - 1))
                await asyncio.sleep(ceiling_s * random.uniform(0.5, 1.0))
        raise AssertionError("the last attempt returns or raises")

    async def deliberation(self, deliberation_id: str) -> JsonObject:
        return await self.request("GET", f"/deliberations/{deliberation_id}")

    async def read(self, path: str, params: Mapping[str, Any] | None = None) -> JsonObject:
        return await self.request("GET", path, params=params)

    async def pages(self, path: str, params: Mapping[str, Any]) -> AsyncGenerator[JsonObject]:
        """Every page of a list. Iterate in `aclosing`."""
        cursor: str | None = ""
        while cursor is not None:
            page = await self.read(path, {**params, **({"cursor": cursor} if cursor else {})})
            yield page
            cursor = page.get("next_cursor")

    async def deliveries(self, deliberation_id: str) -> list[JsonObject]:
        """The deliveries of a deliberation's webhook, in the order of their events."""
        async with aclosing(self.pages(f"/deliberations/{deliberation_id}/deliveries", {"limit": 200})) as pages:
            return [delivery async for page in pages for delivery in page["items"]]

    async def events(self, types: str, deliberation_id: str) -> list[JsonObject]:
        """The deliberation's recorded events of these types, separated by commas, up to now."""
        path = f"/deliberations/{deliberation_id}/events"
        collected, after = list[JsonObject](), "0"
        while True:
            params = {"after": after, "types": types, "limit": _EVENTS_ON_PAGE}
            page = await self.request("GET", path, params=params, headers={"Accept": "application/json"})
            collected += page["items"]
            if page["ended"] or page["next"] == after:
                return collected
            after = page["next"]

    async def follow(
        self,
        deliberation_id: str,
        *,
        after: str = "0",
        deltas: bool = True,
        timeout_s: float = 60.0,
        on_retry: Callable[[Retry], None] | None = None,
    ) -> AsyncGenerator[Frame]:
        """Yields every event after the cursor `after` up to the terminal one. Iterate in `aclosing`.

        A broken stream resumes at the last cursor. Raises GatewayUnreachable after `timeout_s` seconds without an
        event, and a final refusal without a retry.
        """
        waits = Waits(first_s=_BACKOFF_FIRST_S, most_s=_BACKOFF_MAX_S, timeout_s=timeout_s)
        stream = EventStream(self._http, deliberation_id, after=after, deltas=deltas, waits=waits, on_retry=on_retry)
        try:
            async with stream:
                async for frame in stream.frames():
                    yield frame
        except StreamRefused as exc:
            raise command_error(exc.response) from exc
        except StreamLost as exc:
            if exc.response is not None:
                raise command_error(exc.response) from exc
            detail = f"{self.url}: {exc}"
            raise GatewayUnreachable(Exit.UNREACHABLE, "unreachable", detail, remedy=_UNREACHABLE_REMEDY) from exc
