"""Interfaces that adapters implement: the journal in `app.log.journal` (JetStream) and in `app.testing` (memory)."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from app.deliberation.facts import Deleted, End, Fact, View


@dataclass(frozen=True, slots=True)
class Record:
    """One stored event: its subject, its sequence in the stream (from 1, increasing), and its bytes."""

    subject: str
    sequence: int
    data: bytes

    @property
    def tokens(self) -> list[str]:
        """The subject's tokens: `deliberations, <tenant>, <id>, …`."""
        return self.subject.split(".")


@dataclass(frozen=True, slots=True)
class Appended:
    """The record on a subject after an append; `created` is True when it holds the bytes that were offered."""

    record: Record
    created: bool


@dataclass(frozen=True, slots=True)
class StreamState:
    """The log's epoch and bounds. `epoch` changes when the stream is created anew and its sequences restart."""

    epoch: str
    first_sequence: int
    last_sequence: int


class Subscription(Protocol):
    """A live subscription."""

    async def close(self) -> None:
        """Stop delivering. Idempotent."""
        ...


class Journal(Protocol):
    """Access to the log. Methods raise JournalUnavailable when it does not answer within the time-out."""

    async def append(self, tenant: str, fact: Fact | Deleted) -> Appended:
        """Write a fact unless its subject holds one already; the first write wins, and all callers get the stored one.

        An acceptance is created only when no record of its id exists; otherwise the result may be its tombstone, or
        whatever retention has left. After a time-out, refusal or reconnect the subject is read back, so that a
        returned result is certain.
        """
        ...

    async def write(self, subject: str, data: bytes) -> Appended:
        """As `append`, for bytes on a subject below `deliberations.`, `keys.` or `webhooks.`."""
        ...

    async def purge(self, tenant: str, deliberation_id: str) -> None:
        """Remove everything of a deliberation but its tombstone, also where it is copied by id. Idempotent."""
        ...

    async def publish_view(self, tenant: str, view: View, until: datetime | None = None) -> None:
        """Send a view without waiting for an acknowledgement; it may be lost. Never raises JournalUnavailable.

        It is kept for ten minutes, or until `until` when that is later.
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
        """Publish that a deliberation ended, for services outside this one. Idempotent."""
        ...

    def read(self, pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        """Stored events on subjects matching `pattern` with a sequence above `after`, in order, views included."""
        ...

    async def subscribe(self, patterns: Sequence[str], deliver: Callable[[Record], None]) -> Subscription:
        """Call `deliver` with each event stored from now on, in stream order over all patterns.

        Delivery is at most once: a reconnect may lose events. No two patterns may match one subject.
        """
        ...

    def on_reconnect(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` whenever live events may have been missed; returns a function that ends this."""
        ...

    async def state(self) -> StreamState:
        """The stream's epoch and bounds."""
        ...

    async def ack_floor(self) -> int:
        """A sequence up to which every accepted deliberation has ended; 0 when none is known."""
        ...


class Control(Protocol):
    """Requests to other processes over the log's connection. No guarantee depends on their replies."""

    async def inquire(self, subject: str, *, timeout_s: float, replies_max: int = 1) -> list[dict[str, Any]]:
        """JSON replies to a request, at most `replies_max` within `timeout_s`; none when the log cannot be reached.

        Subjects: `control.coordinator` (every coordinator replica), `control.role.<ROLE>` (every agent replica),
        `control.webhooks` (every sender of webhooks).
        """
        ...


class Clock(Protocol):
    """Time as an argument."""

    def now(self) -> datetime:
        """The present, in UTC."""
        ...
