"""HTTP to engines, which are OpenAI-compatible servers: probes, and one completion per request, streamed or not.

httpx uses aiohttp's transport. Its own rescans the whole pool at each request: 18 to 22 ms of CPU for a call with 150
in flight, against 0.6 ms. Requests go straight to the transport, since
redirects, cookies and merging took an eighth of an agent's CPU (py-spy under `make bench`).
"""

import asyncio
import math
import re
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, NoReturn, cast

import aiohttp
import httpx
import structlog
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from httpx_aiohttp import AiohttpTransport
from pydantic_core import from_json, to_json

from app.deliberation.calls import BATCH_AFTER, Call
from app.deliberation.engine_troubles import TroubleCause
from app.deliberation.errors import AnswerWithheld, CallFailure, CallTimeout, EngineRejected, EngineUnavailable
from app.deliberation.roles import EngineSpec
from app.observability.traces import Tracer
from serve_deployments.engine.chat_span import ChatSpan
from serve_deployments.engine.error_words import WORDS_MAX, cause_of_status
from serve_deployments.engine.limits import Hedges, RetryBudget
from serve_deployments.engine.pool import EnginePool
from serve_deployments.engine.reachability import NOT_CONNECTED, cause_of, check_connection, never_connected
from serve_deployments.engine.replies import (
    BODY_END,
    BodyEnd,
    EngineReply,
    ErrorInBody,
    Meter,
    OnText,
    StreamedChoice,
    StreamedReply,
)
from serve_deployments.engine.request_body import (
    BeforeSending,
    Dialect,
    RequestBody,
    failed_generation,
    request_body,
)
from serve_deployments.engine.state import (
    KEY_REFUSED,
    EngineFailure,
    EngineState,
    EngineUnreachable,
    FieldsRefused,
    KeyRefused,
    RetryLater,
    refusal_of,
)
from serve_deployments.engine.tool_calls import StreamedToolCalls, ToolTurn

# The doctor asks each engine anew, and tells a fault within two seconds.
PROBE_TIMEOUT_S = 1.5
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
LLAMA_CPP = "llamacpp"
# Bounds of a list of models and of an error, in bytes and seconds.
LIST_BYTES_MAX = 1024 * 1024
ERROR_BYTES_MAX = 64 * 1024
# A text is counted by pieces of so many characters; the answer lists each token.
COUNTED_CHARS = 131_072
COUNT_BYTES_MAX = 4 * 1024 * 1024
HEADER_BYTES_MAX = 64 * 1024
INTERIM_HEADS_MAX = 64
_READ_BYTES = 16 * 1024
ERROR_WITHIN_S = 5.0
MODELS_MAX = 256
MODEL_CHARS_MAX = 256
_DECODED_BYTES = 64 * 1024
_ENCODINGS = re.compile(r"\b(?:x-gzip|gzip|deflate|br|zstd|x-compress|compress|dcb|dcz)\b", re.IGNORECASE)
# vLLM's refusal of a priority under `--scheduling-policy fcfs`; to a streamed request it comes in the stream.
_NO_PRIORITY = "priority scheduling is not enabled"
# The statuses of a server that is up and has no list of models.
_NO_SUCH_PATH = frozenset({404, 405, 501})

log = structlog.get_logger(__name__)


class _Connection(ResponseHandler):
    """One connection, with a bound on heads before the answer's: aiohttp parses all that a read brings, and waits."""

    _heads = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data[:_READ_BYTES])
        for begin in range(_READ_BYTES, len(data), _READ_BYTES):
            if self._heads > INTERIM_HEADS_MAX:
                return
            super().data_received(data[begin : begin + _READ_BYTES])

    def feed_data(self, data: tuple[RawResponseMessage, aiohttp.StreamReader], size: int = 0) -> None:
        self._heads = self._heads + 1 if data[0].code < 200 else 0
        if self._heads <= INTERIM_HEADS_MAX:
            super().feed_data(data, size)
        elif self.exception() is None:
            self.set_exception(aiohttp.ClientConnectionError(f"more than {INTERIM_HEADS_MAX} heads before an answer"))
            assert self.transport is not None
            self.transport.abort()


class _Transport(AiohttpTransport):
    """Connections without a bound, which is aiohttp's 0: roles and engines bound the calls, and no probe waits.

    A response has its `BodyEnd` among its extensions.
    """

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        response.extensions[BODY_END] = end = BodyEnd()
        # The package has no public place for aiohttp's reader.
        vars(response.stream)["_aiohttp_response"].content.on_eof(end.come)
        return response

    def get_client(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ssl=self.ssl_context)
        # aiohttp has no public place for a protocol of one's own.
        vars(connector)["_factory"] = partial(_Connection, loop=asyncio.get_running_loop())
        # aiohttp's own bound is 8 KiB, which headers of proxies exceed.
        return aiohttp.ClientSession(connector=connector, max_field_size=HEADER_BYTES_MAX)


class Engines(EnginePool):
    def __init__(
        self,
        engines: Sequence[EngineSpec],
        *,
        fallback: Sequence[EngineSpec] = (),
        transport: httpx.AsyncBaseTransport | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        super().__init__(engines, fallback)
        self._tracer = tracer
        proxies = {engine.spec.proxy for engine in self.engines}
        self._transports: dict[str | None, httpx.AsyncBaseTransport] = {
            proxy: transport or _Transport(proxy=httpx.Proxy(proxy) if proxy else None) for proxy in proxies
        }
        self.retries = RetryBudget()
        self.hedges = Hedges()
        self._probing: asyncio.Task[None] | None = None
        self._probed_s = -math.inf

    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
        for transport in self._transports.values():
            await transport.aclose()

    async def watch(self) -> NoReturn:
        """Check every engine that has not responded lately, and key files, every two seconds. Runs until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            await _each(self._renew_key(engine) for engine in self.engines)
            quiet_since_s = time.monotonic() - CHECK_INTERVAL_S
            await _each(
                self._check(engine) for engine in self.engines if engine.reached_s < quiet_since_s or engine.unlisted
            )

    async def _renew_key(self, engine: EngineState) -> None:
        if await engine.key.refresh():
            engine.accepts_key()
            engine.dialects.clear()
            await self._probe(engine)

    async def _check(self, engine: EngineState) -> None:
        """Learn whether the engine can be connected to; after an outage probe it, which lets waiting calls go on."""
        try:
            await check_connection(engine.spec.proxy or engine.spec.url, engine.spec.connect_timeout_s)
        except (OSError, ValueError) as exc:
            if engine.outage is None:
                self._unconnected(engine, exc)
        else:
            if engine.outage is not None or engine.unlisted:
                await self._probe(engine)

    async def probe(self) -> None:
        await _each(self._probe(engine) for engine in self.engines)

    async def probe_briefly(self, within_s: float, fresh_s: float = PROBE_FRESH_S) -> None:
        """As `probe`, or share one that began `fresh_s` ago; return after `within_s` while the probe goes on."""
        now_s = time.monotonic()
        if self._probing is None or (self._probing.done() and now_s >= self._probed_s + fresh_s):
            self._probed_s = now_s
            self._probing = asyncio.get_running_loop().create_task(self.probe())
        await asyncio.wait({self._probing}, timeout=within_s)

    async def _probe(self, engine: EngineState) -> None:
        """Learn from the engine's list of models whether it is up, of which kind, and what it serves.

        The list is advice where a model is named: only an engine that cannot be connected to is then unhealthy.
        """
        engine.models = (engine.own_model,) if engine.own_model else engine.models
        began_at = datetime.now(UTC)
        try:
            status, content = await self._get(engine, engine.models_url, LIST_BYTES_MAX)
        except (httpx.HTTPError, aiohttp.ClientError, TimeoutError, EngineUnavailable) as exc:
            if never_connected(exc):
                self._unconnected(engine, exc)
            elif isinstance(exc, TimeoutError | httpx.TimeoutException):
                engine.silent_since = engine.silent_since or began_at
                self._list_unusable(engine, f"did not come within {PROBE_TIMEOUT_S:g} s")
            else:
                self._list_unusable(engine, str(exc) or type(exc).__name__)
            return
        engine.connected()
        if status in KEY_REFUSED:
            engine.refuses_key(status, probe=True)
            engine.list_problem, engine.list_problem_since = "", None
            self._without_list(engine, answered=True)
            return
        try:
            listed = _listed(content) if status == 200 else [] if status in _NO_SUCH_PATH else None
        except ValueError as exc:
            self._list_unusable(engine, f"{exc}: {engine.quote(content)!r}")
            return
        if listed is None:
            words = f"was answered with {status}: {engine.quote(content)}".removesuffix(": ")
            cause = cause_of_status(status, words) if status >= 500 else "list"
            self._list_unusable(engine, words, cause, answered=status < 500)
            return
        engine.models = engine.models if engine.own_model else tuple(model.name for model in listed)
        engine.extended = any(model.owner in EXTENDED_ENGINES for model in listed)
        engine.listed = {model.name: model.context_tokens for model in listed} if len(listed) < MODELS_MAX else {}
        engine.list_problem, engine.list_problem_since = "", None
        if engine.extended and (engine.version is None or not engine.healthy):
            engine.version = await self._version(engine)
        if not any(model.owner == LLAMA_CPP for model in listed):
            engine.slots = None
        elif engine.slots is None or not engine.healthy:
            engine.slots = await self._slots(engine)
        engine.accepts_key(probe=True)
        self._connected(engine)

    def _list_unusable(
        self, engine: EngineState, why: str, cause: TroubleCause = "list", *, answered: bool = False
    ) -> None:
        if engine.list_problem != why:
            log.warning("engine_without_list", engine=engine.address, why=why)
        engine.list_problem, engine.list_problem_since = why, engine.list_problem_since or datetime.now(UTC)
        engine.list_cause = cause
        self._without_list(engine, answered=answered)

    def _without_list(self, engine: EngineState, *, answered: bool) -> None:
        if engine.own_model or self.model:
            engine.extended = engine.extended or False
            if engine.silent_since is not None:
                # Its calls tell whether it takes more of them.
                return
            answered = True
        if answered:
            # A refusal proves that the engine is up.
            self._connected(engine)
        else:
            self._failed(engine, engine.list_failure, unreachable=True)

    def _unconnected(self, engine: EngineState, error: Exception) -> None:
        engine.not_connected(error)
        self._failed(engine, EngineFailure(*cause_of(error)), unreachable=True)

    async def _version(self, engine: EngineState) -> str | None:
        with suppress(ValueError, KeyError, TypeError, httpx.HTTPError, aiohttp.ClientError, EngineUnavailable):
            _, content = await self._get(engine, engine.version_url, ERROR_BYTES_MAX)
            return str(from_json(content)["version"])[:MODEL_CHARS_MAX]
        return None

    async def _slots(self, engine: EngineState) -> int | None:
        """The calls that llama.cpp's server works on at once: in its own queue a call would seem to hang."""
        with suppress(ValueError, KeyError, TypeError, httpx.HTTPError, aiohttp.ClientError, EngineUnavailable):
            _, content = await self._get(engine, engine.properties_url, LIST_BYTES_MAX)
            slots = from_json(content)["total_slots"]
            return slots if isinstance(slots, int) and slots > 0 else None
        return None

    async def count_tokens(self, text: str, model: str | None) -> int | None:
        """The tokens of a text as an engine of the role counts them; None where none can, as vLLM does.

        It is asked by pieces, which may count a token more each.
        """
        engine = next((engine for engine in self.engines if engine.extended and engine.healthy), None)
        if engine is None:
            return None
        total = 0
        try:
            for begin in range(0, len(text), COUNTED_CHARS):
                asked = {"model": await self.model_of(engine, model), "prompt": text[begin : begin + COUNTED_CHARS]}
                status, content = await self._get(engine, engine.tokenize_url, COUNT_BYTES_MAX, to_json(asked))
                if status != 200:
                    return None
                total += int(from_json(content)["count"])
        except (ValueError, KeyError, TypeError, TimeoutError, httpx.HTTPError, aiohttp.ClientError, CallFailure):
            return None
        return total

    async def _get(self, engine: EngineState, url: str, bytes_max: int, sent: bytes = b"") -> tuple[int, bytes]:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            timeout = dict.fromkeys(("connect", "pool", "read", "write"), PROBE_TIMEOUT_S)
            headers = [*(HEADERS if sent else HEADERS[1:]), *engine.headers]
            method = "POST" if sent else "GET"
            request = httpx.Request(method, url, headers=headers, content=sent or None, extensions={"timeout": timeout})
            response = await self._transports[engine.spec.proxy].handle_async_request(request)
            try:
                return response.status_code, await _content(engine, response, bytes_max)
            finally:
                await response.aclose()

    def _connected(self, engine: EngineState) -> None:
        # An engine that lists its models may fail at each completion, and each scrape of the metrics probes it.
        engine.circuit.connected()
        self._wake()

    def _succeeded(self, engine: EngineState) -> None:
        engine.circuit.succeeded()
        self._wake()

    def _failed(self, engine: EngineState, failure: EngineFailure, *, unreachable: bool) -> None:
        engine.failure = failure
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
            why = f": its list of models {engine.list_problem}; name a `model` for it" if engine.list_problem else ""
            raise kind(f"{engine.label} names no model{why}")
        return named or engine.models[0]

    def _unknown(self, engine: EngineState, named: str | None) -> bool:
        if named is not None and engine.list_problem and engine.outage is None:
            return False
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
        on_text: OnText | None,
        meter: Meter,
        salt: str,
        priority: int = 0,
        before_sending: BeforeSending | None = None,
        shows_schema: bool = False,
        turn: ToolTurn | None = None,
        is_watched: Callable[[], bool] | None = None,
    ) -> EngineReply:
        """Send one request for `call`. With `on_text` it is streamed, and `on_text` gets each piece of text.

        While `is_watched` returns false, the text is read every `UNWATCHED_READ_S`.

        The engine's state remembers refused fields and a refused `priority`, and the request is sent again without
        them; so is one whose key has been replaced meanwhile.

        With `shows_schema` the prompt ends with the answer's schema. `meter` holds the cost, also after a failure. The
        tools of a `turn` are offered; its reply has the tool calls.
        `salt` is `cache_salt` of the tenant. `before_sending` is awaited right before the body is written; when it
        raises CallCancelled, nothing is sent.

        Raises EngineUnreachable (no connection), EngineUnavailable (broken off, 5xx, 429, nonsense), EngineRejected
        (4xx; KeyRefused for 401 and 403) or CallTimeout (no byte for `EngineState.silence_s`, for a batch call from its
        first text on). Cancelling closes the connection, so that the engine stops generating.
        """
        streams = on_text is not None
        reading = StreamedReply(StreamedChoice(call, trace, on_text, meter, is_watched))
        offers = turn is not None and bool(turn.offered)
        dialect, known_salt, requests = engine.dialect(model), salt if engine.extended else None, 0
        while True:
            sent = priority if priority and engine.extended and engine.prioritises else None
            content = request_body(
                call,
                model,
                seed,
                stream=streams,
                salt=known_salt,
                priority=sent,
                dialect=dialect,
                shows_schema=shows_schema,
                turn=turn,
            )
            native = "tools" not in dialect.lacking
            reading.structured = None if offers else dialect.structured
            reading.choice.tool_calls = StreamedToolCalls() if offers and native else None
            key = engine.key.headers
            silence_s, yields = engine.silence_s(len(content)), sent is not None and sent >= BATCH_AFTER
            body = RequestBody(content, before_sending, meter, silence_s, yields=yields)
            requests += 1
            span = ChatSpan.begun(self._tracer, engine, model, seed, reading, requests, streams=streams)
            try:
                with nullcontext() if span is None else span.recorded(body):
                    reply = await self._request(engine, body, reading, span, streams=streams)
            except KeyRefused:
                # Another call may have read the new key since this one was sent.
                if not await engine.key.refresh() and engine.key.headers == key:
                    raise
            except FieldsRefused as refused:
                # Some engines take no conversation with tool calls either, unless tools are offered.
                uses_field = native and turn is not None and bool(turn.offered or turn.outcomes)
                fields = refused.fields if uses_field else refused.fields - {"tools"}
                dialect = _without(engine, model, dialect, refused, fields)
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
                if turn is not None and offers and not native:
                    return replace(reply, tool_calls=turn.chosen(reply.text))
                return reply

    async def _request(
        self, engine: EngineState, body: RequestBody, reading: StreamedReply, span: ChatSpan | None, *, streams: bool
    ) -> EngineReply:
        before = engine.failure
        try:
            reply = await self._exchange(engine, body, reading, span, streams=streams)
        except (httpx.ReadTimeout, TimeoutError) as exc:
            silent = f"was silent for {body.silence_s:.3g} seconds"
            self._failed(engine, EngineFailure("silent", f"it {silent}"), unreachable=False)
            raise CallTimeout(f"{engine.label} {silent}") from exc
        except (httpx.HTTPError, aiohttp.ClientError) as exc:
            # The transport reports some broken connections as never made, so only `written` shows what was sent.
            unreachable = not body.written and isinstance(exc, NOT_CONNECTED)
            words = f"it refused or broke off connections ({type(exc).__name__})"
            self._failed(engine, EngineFailure("errors", words), unreachable=unreachable)
            if unreachable:
                if never_connected(exc):
                    engine.not_connected(exc)
                raise EngineUnreachable(f"{engine.label} cannot be reached: {cause_of(exc)[1]}") from exc
            raise EngineUnavailable(f"{engine.label} refused or broke off: {type(exc).__name__} {exc}") from exc
        except (RetryLater, EngineRejected, AnswerWithheld):
            # A refusal proves that the engine is up.
            self._succeeded(engine)
            raise
        except EngineUnavailable as error:
            # A status has told its cause; the rest is nonsense, or an end without an answer.
            words = f"it {str(error).removeprefix(f'{engine.label} ')[:WORDS_MAX]}"
            failure = EngineFailure("errors", words) if engine.failure is before else engine.failure
            self._failed(engine, failure, unreachable=False)
            raise
        self._succeeded(engine)
        if not body.yields:
            # The first text of a batch call waits for all other calls.
            engine.paced(reply)
        return reply

    async def _exchange(
        self, engine: EngineState, body: RequestBody, reading: StreamedReply, span: ChatSpan | None, *, streams: bool
    ) -> EngineReply:
        named = [("X-Call-Id", reading.choice.trace.rpartition(".")[0])]
        if engine.extended:
            # vLLM logs it. llama-cpp-python answers 400, without a word, to an id that is no UUID.
            named.append(("X-Request-Id", reading.choice.trace))
        if span is not None:
            named.append(("traceparent", span.ref.traceparent))
        headers = [*HEADERS, *named, *engine.headers, ("Content-Length", str(len(body.content)))]
        connect_s, silence_s = engine.spec.connect_timeout_s, body.silence_s
        # Unstreamed, the first byte comes with the last: only the call's deadline ends a hung request.
        read_s = None if not streams or body.yields else silence_s
        timeout = {"connect": connect_s, "pool": connect_s, "write": engine.spec.idle_timeout_s, "read": read_s}
        reading.began_s = asyncio.get_running_loop().time()
        # Straight to the transport: redirects, cookies and authentication are not needed, and cost as much again.
        request = httpx.Request(
            "POST", engine.completions, headers=headers, content=body, extensions={"timeout": timeout}
        )
        try:
            response = await self._transports[engine.spec.proxy].handle_async_request(request)
        except (httpx.HTTPError, aiohttp.ClientError):
            if body.refused is not None:
                raise body.refused from None
            raise
        engine.connected()
        try:
            if not response.is_success:
                refused = await _beginning(engine, response)
                if (text := failed_generation(refused)) is not None:
                    return await reading.generated(engine, text)
                body.meter.sent_bytes = 0
                raise refusal_of(engine, response.status_code, response.headers, refused)
            engine.circuit.reached()
            self._wake()
            async with aclosing(_decoded(engine, response)) as chunks:
                end: BodyEnd | None = response.extensions.get(BODY_END)
                return await reading.read(engine, chunks, idle_s=silence_s if body.yields else None, end=end)
        except ErrorInBody as error:
            raise refusal_of(engine, error.status, response.headers, error.content, " within a success") from error
        finally:
            await response.aclose()


def _without(
    engine: EngineState, model: str, dialect: Dialect, refused: FieldsRefused, fields: frozenset[str]
) -> Dialect:
    """The dialect without the refused fields; where none can be left out, raises the refusal's other meaning."""
    adapted = dialect.without(fields, fixed=engine.spec.structured is not None)
    if adapted is None:
        raise refused.otherwise from None
    log.info("engine_adapted", engine=engine.label, model=model, refused=sorted(fields))
    return adapted


async def _each(checks: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run checks of engines together: a defect in an engine's check affects that engine alone."""
    for error in await asyncio.gather(*checks, return_exceptions=True):
        if isinstance(error, Exception):
            log.error("engine_check_broke", exc_info=error)


class _ListedModel(NamedTuple):
    name: str
    owner: str
    context_tokens: int | None


def _listed(content: bytes) -> list[_ListedModel]:
    """Returns the models of a list, in the forms that engines give it; raises ValueError."""
    body: Any = from_json(content)
    if isinstance(body, dict):
        named = cast("dict[str, Any]", body)
        body = named.get("data", named.get("models"))
    if not isinstance(body, list):
        raise ValueError("is no list")
    models: list[_ListedModel] = []
    for element in cast("list[object]", body)[:MODELS_MAX]:
        model: dict[str, Any] = cast("dict[str, Any]", element) if isinstance(element, dict) else {"id": element}
        name = next((model[key] for key in ("id", "name", "model") if isinstance(model.get(key), str)), "")
        if 0 < len(name) <= MODEL_CHARS_MAX:
            # Names of vLLM, of OpenRouter, and of llama.cpp, which has it among its metadata.
            metadata = cast("dict[str, Any]", model["meta"]) if isinstance(model.get("meta"), dict) else {}
            named = (model.get("max_model_len"), model.get("context_length"), metadata.get("n_ctx"))
            tokens = next((tokens for tokens in named if tokens is not None), None)
            context_tokens = tokens if isinstance(tokens, int) and 0 < tokens < 2**53 else None
            models.append(_ListedModel(name, str(model.get("owned_by"))[:MODEL_CHARS_MAX], context_tokens))
    if body and not models:
        raise ValueError("names no models")
    return models


async def _decoded(engine: EngineState, response: httpx.Response) -> AsyncGenerator[bytes]:
    """The body's bytes. Requested unencoded; a proxy may compress it all the same. Raises EngineUnavailable."""
    chunks = cast("AsyncIterator[bytes]", response.stream)
    # Other values, such as `utf-8`, are no encodings: clients ignore them.
    encodings = _ENCODINGS.findall(response.headers.get("Content-Encoding", ""))
    encoding = ", ".join(encodings).lower()
    if not encodings:
        async for chunk in chunks:
            yield chunk
        return
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise EngineUnavailable(
            f"{engine.label} answered in the encoding {encoding[:40]!r}, although it was asked for none"
        )
    decoder = None
    try:
        async for chunk in chunks:
            if decoder is None:
                # Some servers send deflate without the head of zlib, whose first four bits are those of an 8.
                bare = encoding == "deflate" and chunk[:1] and chunk[0] & 0x0F != 8
                decoder = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32)
            # In pieces, because a few bytes may decode to any number.
            while chunk and not decoder.eof:
                yield decoder.decompress(chunk, _DECODED_BYTES)
                chunk = decoder.unconsumed_tail
    except zlib.error as exc:
        raise EngineUnavailable(f"{engine.label} answered in the encoding {encoding}, which does not decode") from exc


async def _content(engine: EngineState, response: httpx.Response, bytes_max: int) -> bytes:
    content = bytearray()
    async with aclosing(_decoded(engine, response)) as chunks:
        async for chunk in chunks:
            content += chunk
            if len(content) > bytes_max:
                raise EngineUnavailable(f"has more than {bytes_max:,} bytes")
    return bytes(content)


async def _beginning(engine: EngineState, response: httpx.Response) -> bytes:
    """The first bytes of an error; fewer where the engine does not end it in time."""
    content = bytearray()
    with suppress(TimeoutError, httpx.HTTPError, aiohttp.ClientError, EngineUnavailable):
        async with asyncio.timeout(ERROR_WITHIN_S), aclosing(_decoded(engine, response)) as chunks:
            async for chunk in chunks:
                content += chunk
                if len(content) > ERROR_BYTES_MAX:
                    break
    return bytes(content[:ERROR_BYTES_MAX])
