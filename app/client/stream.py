"""Streams the events of one or several deliberations over HTTP; reconnects by cursor until the end."""

import asyncio
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

import httpx
from pydantic import ValidationError

from app.api.partial_text import Texts
from app.api.schemas import Problem
from app.client.events import AnyEvent, TextsOfSeveral, event_of
from app.deliberation.facts import TERMINAL_STATUS
from app.sse import Frame, SseDecoder

_CONNECT_TIMEOUT_S = 5.0
_TextsT = TypeVar("_TextsT", Texts, TextsOfSeveral)
_MEDIA = "text/event-stream"
# Statuses to retry beside 5xx.
_RETRIED = (408, 425, 429)
_CURSOR = re.compile(r"(.+)-([0-9]{1,19})", re.ASCII)
_HEARTBEATS_MISSED = 3


@dataclass(frozen=True, slots=True)
class Waits:
    """Waiting times in seconds.

    Args:
        first_s: The wait before the first reconnect, unless the gateway sets `retry:`. It doubles with every failure.
        most_s: The longest wait before a reconnect, unless the gateway sets a longer one.
        idle_s: The longest silence of a connection, until the gateway states its heartbeat; then three heartbeats.
        timeout_s: The longest silence over all attempts; None means no bound.
    """

    first_s: float = 1.0
    most_s: float = 30.0
    idle_s: float = 30.0
    timeout_s: float | None = 120.0


@dataclass(frozen=True, slots=True)
class Retry:
    """A reconnect that follows a broken connection.

    Args:
        attempt: The number of the reconnect since the last data, from 1.
        delay_s: The seconds until it.
        reason: What broke the connection.
    """

    attempt: int
    delay_s: float
    reason: str


class Follower:
    """Decides which frames are new, at which cursor the next connection resumes, and how long to wait for it.

    `cursor` is the id of the last event, None before the first.

    Args:
        waits: The waiting times.
        of: The ids of a multiplexed stream, which has `ended` with the last of these deliberations. With an empty
            collection it never ends. None is a stream of one deliberation.
    """

    def __init__(self, waits: Waits, of: Collection[str] | None = None) -> None:
        self.cursor: str | None = None
        self.ended = False
        self.idle_s = waits.idle_s
        self.duplicates = 0
        self._waits = waits
        self._retry_s = waits.first_s
        self._position: tuple[str, int] | None = None
        self._of_one = of is None
        self._unended = set(of or ())

    def feed(self, frame: Frame) -> bool:
        """Update the cursor, the delays, the heartbeat, and whether the stream has ended.

        Args:
            frame: The next frame of a connection.

        Returns:
            Whether the frame has new data.
        """
        if frame.retry_ms is not None:
            self._retry_s = frame.retry_ms / 1_000
        if frame.id is not None and not self._advance(frame.id):
            self.duplicates += 1
            return False
        match frame.event:
            case "stream.opened":
                heartbeat_s = frame.fields().get("heartbeat_s")
                if isinstance(heartbeat_s, int | float) and heartbeat_s > 0:
                    self.idle_s = _HEARTBEATS_MISSED * heartbeat_s
            case "stream.gap":
                # Another log may repeat sequence numbers, so later frames are not duplicates.
                self._position = None
            case kind if kind in TERMINAL_STATUS:
                self.ended = self._of_one or self._is_last(frame)
            case _:
                pass
        return bool(frame.data)

    def _is_last(self, frame: Frame) -> bool:
        ended = frame.fields().get("deliberation_id")
        if ended not in self._unended:
            return False
        self._unended.discard(ended)
        return not self._unended

    def _advance(self, id: str) -> bool:
        """Whether an id is new. Sequences increase within one epoch, the part before the last dash."""
        match = _CURSOR.fullmatch(id)
        position = None if match is None else (match[1], int(match[2]))
        last = self._position
        if position is not None and last is not None and position[0] == last[0] and position[1] <= last[1]:
            return False
        self.cursor, self._position = id, position
        return True

    def delay_s(self, attempt: int, retry_after_s: float | None, chance: float) -> float:
        """Compute the wait before a reconnect, at least the delay that the gateway set.

        Args:
            attempt: The number of the reconnect since the last data, from 1.
            retry_after_s: The seconds of a `Retry-After` header, if there is one.
            chance: A number in [0, 1), which adds up to half of the delay, so that viewers do not reconnect at once.

        Returns:
            The seconds to wait.
        """
        grown_s = min(self._retry_s * 2 ** min(attempt - 1, 16), max(self._waits.most_s, self._retry_s))
        return max(grown_s, retry_after_s or 0.0) * (1 + chance / 2)


class StreamRefused(Exception):
    """A final refusal of the gateway. `problem` is its problem document, None without one.

    Args:
        response: The refusal, whose content has been read.
    """

    def __init__(self, response: httpx.Response) -> None:
        try:
            self.problem = Problem.model_validate_json(response.content)
        except ValidationError:
            self.problem = None
        detail = self.problem.detail if self.problem else response.headers.get("Content-Type", "no content")
        super().__init__(f"{response.status_code}: {detail}")
        self.response = response


class StreamLost(Exception):
    """A connection broke, and no other one gave data within the timeout.

    Args:
        reason: What broke the last connection.
        response: The gateway's last refusal, if there was one.
    """

    def __init__(self, reason: str, response: httpx.Response | None = None) -> None:
        super().__init__(reason)
        self.response = response


@dataclass(eq=False, repr=False)
class _Stream(Generic[_TextsT]):
    """The events after a cursor, over any number of connections; `_of` is the follower's `of`."""

    _http: httpx.AsyncClient
    _path: str
    _filters: Mapping[str, str | Sequence[str]]
    _after: str | None
    texts: _TextsT
    _waits: Waits
    _on_retry: Callable[[Retry], None] | None
    _of: Collection[str] | None = None

    def __post_init__(self) -> None:
        self._follower = Follower(self._waits, self._of)
        self._frames = self._follow()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._frames.aclose()

    @property
    def cursor(self) -> str | None:
        """The cursor at which another stream resumes; `after` until an event with an id was yielded."""
        return self._follower.cursor or self._after

    @property
    def duplicates(self) -> int:
        """The count of events that the gateway sent again and that were not yielded."""
        return self._follower.duplicates

    def frames(self) -> AsyncIterator[Frame]:
        """Iterate over the same events as unparsed frames, without an update of `texts`.

        Returns:
            The frames of the stream, which iteration over the events shares.
        """
        return self._frames

    async def __aiter__(self) -> AsyncIterator[AnyEvent]:
        async for frame in self._frames:
            event = event_of(frame)
            self.texts.apply(event)
            yield event

    async def _follow(self) -> AsyncGenerator[Frame]:
        follower, loop = self._follower, asyncio.get_running_loop()
        attempt, alive_at_s = 0, loop.time()
        while True:
            try:
                async with aclosing(self._connection()) as frames:
                    async for frame in frames:
                        if frame is not None:
                            yield frame
                        attempt, alive_at_s = 0, loop.time()  # the consumer's time does not count as silence
                if follower.ended:
                    return
                broken = StreamLost("the connection was closed")
            except StreamLost as exc:
                broken = exc
            attempt += 1
            timeout_s = self._waits.timeout_s
            if timeout_s is not None and loop.time() - alive_at_s >= timeout_s:
                raise broken
            delay_s = follower.delay_s(attempt, _retry_after_s(broken.response), random.random())
            if self._on_retry is not None:
                self._on_retry(Retry(attempt, delay_s, str(broken)))
            await asyncio.sleep(delay_s)

    async def _connection(self) -> AsyncGenerator[Frame | None]:
        """The frames of one connection; None for other data. Raises StreamLost if a reconnect may help."""
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
                if await self._check_opened(response):
                    async for frame in self._read(response):
                        yield frame
            finally:
                await response.aclose()
        except TimeoutError as exc:
            raise StreamLost(f"no data for {self._follower.idle_s:g} s") from exc
        except (httpx.TransportError, httpx.DecodingError) as exc:
            unreachable = isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout)
            raise StreamLost("no gateway answers" if unreachable else "the connection broke") from exc

    async def _check_opened(self, response: httpx.Response) -> bool:
        if response.status_code == 204:
            self._follower.ended = True
            return False
        if response.status_code == 200 and response.headers.get("Content-Type", "").startswith(_MEDIA):
            return True
        async with asyncio.timeout(self._follower.idle_s):
            await response.aread()
        if response.status_code >= 500 or response.status_code in _RETRIED:
            raise StreamLost(f"the gateway answered {response.status_code}", response)
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
                if self._follower.feed(frame):
                    yield frame
                if frame.event == "stream.reconnect":
                    raise StreamLost(f"the gateway asks to reconnect: {frame.fields().get('reason')}")
                if self._follower.ended:
                    return


class EventStream(_Stream[Texts]):
    """The events of one deliberation: an async context manager and iterator.

    Each event is yielded once, in the order of the log, up to the terminal one. A cursor behind the terminal event
    yields none. Events about the stream itself (`stream.*`) are included; a snapshot follows a `stream.gap`. `texts`
    are rebuilt from the yielded events.

    The gateway reports `slow_consumer` to a slow viewer, which reads the log again. The end of the context closes the
    connection; the deliberation continues.

    Args:
        http: A client with the gateway's base URL and credentials.
        deliberation_id: The deliberation to follow.
        after: The cursor to resume after: `0` is the beginning, None starts with a snapshot.
        deltas: Whether texts come while they are written.
        types: The types of logged events to yield; empty selects all.
        waits: The waiting times; None takes the defaults of `Waits`.
        on_retry: Called before each reconnect.

    Raises:
        StreamRefused: While iterating: the gateway refuses the stream for good.
        StreamLost: While iterating: no connection gave data within `waits.timeout_s`.
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
        filters = ({} if deltas else {"deltas": "false"}) | ({"types": ",".join(types)} if types else {})
        path = f"/deliberations/{deliberation_id}/events"
        super().__init__(http, path, filters, after, Texts(), waits or Waits(), on_retry)


class MultiplexedStream(_Stream[TextsOfSeveral]):
    """The events of several deliberations in one stream with one cursor; otherwise like `EventStream`.

    `texts` are grouped by deliberation.

    Args:
        http: A client with the gateway's base URL and credentials.
        deliberation_ids: The deliberations to follow. Without ids the stream covers all deliberations of the tenant,
            including future ones, and never ends.
        statuses: Selects events by the deliberation's status before or after them; empty selects all.
        after: The cursor to resume after: `0` is the beginning, None starts with a snapshot.
        deltas: Whether texts come while they are written.
        types: The types of logged events to yield; empty selects all.
        waits: The waiting times; None takes the defaults of `Waits`.
        on_retry: Called before each reconnect.

    Raises:
        StreamRefused: While iterating: the gateway refuses the stream for good.
        StreamLost: While iterating: no connection gave data within `waits.timeout_s`.
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
        filters: dict[str, str | Sequence[str]] = {
            "deliberation": sorted(deliberation_ids),
            "status": list(statuses),
            **({"deltas": "true"} if deltas else {}),
            **({"types": ",".join(types)} if types else {}),
        }
        texts = TextsOfSeveral(all=not deliberation_ids)
        super().__init__(http, "/events", filters, after, texts, waits or Waits(), on_retry, deliberation_ids)


def _retry_after_s(response: httpx.Response | None) -> float | None:
    header = "" if response is None else response.headers.get("Retry-After", "")
    return float(header) if header.isascii() and header.isdigit() and len(header) < 6 else None
