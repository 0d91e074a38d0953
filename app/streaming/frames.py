"""Events as SSE frames, encoded once for all viewers; the ring that holds them; the filters that select them."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

import structlog
from sse_starlette import ServerSentEvent

from app.api.cursor import Cursor
from app.deliberation.facts import TERMINAL_STATUS, Deleted, Event, View, event_type
from app.deliberation.ports import Record

CHUNK_BYTES = 32_768

log = structlog.get_logger(__name__)

EVENT_TYPES: frozenset[str] = frozenset(event.model_fields["type"].default for event in get_args(Event))
VIEW_TYPES: frozenset[str] = frozenset(view.model_fields["type"].default for view in get_args(View))
DELETED: str = Deleted.model_fields["type"].default


@dataclass(frozen=True, slots=True)
class EventFrame:
    sequence: int
    type: str
    data: bytes
    deliberation_id: str

    @property
    def ends(self) -> bool:
        return self.type in TERMINAL_STATUS or self.type == DELETED


def frame_of(epoch: str, record: Record) -> EventFrame | None:
    """The SSE frame of a stored event; None, with a warning, for bytes that are no event."""
    data = record.data
    try:
        kind = event_type(data)
    except ValueError:
        log.warning("record_is_no_event", subject=record.subject, sequence=record.sequence)
        return None
    if b"\n" in data or b"\r" in data:
        log.warning("record_breaks_framing", subject=record.subject, sequence=record.sequence)
        return None
    head = f"id: {Cursor(epoch, record.sequence)}\nevent: {kind}\ndata: "
    return EventFrame(record.sequence, kind, head.encode() + data + b"\n\n", record.tokens[2])


class Ring:
    """A bounded buffer of the newest frames of a watch: complete above `floor` and up to `last`."""

    def __init__(self, floor: int, frames_max: int, bytes_max: int) -> None:
        self.floor = floor
        self.last = floor
        self._frames_max = frames_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._sequences: list[int] = []
        self._frames: list[EventFrame] = []

    def __len__(self) -> int:
        return len(self._frames)

    def push(self, frame: EventFrame) -> None:
        self.last = frame.sequence
        self._frames.append(frame)
        self._sequences.append(frame.sequence)
        self._bytes += len(frame.data)
        surplus = 0
        while len(self._frames) - surplus > self._frames_max or (
            self._bytes > self._bytes_max and len(self._frames) - surplus > 1
        ):
            self._bytes -= len(self._frames[surplus].data)
            self.floor = self._sequences[surplus]
            surplus += 1
        del self._frames[:surplus], self._sequences[:surplus]

    def after(self, sequence: int) -> Sequence[EventFrame]:
        return self._frames[bisect_right(self._sequences, sequence) :]


@dataclass(frozen=True, slots=True)
class EventSelection:
    """Logged events by type: with or without deltas, and only these `types` unless it is None."""

    deltas: bool = True
    types: frozenset[str] | None = None

    @property
    def texts(self) -> bool:
        return self.deltas and (self.types is None or "call.delta" in self.types)

    def takes(self, frame: EventFrame) -> bool:
        return (
            bool(frame.data)
            and (self.deltas or frame.type != "call.delta")
            and (self.types is None or frame.type in self.types)
        )


def control_frame(kind: str, data: bytes) -> bytes:
    return ServerSentEvent(data.decode(), event=kind, sep="\n").encode()


def event_in(control: bytes) -> bytes:
    return control.partition(b"\ndata: ")[2].removesuffix(b"\n\n")


def cursor_frame(epoch: str, sequence: int) -> bytes:
    """A frame with an id alone: it sets the client's cursor without an event (HTML standard, §9.2.6)."""
    return ServerSentEvent(id=str(Cursor(epoch, sequence)), sep="\n").encode()


def chunked(frames: Iterable[bytes], bytes_max: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Frames joined to chunks of at most `bytes_max`; a larger frame is passed on as it is, since viewers share it."""
    parts: list[bytes] = []
    size = 0
    for frame in frames:
        if size and size + len(frame) > bytes_max:
            yield b"".join(parts)
            parts, size = [], 0
        parts.append(frame)
        size += len(frame)
    if parts:
        yield b"".join(parts)


@dataclass(slots=True)
class FrameBatcher:
    """Selects and chunks one viewer's frames; `skipped` is the last event left out, None after a later event."""

    takes: Callable[[EventFrame], bool]
    epoch: str
    skipped: int | None = None

    def chunks(self, frames: Sequence[EventFrame], bytes_max: int = CHUNK_BYTES) -> Iterator[bytes]:
        selected: list[bytes] = []
        for frame in frames:
            if self.takes(frame):
                self.skipped = None
                selected.append(frame.data)
            else:
                self.skipped = frame.sequence
        return chunked(selected, bytes_max)

    def cursor_update(self) -> bytes:
        if self.skipped is None:
            return b""
        update, self.skipped = cursor_frame(self.epoch, self.skipped), None
        return update
