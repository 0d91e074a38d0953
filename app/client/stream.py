"""Events over HTTP, of one deliberation or of several, reconnected by cursor until there are no more."""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

import httpx
from pydantic import ValidationError

from app.api.schemas import Problem
from app.client.follower import Follower, Retry, Waits
from app.client.reading import AnyEvent, event_of
from app.client.sse import Frame, SseDecoder
from app.client.texts import Texts, TextsOfSeveral

_CONNECT_TIMEOUT_S = 5.0
_MEDIA = "text/event-stream"
# Beside 5xx: what may be answered otherwise a moment later.
_RETRIED = (408, 425, 429)


class StreamRefused(Exception):
    """The gateway answered, and a later attempt would be answered alike. `problem` is None when it told none."""

    def __init__(self, response: httpx.Response) -> None:
        try:
            self.problem = Problem.model_validate_json(response.content)
        except ValidationError:
            self.problem = None
        told = self.problem.detail if self.problem else response.headers.get("Content-Type", "no content")
        super().__init__(f"{response.status_code}: {told}")
        self.response = response


class StreamLost(Exception):
    """Nothing was heard for as long as patience lasts. `response` is the last refusal, None without an answer."""

    def __init__(self, reason: str, response: httpx.Response | None) -> None:
        super().__init__(reason)
        self.response = response


class _Broken(Exception):
    """A connection ended before the stream did."""

    def __init__(self, reason: str, response: httpx.Response | None = None) -> None:
        super().__init__(reason)
        self.response = response


class _Stream(ABC):
    """Events after a cursor, over any number of connections."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        path: str,
        filters: Mapping[str, str | Sequence[str]],
        after: str | None,
        follower: Follower,
        waits: Waits,
        on_retry: Callable[[Retry], None] | None,
    ) -> None:
        self._http = http
        self._path = path
        self._filters = filters
        self._after = after
        self._waits = waits
        self._on_retry = on_retry
        self._follower = follower
        self._frames = self._followed()

    @abstractmethod
    def _apply(self, event: AnyEvent) -> None:
        """Take what an event says about texts."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._frames.aclose()

    @property
    def cursor(self) -> str | None:
        """Where to go on; `after` until an event with an id was given out."""
        return self._follower.cursor or self._after

    @property
    def duplicates(self) -> int:
        """Events that came again and were left out."""
        return self._follower.duplicates

    def frames(self) -> AsyncIterator[Frame]:
        """The same events as they came, unread; without `texts`."""
        return self._frames

    async def __aiter__(self) -> AsyncIterator[AnyEvent]:
        async for frame in self._frames:
            event = event_of(frame)
            self._apply(event)
            yield event

    async def _followed(self) -> AsyncGenerator[Frame]:
        follower, loop = self._follower, asyncio.get_running_loop()
        attempt, alive_at_s = 0, loop.time()
        while True:
            try:
                async with aclosing(self._connection()) as frames:
                    async for frame in frames:
                        if frame is not None:
                            yield frame
                        attempt, alive_at_s = 0, loop.time()  # how long the frame's taker needed is not silence
                if follower.ended:
                    return
                broken = _Broken("the connection was closed")
            except _Broken as exc:
                broken = exc
            attempt += 1
            patience_s = self._waits.patience_s
            if patience_s is not None and loop.time() - alive_at_s >= patience_s:
                raise StreamLost(str(broken), broken.response) from broken
            delay_s = follower.delay_s(attempt, _retry_after_s(broken.response), random.random())
            if self._on_retry is not None:
                self._on_retry(Retry(attempt, delay_s, str(broken)))
            await asyncio.sleep(delay_s)

    async def _connection(self) -> AsyncGenerator[Frame | None]:
        """What one connection shows; None is a sign of life. Raises _Broken where another one may follow."""
        cursor = self._follower.cursor
        after = {"after": self._after} if cursor is None and self._after is not None else {}
        params = {**self._filters, **after}
        headers = {"Accept": _MEDIA} | ({} if cursor is None else {"Last-Event-ID": cursor})
        timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S, pool=_CONNECT_TIMEOUT_S)
        request = self._http.build_request("GET", self._path, params=params, headers=headers, timeout=timeout)
        try:
            async with asyncio.timeout(self._follower.idle_s):
                response = await self._http.send(request, stream=True)
            try:
                if await self._opened(response):
                    async for frame in self._read(response):
                        yield frame
            finally:
                await response.aclose()
        except TimeoutError as exc:
            raise _Broken(f"nothing was heard for {self._follower.idle_s:g} s") from exc
        except (httpx.TransportError, httpx.DecodingError) as exc:
            raise _Broken(_told(exc)) from exc

    async def _opened(self, response: httpx.Response) -> bool:
        """Whether a response is a stream; False when there is nothing left to stream."""
        if response.status_code == 204:
            self._follower.ended = True
            return False
        if response.status_code == 200 and response.headers.get("Content-Type", "").startswith(_MEDIA):
            return True
        async with asyncio.timeout(self._follower.idle_s):
            await response.aread()
        if response.status_code >= 500 or response.status_code in _RETRIED:
            raise _Broken(f"the gateway answered {response.status_code}", response)
        raise StreamRefused(response)

    async def _read(self, response: httpx.Response) -> AsyncGenerator[Frame | None]:
        decoder, chunks = SseDecoder(), response.aiter_bytes()
        while True:
            try:
                async with asyncio.timeout(self._follower.idle_s):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            yield None
            for frame in decoder.feed(chunk):
                if self._follower.take(frame):
                    yield frame
                if frame.event == "stream.reconnect":
                    raise _Broken(f"the gateway asks to reconnect: {frame.fields().get('reason')}")
                if self._follower.ended:
                    return


class EventStream(_Stream):
    """The events of one deliberation after the cursor `after`: `0` is the beginning, None begins with a snapshot.

    An async context manager and an async iterator: events as they are known to this version, in the order of the log,
    each once, until the terminal one; nothing when that was before the cursor. What says something about the stream
    itself (`stream.*`) is among them; after a `stream.gap` a snapshot tells the state. `cursor` is the id of the last
    event that was given out: kept with what was made of the events, it is where another stream goes on. `texts` are
    rebuilt from what was given out.

    Nothing is read ahead: whoever is slow is told so by the gateway, and reads the log again. Raises StreamRefused, and
    StreamLost when patience is over. Leaving the context closes the connection, and never stops the deliberation.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        deliberation_id: str,
        *,
        after: str | None = None,
        deltas: bool = True,
        types: Sequence[str] = (),
        waits: Waits | None = None,
        on_retry: Callable[[Retry], None] | None = None,
    ) -> None:
        """`http` has the gateway's base URL and credentials. `types` are logged ones; empty wants all of them."""
        waits = waits or Waits()
        filters = ({} if deltas else {"deltas": "false"}) | ({"types": ",".join(types)} if types else {})
        path = f"/deliberations/{deliberation_id}/events"
        super().__init__(http, path, filters, after, Follower(waits), waits, on_retry)
        self.texts = Texts()

    def _apply(self, event: AnyEvent) -> None:
        self.texts.apply(event)


class MultiplexedStream(_Stream):
    """The events of several deliberations in one stream, over one cursor; otherwise as an `EventStream`.

    Without ids those of all the tenant's deliberations, also of those that are yet to come: such a stream never ends.
    `statuses` are those that a deliberation has before an event or after it. `texts` are by deliberation.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        deliberation_ids: Collection[str] = (),
        *,
        statuses: Sequence[str] = (),
        after: str | None = None,
        deltas: bool = False,
        types: Sequence[str] = (),
        waits: Waits | None = None,
        on_retry: Callable[[Retry], None] | None = None,
    ) -> None:
        """`http` has the gateway's base URL and credentials. `types` are logged ones; empty wants all of them."""
        waits = waits or Waits()
        filters: dict[str, str | Sequence[str]] = {
            "deliberation": sorted(deliberation_ids),
            "status": list(statuses),
            **({"deltas": "true"} if deltas else {}),
            **({"types": ",".join(types)} if types else {}),
        }
        super().__init__(http, "/events", filters, after, Follower(waits, deliberation_ids), waits, on_retry)
        self.texts = TextsOfSeveral(all=not deliberation_ids)

    def _apply(self, event: AnyEvent) -> None:
        self.texts.apply(event)


def _retry_after_s(response: httpx.Response | None) -> float | None:
    given = "" if response is None else response.headers.get("Retry-After", "")
    return float(given) if given.isascii() and given.isdigit() and len(given) < 6 else None


def _told(exc: httpx.RequestError) -> str:
    match exc:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return "no gateway answers"
        case _:
            return "the connection broke"
