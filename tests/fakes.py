"""In-memory fakes, held to the same contract tests as the adapters that they replace."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, assert_never

from app.deliberation.announcements import AgentResponse, Announcement
from app.deliberation.calls import Call, FactProblem, Usage
from app.deliberation.decider import (
    CloseStage,
    Done,
    Finish,
    OpenStage,
    Replay,
    RunStage,
    StrategyDefinition,
    decide,
    next_moment,
    waits_for_calls,
)
from app.deliberation.errors import JournalUnavailable, UnexpectedFact
from app.deliberation.facts import (
    FACT_SUFFIXES,
    Accepted,
    CallFinished,
    Deleted,
    Event,
    Fact,
    View,
    encode,
    is_acceptance,
    prefix,
    suffix,
)
from app.deliberation.fold import State, apply, fold
from app.deliberation.ports import Appended, QueueState, Record, StreamState
from app.deliberation.strategies import STRATEGIES
from tests.memory_inputs import MemoryInputs

# Tests of the core start without the schemas of HTTP.
if TYPE_CHECKING:
    from app.api.installation import LogFigures


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
    """A journal in a list. With `available = False` it raises JournalUnavailable."""

    epoch: str = "memory"
    available: bool = True
    refusal: str = ""
    records: list[Record] = field(default_factory=list[Record])
    replies: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    services: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict[str, Callable[[bytes], bytes]])
    callbacks: dict[str, list[Callable[[bytes], None]]] = field(
        default_factory=dict[str, list[Callable[[bytes], None]]]
    )
    refused: int = 0
    inputs: MemoryInputs = field(default_factory=MemoryInputs)
    announced: dict[str, Announcement] = field(default_factory=dict[str, Announcement])
    responses: dict[str, AgentResponse] = field(default_factory=dict[str, AgentResponse])
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

    async def append(self, tenant: str, fact: Fact | Deleted) -> Appended:
        subject, data = prefix(tenant, fact.deliberation_id), encode(fact)
        appended = None
        if isinstance(fact, Accepted):
            self._reachable()
            among = [record for record in self.records if subject_matches(f"{subject}.*", record.subject)]
            appended = next((Appended(record, created=record.data == data) for record in among), None)
        return appended or await self.write(f"{subject}.{suffix(fact)}", data)

    async def purge(self, tenant: str, deliberation_id: str) -> None:
        self._reachable()
        subject = prefix(tenant, deliberation_id)
        self.responses = {key: told for key, told in self.responses.items() if told.task_id != deliberation_id}
        self.records = [
            record
            for record in self.records
            if not subject_matches(f"{subject}.>", record.subject) or record.subject == f"{subject}.deleted"
        ]

    async def erase_announcement(self, tenant: str, deliberation_id: str, ended_at: datetime) -> None:
        self._reachable()
        self.announced.pop(deliberation_id, None)

    async def write(self, subject: str, data: bytes, *, accepts: Callable[[Record], bool] | None = None) -> Appended:
        self._reachable()
        for record in self.records:
            if record.subject == subject and (accepts is None or accepts(record)):
                return Appended(record, created=record.data == data)
        return Appended(self._store(subject, data), created=True)

    async def publish_view(self, tenant: str, view: View, until: datetime | None = None) -> None:
        if self.available:
            self._store(f"{prefix(tenant, view.deliberation_id)}.{suffix(view)}", encode(view))

    async def facts(self, tenant: str, deliberation_id: str) -> list[Record]:
        self._reachable()
        patterns = [f"{prefix(tenant, deliberation_id)}.{tail}" for tail in FACT_SUFFIXES]
        return [r for r in self.records if any(subject_matches(pattern, r.subject) for pattern in patterns)]

    async def last(self, patterns: Sequence[str]) -> list[Record]:
        self._reachable()
        latest = {r.subject: r for r in self.records if any(subject_matches(p, r.subject) for p in patterns)}
        return sorted(latest.values(), key=lambda record: record.sequence)

    async def announce(self, announced: Announcement) -> None:
        self._reachable()
        self.announced.setdefault(announced.deliberation_id, announced)

    async def respond(self, response: AgentResponse) -> None:
        self._reachable()
        self.responses.setdefault(f"{response.task_id}.{response.call_id}", response)

    async def complete_responses(self, deliberation_id: str, responses: Iterable[AgentResponse]) -> None:
        for each in responses:
            await self.respond(each)

    async def read(self, pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        self._reachable()
        found = [r for r in self.records if r.sequence > after and subject_matches(pattern, r.subject)]
        for record in found[:limit]:
            yield record

    async def subscribe(self, patterns: Sequence[str], deliver: Callable[[Record], None]) -> _MemorySubscription:
        self._reachable()
        subscription = _MemorySubscription(patterns, deliver, self._subscriptions)
        self._subscriptions.append(subscription)
        return subscription

    @property
    def listeners(self) -> int:
        return len(self._subscriptions)

    def on_reconnect(self, call: Callable[[], None]) -> Callable[[], None]:
        self._reconnect_calls.append(call)
        return lambda: self._reconnect_calls.remove(call)

    def reconnect(self) -> None:
        for call in list(self._reconnect_calls):
            call()

    async def state(self, subjects: str = "deliberations.>") -> StreamState:
        self._reachable()
        first = self.records[0].sequence if self.records else self._last_sequence + 1
        return StreamState(self.epoch, first, self._last_sequence)

    async def queue(self, *consumers: str) -> QueueState:
        self._reachable()
        ended = {record.subject.removesuffix("end") for record in self.records if record.tokens[3:] == ["end"]}
        accepted = [record for record in self.records if len(record.tokens) == 4 and is_acceptance(record.subject)]
        left = [each.sequence for each in accepted if each.subject.removesuffix(each.tokens[3]) not in ended]
        return QueueState(min(left, default=self._last_sequence + 1) - 1, len(left))

    async def inquire(
        self, subject: str, data: bytes = b"", *, timeout_s: float, replies_max: int = 1
    ) -> list[dict[str, Any]]:
        return self.replies.get(subject, [])[:replies_max]

    async def ask(self, subject: str, data: bytes, *, timeout_s: float) -> bytes:
        service = self.services.get(subject)
        if service is None:
            raise JournalUnavailable(f"nothing listens on {subject}")
        return service(data)

    async def tell(self, subject: str, data: bytes) -> None:
        if self.available:
            for pattern, callbacks in self.callbacks.items():
                for deliver in callbacks if subject_matches(pattern, subject) else ():
                    deliver(data)

    async def listen(self, subject: str, deliver: Callable[[bytes], None]) -> None:
        self.callbacks.setdefault(subject, []).append(deliver)

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def differences(self) -> list[str]:
        self._reachable()
        return []

    async def figures(self) -> "LogFigures":
        from app.api.installation import LogFigures

        self._reachable()
        return LogFigures(server_version=None, streams=(), consumers=())

    def forget(self, up_to_sequence: int) -> None:
        self.records = [record for record in self.records if record.sequence > up_to_sequence]


@dataclass
class FakeClock:
    present: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.present

    def advance(self, seconds: float) -> None:
        self.present += timedelta(seconds=seconds)


_COST = Usage(prompt_tokens=100, completion_tokens=50, calls=1)


@dataclass(frozen=True, slots=True)
class Reply:
    """A scripted agent's reply to a call: an answer, a problem, or, with neither, silence for ever.

    It takes `after_s` seconds and costs `usage`. Of replies due at one moment the one with the lowest `place` is first.
    """

    text: str | None = None
    problem: FactProblem | None = None
    after_s: float = 0.0
    usage: Usage = _COST
    place: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _PendingReply:
    due_at: datetime
    call: Call
    stage: int
    reply: Reply

    def outcome(self, deliberation_id: str, now: datetime) -> CallFinished:
        return CallFinished(
            deliberation_id=deliberation_id,
            ts=now,
            call_id=self.call.call_id,
            agent_id=self.call.agent_id,
            role=self.call.role,
            stage=self.stage,
            attempt=max(1, self.reply.usage.calls),
            text=self.reply.text,
            problem=self.reply.problem,
            model=self.call.model,
            usage=self.reply.usage,
            duration_ms=round(self.reply.after_s * 1_000),
        )


@dataclass
class ScriptedAgents:
    """A coordinator and its agents in one loop, without a log or an engine: a script answers the calls.

    The clock stands still until the next reply or deadline. `calls` holds every call made. An agent continues after
    its stage has closed, so that its outcome is late.
    """

    script: Callable[[Call], Reply]
    clock: FakeClock = field(default_factory=FakeClock)
    calls: list[Call] = field(default_factory=list[Call])
    strategies: Mapping[str, StrategyDefinition] = field(default_factory=lambda: STRATEGIES)
    _pending: list[_PendingReply] = field(default_factory=list[_PendingReply])

    def deliberate(self, facts: Sequence[Fact]) -> list[Fact]:
        """Returns these facts and all that follow, up to the end; raises what `fold` and `decide` raise."""
        state = fold(enumerate(facts, start=1))
        if state is None:
            raise UnexpectedFact("a deliberation begins with its acceptance")
        definition = self.strategies[state.specification.strategy]
        following = drive(state, definition, self.clock.now, self._run)
        return [*facts, *(event for event in following if isinstance(event, Fact))]

    def _run(self, state: State, run: RunStage) -> Iterator[CallFinished]:
        """The outcomes that come until the open stage may close, or the deliberation's deadline passes."""
        for call in run.calls:
            self.calls.append(call)
            reply = self.script(call)
            if reply.text is not None or reply.problem is not None:
                due_at = self.clock.now() + timedelta(seconds=reply.after_s)
                self._pending.append(_PendingReply(due_at, call, run.opened.stage, reply))
        while waits_for_calls(state, self.clock.now()):
            wake_at = next_moment(state, self.clock.now())
            first = min(self._pending, key=lambda pending: (pending.due_at, pending.reply.place), default=None)
            if first is None or first.due_at > wake_at:
                self.clock.present = wake_at
                continue
            self._pending.remove(first)
            self.clock.present = max(self.clock.now(), first.due_at)
            outcome = first.outcome(state.deliberation_id, self.clock.now())
            state = apply(state, outcome)
            yield outcome


def drive(
    state: State,
    definition: StrategyDefinition,
    clock: Callable[[], datetime],
    run: Callable[[State, RunStage], Iterable[CallFinished | View]],
) -> Iterator[Event]:
    """Every event that follows `state`, up to the end. Raises what `decide` and `apply` raise.

    `run` returns what a stage's calls bring until the stage may close: outcomes, and views if they are wanted. Each
    event is yielded before the next one is made, so that a clock may move in between.
    """
    sequence, replay = state.last_sequence, Replay()
    while True:
        stage: RunStage | None = None
        now = clock()
        decision = decide(state, now, definition, replay)
        assert decision == decide(state, now, definition), "a decision that goes on is that of a whole replay"
        match decision:
            case OpenStage(fact, stage):
                facts = (fact,)
            case CloseStage(fact) | Finish(fact):
                facts = (fact,)
            case RunStage():
                facts, stage = (), decision
            case Done():
                return
            case _:
                assert_never(decision)
        for fact in facts:
            sequence += 1
            yield fact
            state = apply(state, fact, sequence)
        for event in run(state, stage) if stage else ():
            sequence += 1
            yield event
            if isinstance(event, CallFinished):
                state = apply(state, event, sequence)
