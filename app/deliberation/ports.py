"""What the edges must offer: the log of facts, as `app.log.journal` (JetStream) and `app.testing` (memory) adapt it."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from app.deliberation.facts import Deleted, End, Fact, View


@dataclass(frozen=True, slots=True)
class Record:
    """One stored event: its subject, its place in the stream (from 1, global and increasing), and its bytes."""

    subject: str
    sequence: int
    data: bytes

    @property
    def tokens(self) -> list[str]:
        """The subject's tokens: `deliberations, <tenant>, <id>, …`."""
        return self.subject.split(".")


@dataclass(frozen=True, slots=True)
class Appended:
    """The fact on a subject after an append; `created` is true when these are the bytes that were offered."""

    record: Record
    created: bool


@dataclass(frozen=True, slots=True)
class StreamState:
    """The log's incarnation and bounds. `epoch` changes when the stream is created anew; sequences then restart."""

    epoch: str
    first_sequence: int
    last_sequence: int


class Subscription(Protocol):
    """A live subscription."""

    async def close(self) -> None:
        """Stop delivering. Idempotent."""
        ...


class Journal(Protocol):
    """The log. Every method raises JournalUnavailable when the log does not answer within its time-out."""

    async def append(self, tenant: str, fact: Fact | Deleted) -> Appended:
        """Write a fact where nothing stands yet; first write wins, and who loses gets what stands there.

        An acceptance wins only where nothing else of its id stands: its loser may get the tombstone, or what retention
        has left.

        Doubtful writes (time-out, refusal, reconnect) are resolved by reading the subject back: an answer is certain.
        """
        ...

    async def write(self, subject: str, data: bytes) -> Appended:
        """As `append`, of bytes on a subject of their own, below `deliberations.`, `keys.` or `webhooks.`."""
        ...

    async def purge(self, tenant: str, deliberation_id: str) -> None:
        """Remove everything of a deliberation but its tombstone, also where it is copied by id. Idempotent."""
        ...

    async def publish_view(self, tenant: str, view: View, until: datetime | None = None) -> None:
        """Send a view without waiting for the log's word; it may be lost. Never raises JournalUnavailable.

        It is kept for ten minutes, and where it is told `until` when it is needed, no shorter than that.
        """
        ...

    async def facts(self, tenant: str, deliberation_id: str) -> list[Record]:
        """Every fact of one deliberation in stream order; empty when there is none."""
        ...

    async def last(self, patterns: Sequence[str]) -> list[Record]:
        """The last event on each stored subject that matches one of `patterns` (at most 1,024), in stream order.

        All patterns are of one stream: their first tokens are the same.
        """
        ...

    async def announce(self, end: End) -> None:
        """Tell the services around this one that a deliberation ended; telling twice is the same as once."""
        ...

    def read(self, pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        """Stored events on subjects matching `pattern` with a sequence above `after`, in order, views included."""
        ...

    async def subscribe(self, patterns: Sequence[str], deliver: Callable[[Record], None]) -> Subscription:
        """Call `deliver` with each event that is stored from now on, in their order over all patterns.

        At most once: a reconnect may lose some. No two patterns may match one subject.
        """
        ...

    def on_reconnect(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` whenever live events may have been missed; returns a function that ends this."""
        ...

    async def state(self) -> StreamState:
        """The stream's epoch and bounds."""
        ...

    async def ack_floor(self) -> int:
        """A sequence up to which all that was accepted has ended; 0 when nobody knows of any."""
        ...


class Control(Protocol):
    """Questions to the other side of the log; nothing durable depends on their answers."""

    async def inquire(self, subject: str, *, timeout_s: float, replies_max: int = 1) -> list[dict[str, Any]]:
        """JSON replies to a question, at most `replies_max` of them and none later than `timeout_s`.

        Empty when nobody answers or the log cannot be reached.
        Subjects: `control.coordinator` (every coordinator replica), `control.role.<ROLE>` (every agent replica),
        `control.webhooks` (every sender of webhooks).
        """
        ...


class Clock(Protocol):
    """Time as an argument."""

    def now(self) -> datetime:
        """The present, in UTC."""
        ...
