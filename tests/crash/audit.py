"""Invariants of a deliberation after any fault, checked on the raw stream and the requests that reached the engine."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile

from app.deliberation.announcements import Announcement, announcement
from app.deliberation.decider import Finish, decide
from app.deliberation.facts import (
    CallFinished,
    Completed,
    End,
    Fact,
    StageClosed,
    Verdict,
    decode,
)
from app.deliberation.fold import State, fold
from app.deliberation.strategies import STRATEGIES
from tests.crash.stack import TENANT, Stack

CUT_WITHIN_S = 0.25


@dataclass
class Audit:
    stack: Stack
    deliberation_id: str
    in_flight: int = 0
    faults: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.prefix = f"deliberations.{TENANT}.{self.deliberation_id}."
        stored = self.stack.server.log.matching(f"{self.prefix}>")
        self.events = [(each, decode(each.data)) for each in stored]
        self.facts: list[tuple[int, Fact]] = [
            (each.sequence, event) for each, event in self.events if isinstance(event, Fact)
        ]
        self.ends = [fact for _, fact in self.facts if isinstance(fact, End)]
        self.before_end = list(takewhile(lambda fact: not isinstance(fact, End), (fact for _, fact in self.facts)))
        self.after_end = [fact for _, fact in self.facts[len(self.before_end) + 1 :]]

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.faults.append(otherwise)

    @property
    def verdict(self) -> Verdict | None:
        end = self.ends[0] if self.ends else None
        verdict = end.verdict if isinstance(end, Completed) else None
        return verdict and verdict.model_copy(update={"calls": 0})

    def hold(self) -> None:
        self.expect(len(self.ends) == 1, f"{len(self.ends)} ends")
        twice = [
            s for s, n in Counter(e.subject for e, event in self.events if isinstance(event, Fact)).items() if n > 1
        ]
        self.expect(not twice, f"written twice: {twice}")
        state = fold(self.facts)
        assert state is not None
        recorded: set[str] = set()
        for _, fact in self.facts:
            if isinstance(fact, CallFinished):
                recorded.add(fact.call_id)
            elif isinstance(fact, StageClosed):
                self.expect(recorded.issuperset(fact.seen), f"stage {fact.stage} saw what was not recorded")
        self._hold_verdict()
        self.expect(not self.stack.server.acknowledged_early, "acknowledged before its end was in the log")
        early = self.stack.server.erased_early
        self.expect(not early, f"removed from the queue of workers before they were recorded: {early}")
        self.expect(self.stack.server.idle, "something is left in a queue")
        self._hold_announcements(state)

    def _hold_announcements(self, state: State) -> None:
        told = [
            announced
            for message in self.stack.server.stream("ORCHESTRATOR_EVENTS").matching("orchestration.>")
            if (announced := Announcement.model_validate_json(message.data)).task_id == self.deliberation_id
        ]
        expected = announcement(TENANT, self.ends[0], state) if self.ends else None
        # A late outcome may have been recorded after the announcement, and changes the costs by agent alone.
        same = expected and [announced.model_copy(update={"results": expected.results}) for announced in told]
        self.expect(same == [expected], f"announced: {told!r}")
        stored = self.stack.server.stream("AGENT_RESPONSES").matching(f"agent.response.*.{self.deliberation_id}.*")
        responses = [message.subject.rpartition(".")[2] for message in stored]
        recorded = {fact.call_id for fact in self.before_end if isinstance(fact, CallFinished)}
        self.expect(recorded <= set(responses) and len(responses) == len(set(responses)), f"told of {responses}")

    def _hold_verdict(self) -> None:
        state, end = fold(self.facts[: len(self.before_end)]), self.ends[0] if self.ends else None
        if not isinstance(end, Completed) or state is None or state.cancel is not None:
            return
        decision = decide(state, end.ts, STRATEGIES[state.specification.strategy])
        led = decision.fact if isinstance(decision, Finish) else None
        verdict = led.verdict if isinstance(led, Completed) else None
        expected = verdict and verdict.model_copy(update={"calls": 0})
        self.expect(expected is not None and expected == self.verdict, f"the facts lead to {decision}")

    def hold_calls(self) -> None:
        asked = [each for each in self.stack.engine.asked if each.deliberation_id == self.deliberation_id]
        again = [f"{each.call_id} by {each.process.name}" for each in asked if each.recorded]
        self.expect(not again, f"asked for again after it was recorded: {again}")
        late = [each.call_id for each in asked if each.ended]
        self.expect(not late, f"asked for after the end: {late}")
        wasted = len(asked) - len({each.call_id for each in asked})
        self.expect(wasted <= self.in_flight, f"{wasted} calls wasted, {self.in_flight} in flight at the kills")
        self.expect(not self.stack.engine.open, "a connection to the engine is open")
        if self.ends:
            # A call that a crash cut and that was not repeated has no outcome, and so no recorded cost.
            recorded = {fact.call_id for fact in self.before_end if isinstance(fact, CallFinished)}
            made, counted = sum(each.call_id in recorded for each in asked), self.ends[0].usage.calls
            self.expect(made <= counted, f"{made} requests, {counted} counted")
