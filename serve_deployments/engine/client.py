"""HTTP to engines, which are OpenAI-compatible servers: probes, and one completion per request, streamed or not.

httpx runs over an aiohttp transport, because its own rescans the whole pool on every request (docs/decisions/0013).
One client lives as long as its replica. `wire` holds the bodies of requests and replies.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

import aiohttp
import httpx
import structlog
from httpx_aiohttp import AiohttpTransport

from app.deliberation.calls import Call
from app.deliberation.errors import CallCancelled, CallTimeout, EngineRejected, EngineUnavailable
from app.deliberation.roles import without_credentials
from serve_deployments.engine.limits import Circuit, Hedges, RetryBudget
from serve_deployments.engine.reachability import CONNECT_TIMEOUT_S, Outage, cause_of, check_connection
from serve_deployments.engine.wire import (
    DETAIL_CHARACTERS,
    EngineReply,
    Meter,
    OnText,
    parse_reply,
    read_stream,
    request_body,
)

IDLE_TIMEOUT_S = 20.0
PROBE_TIMEOUT_S = 2.0
# Strangers may ask a gateway whether it is ready, and so its replicas for their engines, at any rate.
PROBE_FRESH_S = 1.0
# With a connection's 2 s, an engine's end is known within five seconds, also without calls.
CHECK_INTERVAL_S = 2.0
# Below the 5 s after which uvicorn, and so vLLM, closes an idle connection: a request must not meet that moment.
KEEPALIVE_S = 4.0
TIMEOUT_S = {"connect": CONNECT_TIMEOUT_S, "pool": CONNECT_TIMEOUT_S, "write": IDLE_TIMEOUT_S}
# `identity`, because the stream is read as it comes over the wire.
HEADERS = [("Content-Type", "application/json"), ("Accept", "*/*"), ("Accept-Encoding", "identity")]
# Engines (by `owned_by` in /v1/models) that take vLLM's own request fields; others might refuse them.
EXTENDED_ENGINES = frozenset({"vllm", "simulator"})
# The statuses of a server that is up and has no list of models.
_NO_SUCH_PATH = frozenset({404, 405, 501})
_NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout, aiohttp.ClientConnectorError)

BeforeSending = Callable[[], Coroutine[Any, Any, None]]

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class EngineState:
    """One engine of a role: its models, how many of this replica's requests it works on, whether it can be reached.

    `address` is its URL without credentials. `extended` says whether it takes vLLM's own request fields; None until a
    probe has succeeded. `outage` lasts from the first failed connection to the next response; `reached_s` is the
    monotonic time of the last one.
    """

    url: str
    address: str = field(init=False)
    completions: httpx.URL = field(init=False)
    models: tuple[str, ...] = ()
    extended: bool | None = None
    version: str | None = None
    in_flight: int = 0
    circuit: Circuit = field(default_factory=Circuit)
    outage: Outage | None = None
    reached_s: float = -math.inf

    def __post_init__(self) -> None:
        self.address = without_credentials(self.url)
        self.completions = httpx.URL(f"{self.url}/v1/chat/completions")

    @property
    def healthy(self) -> bool:
        """Whether its circuit is closed."""
        return self.circuit.opened_until_s is None

    def connected(self) -> None:
        """Record that a connection was made."""
        self.outage, self.reached_s = None, time.monotonic()

    def not_connected(self, error: Exception) -> None:
        """Record that no connection could be made; the first failure counts until the next connection."""
        if self.outage is None:
            self.outage = Outage(datetime.now(UTC), time.monotonic(), cause_of(error))
            log.warning("engine_unreachable", engine=self.address, cause=self.outage.cause)


class EngineUnreachable(EngineUnavailable):
    """No connection to the engine: nothing was sent, and nothing was spent."""


class RetryLater(EngineUnavailable):
    """The engine is overloaded; `after_s` is its Retry-After."""

    def __init__(self, detail: str, after_s: float) -> None:
        super().__init__(detail)
        self.after_s = after_s


class Engines:
    """The engines of one role behind one HTTP client."""

    def __init__(
        self, urls: Sequence[str], connections: int, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.engines = [EngineState(url) for url in urls]
        limits = httpx.Limits(
            max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=KEEPALIVE_S
        )
        self._transport = transport or AiohttpTransport(limits=limits)
        self._client = httpx.AsyncClient(transport=self._transport)
        self.retries = RetryBudget()
        self.hedges = Hedges()
        # Set whenever a circuit may have changed, for calls that wait for an engine.
        self._changed = asyncio.Event()
        self._probing: asyncio.Task[None] | None = None
        self._probe_due_s = 0.0

    async def close(self) -> None:
        """Close every connection."""
        if self._probing is not None:
            self._probing.cancel()
        await self._client.aclose()

    def choose(self, avoid: Sequence[EngineState]) -> EngineState | None:
        """The engine with the fewest requests, preferably none of `avoid`; None when no circuit admits a request."""
        admitted = [engine for engine in self.engines if engine.circuit.admits(time.monotonic())]
        fresh = [engine for engine in admitted if engine not in avoid] or admitted
        return min(fresh, key=lambda engine: (not engine.healthy, engine.in_flight), default=None)

    @contextmanager
    def requesting(self, engine: EngineState) -> Generator[None]:
        """Wraps a request to `engine`, so that its circuit learns of a cancelled request."""
        engine.circuit.begin()
        try:
            yield
        except (asyncio.CancelledError, CallCancelled):
            engine.circuit.abandoned()
            self._changed.set()
            raise

    async def wait_for_engine(self, avoid: Sequence[EngineState]) -> EngineState:
        """The engine that `choose` gives; waits, without a limit of its own, until a circuit admits a request."""
        while True:
            self._changed.clear()
            engine = self.choose(avoid)
            if engine is not None:
                return engine
            now_s = time.monotonic()
            next_s = min(engine.circuit.opened_until_s or now_s for engine in self.engines) - now_s
            with suppress(TimeoutError):
                # While a request probes, only its result can change anything.
                async with asyncio.timeout(next_s if next_s > 0 else None):
                    await self._changed.wait()

    def outages(self) -> Sequence[tuple[EngineState, Outage]]:
        """Each engine with its outage, if none can be connected to; empty while one of them can."""
        found = [(engine, engine.outage) for engine in self.engines if engine.outage is not None]
        return found if len(found) == len(self.engines) else ()

    async def watch(self) -> NoReturn:
        """Check every engine that has not responded lately, every two seconds. Runs until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            quiet_since_s = time.monotonic() - CHECK_INTERVAL_S
            await asyncio.gather(*(self._check(each) for each in self.engines if each.reached_s < quiet_since_s))

    async def _check(self, engine: EngineState) -> None:
        """Learn whether the engine can be connected to; after an outage probe it, which lets waiting calls go on."""
        try:
            await check_connection(engine.url)
        except (OSError, ValueError) as exc:
            if engine.outage is None:
                engine.not_connected(exc)
                self._failed(engine, unreachable=True)
        else:
            if engine.outage is not None:
                await self._probe(engine)

    async def probe(self) -> None:
        """Ask every engine for its models; an engine that does not answer becomes unhealthy."""
        await asyncio.gather(*(self._probe(engine) for engine in self.engines))

    async def probe_briefly(self, within_s: float) -> None:
        """As `probe`, but return after `within_s` at the latest; the probe goes on. It is at most a second old."""
        if self._probing is None or (self._probing.done() and time.monotonic() >= self._probe_due_s):
            self._probe_due_s = time.monotonic() + PROBE_FRESH_S
            self._probing = asyncio.get_running_loop().create_task(self.probe())
        await asyncio.wait({self._probing}, timeout=within_s)

    async def _probe(self, engine: EngineState) -> None:
        try:
            response = await self._client.get(f"{engine.url}/v1/models", timeout=PROBE_TIMEOUT_S)
            engine.connected()
            listed: Any = {"data": []} if response.status_code in _NO_SUCH_PATH else response.raise_for_status().json()
            models = listed["data"]
            engine.models = tuple(str(model["id"]) for model in models)
            engine.extended = any(model.get("owned_by") in EXTENDED_ENGINES for model in models)
            if engine.extended and (engine.version is None or not engine.healthy):
                engine.version = await self._version(engine)
            self._succeeded(engine)
        except (httpx.HTTPError, aiohttp.ClientError, ValueError, KeyError, TypeError, AttributeError) as exc:
            if _never_connected(exc):
                engine.not_connected(exc)
            else:
                log.warning("engine_unusable", engine=engine.address, error=type(exc).__name__)
            self._failed(engine, unreachable=True)

    async def _version(self, engine: EngineState) -> str | None:
        """The engine's version; None when it reports none."""
        response = await self._client.get(f"{engine.url}/version", timeout=PROBE_TIMEOUT_S)
        with suppress(ValueError, KeyError, TypeError):
            return str(response.json()["version"])
        return None

    def _succeeded(self, engine: EngineState) -> None:
        engine.circuit.succeeded()
        self._changed.set()

    def _failed(self, engine: EngineState, *, unreachable: bool) -> None:
        engine.circuit.failed(time.monotonic(), unreachable=unreachable)
        self._changed.set()

    async def model_of(self, engine: EngineState, named: str | None) -> str:
        """The model to ask for: `named`, else the first that the engine serves.

        Probes an engine of unknown kind, because a request must not lack the salt that keeps tenants apart.
        Raises EngineUnreachable or EngineUnavailable when the probe brings no model.
        """
        if engine.extended is None or (named is None and not engine.models):
            await self._probe(engine)
        if engine.extended is None or (named is None and not engine.models):
            kind = EngineUnavailable if engine.healthy else EngineUnreachable
            raise kind(f"{engine.address} names no model")
        return named or engine.models[0]

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
        before_sending: BeforeSending | None = None,
    ) -> EngineReply:
        """Send one request for `call`. With `on_text` it is streamed, and `on_text` gets each piece of text.

        `meter` holds the cost so far, also after a failure. `salt` is `cache_salt` of the tenant. `before_sending` is
        awaited right before the body is written; when it raises CallCancelled, nothing is sent.

        Raises EngineUnreachable (no connection), EngineUnavailable (broken off, 5xx, 429, nonsense), EngineRejected
        (4xx) or CallTimeout (no byte for 20 s). Cancelling closes the connection, so that the engine stops generating.
        """
        content = request_body(call, model, seed, stream=on_text is not None, salt=salt if engine.extended else None)
        body = _Body(content, before_sending)
        engine.in_flight += 1
        try:
            completion = await self._exchange(engine, body, trace, on_text, meter)
        except httpx.ReadTimeout as exc:
            self._failed(engine, unreachable=False)
            raise CallTimeout(f"{engine.address} was silent for {IDLE_TIMEOUT_S:g} seconds") from exc
        except (httpx.HTTPError, aiohttp.ClientError) as exc:
            # The transport reports some broken connections as never made, so only `written` shows what was sent.
            unreachable = not body.written and isinstance(exc, _NOT_CONNECTED)
            self._failed(engine, unreachable=unreachable)
            if unreachable:
                if _never_connected(exc):
                    engine.not_connected(exc)
                raise EngineUnreachable(f"{engine.address} cannot be reached: {cause_of(exc)}") from exc
            raise EngineUnavailable(f"{engine.address} refused or broke off: {type(exc).__name__} {exc}") from exc
        except (RetryLater, EngineRejected):
            # An engine that refuses is up.
            self._succeeded(engine)
            raise
        except EngineUnavailable:
            self._failed(engine, unreachable=False)
            raise
        finally:
            engine.in_flight -= 1
        self._succeeded(engine)
        return completion

    async def _exchange(
        self, engine: EngineState, body: "_Body", trace: str, on_text: OnText | None, meter: Meter
    ) -> EngineReply:
        named = [("X-Request-Id", trace), ("X-Call-Id", trace.rpartition(".")[0])]
        headers = [*HEADERS, *named, ("Content-Length", str(len(body.content)))]
        # Unstreamed, the first byte comes with the last: only the call's deadline ends a hung request.
        timeout = {**TIMEOUT_S, "read": IDLE_TIMEOUT_S if on_text else None}
        began_s = asyncio.get_running_loop().time()
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
                raise _refusal(engine.address, response, await _content(response))
            engine.circuit.reached()
            self._changed.set()
            if on_text is None:
                return parse_reply(engine.address, await _content(response), meter)
            return await read_stream(engine.address, response.aiter_raw(), on_text, began_s, meter)
        finally:
            await response.aclose()


@dataclass(slots=True)
class _Body:
    """A request's body, which `before_sending` may refuse after the connection was made, right before it is written."""

    content: bytes
    before_sending: BeforeSending | None
    refused: CallCancelled | None = None
    written: bool = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.before_sending is not None:
            try:
                await self.before_sending()
            except CallCancelled as refused:
                # Kept, because the transport replaces it by an error of its own.
                self.refused = refused
                raise
        self.written = True
        yield self.content


def _never_connected(error: Exception) -> bool:
    """Whether no connection was made; the transport calls connections that the engine closed by the same names."""
    cause = error.__cause__
    if isinstance(cause, aiohttp.ClientError):
        return isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    return isinstance(error, _NOT_CONNECTED)


async def _content(response: httpx.Response) -> bytes:
    # Requested unencoded: httpx's detection of encodings costs more than reading the body.
    return b"".join([part async for part in response.aiter_raw()])


def _refusal(url: str, response: httpx.Response, content: bytes) -> EngineUnavailable | EngineRejected:
    status = response.status_code
    detail = f"{url} answered {status}: {content.decode(errors='replace')[:DETAIL_CHARACTERS]}"
    if status == 429 or status == 503:
        after = response.headers.get("Retry-After", "")
        return RetryLater(detail, float(after) if after.isdigit() else 0.0)
    return EngineUnavailable(detail) if status >= 500 or status == 408 else EngineRejected(detail)
