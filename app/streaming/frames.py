"""Events as SSE frames, encoded once, and the bounded ring in which all viewers of a deliberation read them."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, get_args

import structlog
from sse_starlette import ServerSentEvent

from app.api.cursor import Cursor
from app.deliberation.facts import TERMINAL_STATUS, Deleted, Event, View, event_type
from app.deliberation.ports import Record

CHUNK_BYTES = 32_768

log = structlog.get_logger(__name__)

EVENT_TYPES: frozenset[str] = frozenset(event.model_fields["type"].default for event in get_args(Event))
"""Every type of event that the log holds."""
VIEW_TYPES: frozenset[str] = frozenset(view.model_fields["type"].default for view in get_args(View))
"""Those of them that decide nothing."""
DELETED: str = Deleted.model_fields["type"].default
"""The type of a tombstone."""


@dataclass(frozen=True, slots=True)
class EventFrame:
    """One event as SSE bytes, ready to be sent to any number of viewers."""

    sequence: int
    type: str
    data: bytes
    deliberation_id: str

    @property
    def ends(self) -> bool:
        """Whether nothing is shown after this event."""
        return self.type in TERMINAL_STATUS or self.type == DELETED


def frame_of(epoch: str, record: Record) -> EventFrame | None:
    """The SSE frame of a stored event; None for bytes that are no event, which no viewer is shown."""
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
    """The newest frames of one deliberation: complete above `floor` and up to `last`."""

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
        """Add a frame that is newer than all others; the oldest ones go when there are too many, or too many bytes."""
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
        """The frames above `sequence`, which must not be below `floor`."""
        return self._frames[bisect_right(self._sequences, sequence) :]


class Filter(Protocol):
    """Which events a viewer is shown. Asked in the order of the log."""

    def takes(self, frame: EventFrame) -> bool:
        """Whether this event is wanted."""
        ...


@dataclass(frozen=True, slots=True)
class EventSelection:
    """Which logged events a viewer wants: with or without deltas, and of these `types` alone unless it is None."""

    deltas: bool = True
    types: frozenset[str] | None = None

    def takes(self, frame: EventFrame) -> bool:
        """Whether this event is wanted."""
        return (self.deltas or frame.type != "call.delta") and (self.types is None or frame.type in self.types)


def control_frame(kind: str, data: bytes) -> bytes:
    """A frame that no cursor can point to: it says something about the stream, and is not in the log."""
    return ServerSentEvent(data.decode(), event=kind, sep="\n").encode()


def event_in(control: bytes) -> bytes:
    """The event in a frame that `control_frame` made."""
    return control.partition(b"\ndata: ")[2].removesuffix(b"\n\n")


def gathered(frames: Sequence[bytes], bytes_max: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Frames in as few pieces as possible; one that is larger than `bytes_max` as it is, since viewers share it."""
    parts: list[bytes] = []
    for frame in frames:
        if parts and sum(map(len, parts)) + len(frame) > bytes_max:
            yield b"".join(parts)
            parts.clear()
        parts.append(frame)
    if parts:
        yield b"".join(parts)


def cursor_frame(epoch: str, sequence: int) -> bytes:
    """A frame without an event: it only moves the cursor past what was filtered out (HTML standard, §9.2.6)."""
    return ServerSentEvent(id=str(Cursor(epoch, sequence)), sep="\n").encode()


@dataclass(slots=True)
class FrameBatcher:
    """Frames on their way to one viewer. `behind` is the last event that it was not shown, if none was sent since."""

    wanted: Filter
    epoch: str
    behind: int | None = None

    def chunks(self, frames: Sequence[EventFrame], bytes_max: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The wanted frames in as few pieces as possible, none larger than `bytes_max` unless one frame is."""
        parts: list[bytes] = []
        size = 0
        for frame in frames:
            if not self.wanted.takes(frame):
                self.behind = frame.sequence
                continue
            if size and size + len(frame.data) > bytes_max:
                yield b"".join(parts)
                parts, size = [], 0
            self.behind = None
            parts.append(frame.data)
            size += len(frame.data)
        if parts:
            yield b"".join(parts)

    def moved(self) -> bytes:
        """What moves the cursor past the events that were not shown; nothing when it need not be moved."""
        if self.behind is None:
            return b""
        moved, self.behind = cursor_frame(self.epoch, self.behind), None
        return moved
