"""Interfaces that adapters implement.

The journal is in `app.log.journal` (JetStream) and in `tests.fakes` (memory). Agents run in Ray Serve
(`serve_deployments.deployments`), in workers that pull from NATS (`serve_deployments.coordinator.task_queue`), or in
the coordinator's process (`serve_deployments.coordinator.local_agents`).
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from app.deliberation.calls import StageRequest
from app.deliberation.facts import Deleted, Fact, View


@dataclass(frozen=True, slots=True)
class Record:
    """One stored event: its subject, its sequence in the stream (from 1, increasing), and its bytes."""

    subject: str
    sequence: int
    data: bytes

    @property
    def tokens(self) -> list[str]:
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


@dataclass(frozen=True, slots=True)
class QueueState:
    """The progress of a durable consumer: everything up to a sequence is acknowledged, and `left` records are left."""

    acknowledged_to: int
    left: int


class Subscription(Protocol):
    async def close(self) -> None: ...


class Journal(Protocol):
    """Access to the log. Methods raise JournalUnavailable when it does not answer within the time-out."""

    async def append(self, tenant: str, fact: Fact | Deleted) -> Appended:
        """Write a fact unless its subject holds a fact: the first write wins, and all callers get the stored fact.

        An acceptance is created only when no record of its id exists; otherwise the result may be its tombstone, or
        whatever retention has left. After a time-out, refusal or reconnect the subject is read back, so that a
        returned result is certain.
        """
        ...

    async def write(self, subject: str, data: bytes) -> Appended:
        """As `append`, for bytes on a subject below `deliberations.`, `keys.`, `spends.` or `webhooks.`."""
        ...

    async def purge(self, tenant: str, deliberation_id: str) -> None:
        """Remove everything of a deliberation but its tombstone, also where it is copied by id. Idempotent.

        An announcement that is older than some minutes is left to `erase_announcement`.
        """
        ...

    async def erase_announcement(self, tenant: str, deliberation_id: str, ended_at: datetime) -> None:
        """Remove the announcement of an end, however old; for some minutes the log refuses another one. Idempotent."""
        ...

    async def publish_view(self, tenant: str, view: View, until: datetime | None = None) -> None:
        """Send a view without an acknowledgement; it may be lost. Never raises JournalUnavailable.

        The stream keeps a view for ten minutes, or until `until` when that is later.
        """
        ...

    async def facts(self, tenant: str, deliberation_id: str) -> list[Record]: ...

    async def last(self, patterns: Sequence[str]) -> list[Record]:
        """The last event on each subject that matches `patterns` (1,024 at most, of one stream), in stream order."""
        ...

    def read(self, pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        """Stored events on subjects matching `pattern` with a sequence above `after`, in order, views included."""
        ...

    async def subscribe(self, patterns: Sequence[str], deliver: Callable[[Record], None]) -> Subscription:
        """Deliver each event stored from now on, in order, at most once. No two patterns may match one subject."""
        ...

    def on_reconnect(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` whenever live events may have been missed; returns a function that ends this."""
        ...

    async def tell(self, subject: str, data: bytes) -> None:
        """Send a message beside the log to those who listen now. It may be lost; never raises JournalUnavailable."""
        ...

    async def listen(self, subject: str, deliver: Callable[[bytes], None]) -> None:
        """Deliver each message that others tell from now on, until the journal is closed."""
        ...

    async def state(self, subjects: str = "deliberations.>") -> StreamState: ...

    async def queue(self, *consumers: str) -> QueueState:
        """The state of durable consumers together; a consumer that does not exist has acknowledged nothing.

        Up to where the coordinators have acknowledged, every accepted deliberation has ended. Up to where the archive
        has, its database has all facts that lists depend on.
        """
        ...


class Control(Protocol):
    """Requests to other processes over the log's connection. No guarantee depends on their replies."""

    async def inquire(
        self, subject: str, data: bytes = b"", *, timeout_s: float, replies_max: int = 1
    ) -> list[dict[str, Any]]:
        """JSON replies to a request, at most `replies_max` within `timeout_s`; none when the log cannot be reached.

        Subjects: `control.coordinator` (every coordinator replica), `control.role.<ROLE>` (every agent replica, which
        asks its engines anew for the data `probe`), `control.webhooks` (every sender of webhooks).
        """
        ...

    async def ask(self, subject: str, data: bytes, *, timeout_s: float) -> bytes:
        """The first reply to a message; raises TimeoutError, and JournalUnavailable without a listener."""
        ...


class AgentsLost(Exception):
    """Agents cannot be asked now, or died: the calls that lack an outcome may be asked for again."""


class Agents(Protocol):
    async def run(self, request: StageRequest) -> None:
        """Have calls made; agents record each outcome in the log, first write wins, and the caller receives it there.

        Returns, or raises AgentsLost, when no more outcomes come: calls without one must be asked for again. Cancelling
        this stops no call: facts do.
        """
        ...


class Clock(Protocol):
    def now(self) -> datetime: ...
