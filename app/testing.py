"""Fakes that are product code: held to the same contract tests as what they stand for."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import FACT_SUFFIXES, End, Fact, View, encode, prefix, suffix
from app.deliberation.ports import Appended, Record, StreamState


def subject_matches(pattern: str, subject: str) -> bool:
    """Whether a NATS subject pattern (`*` one token, `>` the rest) matches a literal subject."""
    wanted, given = pattern.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(given) > place
        if place >= len(given) or token not in ("*", given[place]):
            return False
    return len(wanted) == len(given)


@dataclass(eq=False)
class _MemorySubscription:
    patterns: Sequence[str]
    deliver: Callable[[Record], None]
    registry: list["_MemorySubscription"]

    async def close(self) -> None:
        if self in self.registry:
            self.registry.remove(self)


@dataclass
class InMemoryJournal:
    """A journal in a list. `available = False` makes it refuse like a log that cannot be reached."""

    epoch: str = "memory"
    available: bool = True
    records: list[Record] = field(default_factory=list[Record])
    replies: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    announced: dict[str, End] = field(default_factory=dict[str, End])
    _last_sequence: int = 0
    _subscriptions: list[_MemorySubscription] = field(default_factory=list[_MemorySubscription])
    _reconnect_calls: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def _reachable(self) -> None:
        if not self.available:
            raise JournalUnavailable("the log cannot be reached")

    def _store(self, subject: str, data: bytes) -> Record:
        self._last_sequence += 1
        record = Record(subject, self._last_sequence, data)
        self.records.append(record)
        for subscription in list(self._subscriptions):
            if any(subject_matches(pattern, subject) for pattern in subscription.patterns):
                subscription.deliver(record)
        return record

    async def append(self, tenant: str, fact: Fact) -> Appended:
        """See `ports.Journal.append`."""
        self._reachable()
        subject = f"{prefix(tenant, fact.deliberation_id)}.{suffix(fact)}"
        for record in self.records:
            if record.subject == subject:
                return Appended(record, mine=record.data == encode(fact))
        return Appended(self._store(subject, encode(fact)), mine=True)

    async def publish_view(self, tenant: str, view: View) -> None:
        """See `ports.Journal.publish_view`."""
        if self.available:
            self._store(f"{prefix(tenant, view.deliberation_id)}.{suffix(view)}", encode(view))

    async def facts(self, tenant: str, deliberation_id: str) -> list[Record]:
        """See `ports.Journal.facts`."""
        self._reachable()
        patterns = [f"{prefix(tenant, deliberation_id)}.{tail}" for tail in FACT_SUFFIXES]
        return [r for r in self.records if any(subject_matches(pattern, r.subject) for pattern in patterns)]

    async def last(self, patterns: Sequence[str]) -> list[Record]:
        """See `ports.Journal.last`."""
        self._reachable()
        latest = {r.subject: r for r in self.records if any(subject_matches(p, r.subject) for p in patterns)}
        return sorted(latest.values(), key=lambda record: record.sequence)

    async def announce(self, end: End) -> None:
        """See `ports.Journal.announce`; what was told is in `announced`."""
        self._reachable()
        self.announced[end.deliberation_id] = end

    async def read(self, pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        """See `ports.Journal.read`."""
        self._reachable()
        found = [r for r in self.records if r.sequence > after and subject_matches(pattern, r.subject)]
        for record in found[:limit]:
            yield record

    async def subscribe(self, patterns: Sequence[str], deliver: Callable[[Record], None]) -> _MemorySubscription:
        """See `ports.Journal.subscribe`."""
        self._reachable()
        subscription = _MemorySubscription(patterns, deliver, self._subscriptions)
        self._subscriptions.append(subscription)
        return subscription

    def on_reconnect(self, call: Callable[[], None]) -> Callable[[], None]:
        """See `ports.Journal.on_reconnect`."""
        self._reconnect_calls.append(call)
        return lambda: self._reconnect_calls.remove(call)

    def reconnect(self) -> None:
        """Act as after a lost connection: subscribers are told that they may have missed something."""
        for call in list(self._reconnect_calls):
            call()

    async def state(self) -> StreamState:
        """See `ports.Journal.state`."""
        self._reachable()
        first = self.records[0].sequence if self.records else self._last_sequence + 1
        return StreamState(self.epoch, first, self._last_sequence)

    async def inquire(self, subject: str, *, timeout_s: float, replies_max: int = 1) -> list[dict[str, Any]]:
        """See `ports.Control.inquire`; replies are set in `replies`."""
        return self.replies.get(subject, [])[:replies_max]

    def forget(self, up_to_sequence: int) -> None:
        """Drop old records, as retention does."""
        self.records = [record for record in self.records if record.sequence > up_to_sequence]


@dataclass
class FakeClock:
    """A clock that moves when told."""

    present: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """The set time."""
        return self.present

    def advance(self, seconds: float) -> None:
        """Move on."""
        self.present += timedelta(seconds=seconds)
