"""HTTP to engines, which are OpenAI-compatible servers: probes, and one completion per request, streamed or not.

httpx uses aiohttp's transport. Its own rescans the whole pool at each request: 18 to 22 ms of CPU for a call with 150
in flight, against 0.6 ms. Requests go straight to the transport, since
redirects, cookies and merging took an eighth of an agent's CPU (py-spy under `make bench`).
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import aiohttp
import httpx
import structlog
from httpx_aiohttp import AiohttpTransport

from app.deliberation.calls import BATCH_AFTER, Call
from app.deliberation.errors import CallTimeout, EngineRejected, EngineUnavailable
from app.deliberation.roles import EngineSpec
from serve_deployments.engine.limits import Hedges, RetryBudget
from serve_deployments.engine.pool import EnginePool
from serve_deployments.engine.reachability import NOT_CONNECTED, cause_of, check_connection, never_connected
from serve_deployments.engine.replies import EngineReply, Meter, OnText, StreamedChoice, StreamedReply, parse_reply
from serve_deployments.engine.request_body import BeforeSending, Dialect, RequestBody, request_body
from serve_deployments.engine.state import (
    KEY_REFUSED,
    EngineState,
    EngineUnreachable,
    FieldsRefused,
    KeyRefused,
    RetryLater,
    refusal_of,
)

PROBE_TIMEOUT_S = 2.0
# Strangers may ask a gateway whether it is ready, and so its replicas for their engines, at any rate.
PROBE_FRESH_S = 1.0
# With a connection's 2 s, an engine's end is known within five seconds, also without calls.
CHECK_INTERVAL_S = 2.0
# Below the 5 s after which uvicorn, and so vLLM, closes an idle connection: a request must not meet that moment.
KEEPALIVE_S = 4.0
# `identity`, because the stream is read as it comes over the wire.
HEADERS = [("Content-Type", "application/json"), ("Accept", "*/*"), ("Accept-Encoding", "identity")]
# Engines (by `owned_by` in /v1/models) that take vLLM's own request fields; others might refuse them.
EXTENDED_ENGINES = frozenset({"vllm", "simulator"})
# vLLM's refusal of a priority under `--scheduling-policy fcfs`; to a streamed request it comes in the stream.
_NO_PRIORITY = "priority scheduling is not enabled"
# The statuses of a server that is up and has no list of models.
_NO_SUCH_PATH = frozenset({404, 405, 501})

log = structlog.get_logger(__name__)


class Engines(EnginePool):
    def __init__(
        self,
        engines: Sequence[EngineSpec],
        *,
        fallback: Sequence[EngineSpec] = (),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(engines, fallback)
        # Without a bound, which is aiohttp's 0: roles and engines bound the calls, and no probe waits for their end.
        limits = httpx.Limits(max_connections=0, keepalive_expiry=KEEPALIVE_S)
        self._transport = transport or AiohttpTransport(limits=limits)
        self._client = httpx.AsyncClient(transport=self._transport)
        self.retries = RetryBudget()
        self.hedges = Hedges()
        self._probing: asyncio.Task[None] | None = None
        self._probe_due_s = 0.0

    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
        await self._client.aclose()

    async def watch(self) -> NoReturn:
        """Check every engine that has not responded lately, and key files, every two seconds. Runs until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            await asyncio.gather(*map(self._renew_key, self.engines))
            quiet_since_s = time.monotonic() - CHECK_INTERVAL_S
            await asyncio.gather(*(self._check(each) for each in self.engines if each.reached_s < quiet_since_s))

    async def _renew_key(self, engine: EngineState) -> None:
        if await engine.key.refresh():
            engine.accepts_key()
            engine.dialects.clear()
            await self._probe(engine)

    async def _check(self, engine: EngineState) -> None:
        """Learn whether the engine can be connected to; after an outage probe it, which lets waiting calls go on."""
        try:
            await check_connection(engine.spec.url, engine.spec.connect_timeout_s)
        except (OSError, ValueError) as exc:
            if engine.outage is None:
                engine.not_connected(exc)
                self._failed(engine, unreachable=True)
        else:
            if engine.outage is not None:
                await self._probe(engine)

    async def probe(self) -> None:
        await asyncio.gather(*(self._probe(engine) for engine in self.engines))

    async def probe_briefly(self, within_s: float) -> None:
        """As `probe`, or share one of the last second; return after `within_s` while the probe goes on."""
        if self._probing is None or (self._probing.done() and time.monotonic() >= self._probe_due_s):
            self._probe_due_s = time.monotonic() + PROBE_FRESH_S
            self._probing = asyncio.get_running_loop().create_task(self.probe())
        await asyncio.wait({self._probing}, timeout=within_s)

    async def _probe(self, engine: EngineState) -> None:
        try:
            response = await self._get(engine, "/v1/models")
            engine.connected()
            if response.status_code in KEY_REFUSED:
                engine.refuses_key(response.status_code, probe=True)
                # An engine that refuses is up.
                self._succeeded(engine)
                return
            listed: Any = {"data": []} if response.status_code in _NO_SUCH_PATH else response.raise_for_status().json()
            models = listed["data"]
            engine.models = (engine.spec.model,) if engine.spec.model else tuple(str(model["id"]) for model in models)
            engine.extended = any(model.get("owned_by") in EXTENDED_ENGINES for model in models)
            if engine.extended and (engine.version is None or not engine.healthy):
                engine.version = await self._version(engine)
            engine.accepts_key(probe=True)
            self._succeeded(engine)
        except (httpx.HTTPError, aiohttp.ClientError, ValueError, KeyError, TypeError, AttributeError) as exc:
            if never_connected(exc):
                engine.not_connected(exc)
            else:
                log.warning("engine_unusable", engine=engine.address, error=type(exc).__name__)
            self._failed(engine, unreachable=True)

    async def _version(self, engine: EngineState) -> str | None:
        response = await self._get(engine, "/version")
        with suppress(ValueError, KeyError, TypeError):
            return str(response.json()["version"])
        return None

    async def _get(self, engine: EngineState, path: str) -> httpx.Response:
        return await self._client.get(f"{engine.spec.url}{path}", headers=engine.headers, timeout=PROBE_TIMEOUT_S)

    def _succeeded(self, engine: EngineState) -> None:
        engine.circuit.succeeded()
        self._wake()

    def _failed(self, engine: EngineState, *, unreachable: bool) -> None:
        engine.circuit.failed(time.monotonic(), unreachable=unreachable)
        self._wake()

    async def model_of(self, engine: EngineState, named: str | None) -> str:
        """The model to ask for: `named`, else the engine's own, else the first that it serves.

        Probes an engine of unknown kind, because a request must not lack the salt that keeps tenants apart.
        Raises EngineUnreachable or EngineUnavailable when the probe brings no model, and KeyRefused.
        """
        if self._unknown(engine, named):
            await self._probe(engine)
        if self._unknown(engine, named) and engine.key_rejected is not None:
            if not await engine.key.refresh():
                raise KeyRefused(engine, engine.key_rejected.status)
            await self._probe(engine)
        if self._unknown(engine, named):
            kind = EngineUnavailable if engine.healthy else EngineUnreachable
            raise kind(f"{engine.label} names no model")
        return named or engine.models[0]

    def _unknown(self, engine: EngineState, named: str | None) -> bool:
        return engine.extended is None or (named is None and not engine.models)

    # Long by its contract: half of it are parameters and the docstring.
    async def complete(
        self,
        engine: EngineState,
        call: Call,
        model: str,
        *,
        seed: int,
        trace: str,
        on_text: OnText | StreamedReply | None,
        meter: Meter,
        salt: str,
        priority: int = 0,
        before_sending: BeforeSending | None = None,
    ) -> EngineReply:
        """Send one request for `call`. With `on_text` it is streamed, and `on_text` gets each piece of text.

        A `StreamedReply` instead asks for all of its choices, whose seeds follow `seed`. Choices that the engine does
        not begin stay open. The engine's state remembers refused fields, a refused `priority` and an ignored `n`, and
        the request is sent again without them; so is one whose key has been replaced meanwhile.

        `meter` holds the cost so far, also after a failure. `salt` is `cache_salt` of the tenant. `before_sending` is
        awaited right before the body is written; when it raises CallCancelled, nothing is sent.

        Raises EngineUnreachable (no connection), EngineUnavailable (broken off, 5xx, 429, nonsense), EngineRejected
        (4xx; KeyRefused for 401 and 403) or CallTimeout (no byte for the engine's idle time; that of a batch call
        begins with its first text). Cancelling closes the connection, so that the engine stops generating.
        """
        streamed = StreamedReply([StreamedChoice(call, trace, on_text, meter)]) if callable(on_text) else on_text
        choices = 1 if streamed is None else len(streamed.choices)
        dialect, known_salt = engine.dialect(model), salt if engine.extended else None
        while True:
            sent = priority if priority and engine.extended and engine.prioritises else None
            content = request_body(
                call,
                model,
                seed,
                stream=streamed is not None,
                salt=known_salt,
                priority=sent,
                dialect=dialect,
                choices=choices,
            )
            if streamed is not None:
                streamed.structured = dialect.structured
            key = engine.key.headers
            try:
                body = RequestBody(content, before_sending, yields=sent is not None and sent >= BATCH_AFTER)
                reply = await self._request(engine, body, trace, streamed, meter)
            except KeyRefused:
                # Another call may have read the new key since this one was sent.
                if not await engine.key.refresh() and engine.key.headers == key:
                    raise
            except FieldsRefused as refused:
                dialect = _without(engine, model, dialect, refused, several=choices > 1)
            except (EngineRejected, EngineUnavailable) as refused:
                if sent is None or _NO_PRIORITY not in str(refused).lower():
                    raise
                # To a streamed request the refusal comes in the stream, which counts as a failure elsewhere.
                self._succeeded(engine)
                engine.prioritises = False
                log.info("engine_without_priority", engine=engine.label)
            else:
                engine.accepts_key()
                engine.remember(model, dialect, own_schema=not call.output.answer_schema)
                if streamed is not None and streamed.ignored_n:
                    _without_n(engine)
                if choices == 1 and not meter.usage.prompt_tokens:
                    meter.estimate(call, reply.text)
                    reply.usage = meter.usage
                reply.structured = dialect.structured
                return reply

    async def _request(
        self, engine: EngineState, body: RequestBody, trace: str, streamed: StreamedReply | None, meter: Meter
    ) -> EngineReply:
        try:
            reply = await self._exchange(engine, body, trace, streamed, meter)
        except (httpx.ReadTimeout, TimeoutError) as exc:
            self._failed(engine, unreachable=False)
            raise CallTimeout(f"{engine.label} was silent for {engine.spec.idle_timeout_s:g} seconds") from exc
        except (httpx.HTTPError, aiohttp.ClientError) as exc:
            # The transport reports some broken connections as never made, so only `written` shows what was sent.
            unreachable = not body.written and isinstance(exc, NOT_CONNECTED)
            self._failed(engine, unreachable=unreachable)
            if unreachable:
                if never_connected(exc):
                    engine.not_connected(exc)
                raise EngineUnreachable(f"{engine.label} cannot be reached: {cause_of(exc)}") from exc
            raise EngineUnavailable(f"{engine.label} refused or broke off: {type(exc).__name__} {exc}") from exc
        except (RetryLater, EngineRejected):
            # An engine that refuses is up.
            self._succeeded(engine)
            raise
        except EngineUnavailable:
            self._failed(engine, unreachable=False)
            raise
        self._succeeded(engine)
        return reply

    async def _exchange(
        self, engine: EngineState, body: RequestBody, trace: str, streamed: StreamedReply | None, meter: Meter
    ) -> EngineReply:
        traces = [trace] if streamed is None else [choice.trace for choice in streamed.choices]
        named = [("X-Call-Id", ",".join(each.rpartition(".")[0] for each in traces))]
        if engine.extended:
            # vLLM logs it. llama-cpp-python answers 400, without a word, to one that is no UUID.
            named.append(("X-Request-Id", trace))
        headers = [*HEADERS, *named, *engine.headers, ("Content-Length", str(len(body.content)))]
        connect_s, idle_s = engine.spec.connect_timeout_s, engine.spec.idle_timeout_s
        # Unstreamed, the first byte comes with the last: only the call's deadline ends a hung request.
        read_s = None if streamed is None or body.yields else idle_s
        timeout = {"connect": connect_s, "pool": connect_s, "write": idle_s, "read": read_s}
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        # Straight to the transport: redirects, cookies and authentication are not needed, and cost as much again.
        request = httpx.Request(
            "POST", engine.completions, headers=headers, content=body, extensions={"timeout": timeout}
        )
        try:
            response = await self._transport.handle_async_request(request)
        except (httpx.HTTPError, aiohttp.ClientError):
            if body.refused is not None:
                raise body.refused from None
            raise
        engine.connected()
        try:
            if response.status_code != 200:
                raise refusal_of(engine, response, await _content(response))
            engine.circuit.reached()
            self._wake()
            if streamed is None:
                return parse_reply(engine, await _content(response), meter)
            streamed.began_s = began_s
            async with asyncio.timeout(None) as silence:
                # Also forgets that of an earlier request with a priority, which was refused.
                streamed.heard = (lambda: silence.reschedule(loop.time() + idle_s)) if body.yields else None
                return await streamed.read(engine, response.aiter_raw())
        finally:
            await response.aclose()


def _without(engine: EngineState, model: str, dialect: Dialect, refused: FieldsRefused, *, several: bool) -> Dialect:
    """The dialect without the refused fields; raises what the refusal means else when they cannot be left out."""
    if several and "n" in refused.fields:
        _without_n(engine)
        raise refused.otherwise from None
    adapted = dialect.without(refused.fields - {"n"}, fixed=engine.spec.structured is not None)
    if adapted is None:
        raise refused.otherwise from None
    log.info("engine_adapted", engine=engine.label, model=model, refused=sorted(refused.fields))
    return adapted


def _without_n(engine: EngineState) -> None:
    engine.takes_n = False
    log.info("engine_without_n", engine=engine.label)


async def _content(response: httpx.Response) -> bytes:
    # Requested unencoded: httpx's detection of encodings costs more than reading the body.
    return b"".join([part async for part in response.aiter_raw()])
