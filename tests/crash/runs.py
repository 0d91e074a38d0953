"""One deliberation from its submission to its end, with faults at chosen steps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from app.deliberation.calls import Call
from app.deliberation.facts import CancelRequested, Verdict
from app.deliberation.roles import AgentRunner
from tests.crash.audit import CUT_WITHIN_S, Audit
from tests.crash.clock import virtual_time
from tests.crash.points import Point, Points, Process
from tests.crash.stack import Stack
from tests.unit.facts_of import CouncilScript

Victim = Literal["process", "machine"]
Side = Literal["before", "after"]

# A coordinator's death is noticed after `ack_wait`; several such waits and the work fit in.
WITHIN_S = 90.0

WAKE_S = 5.0
_COUNCIL = CouncilScript()


def answered(call: Call) -> str:
    text = _COUNCIL(call).text
    assert text is not None
    return text


@dataclass(frozen=True, slots=True)
class Kill:
    number: int
    side: Side
    victim: Victim

    def __str__(self) -> str:
        return f"{self.victim} dies {self.side} {self.number}"


@dataclass
class Ran:
    reached: list[Point]
    audit: Audit

    @property
    def ended_s(self) -> float:
        facts = [fact for _, fact in self.audit.facts]
        return (self.audit.ends[0].ts - facts[0].ts).total_seconds() if self.audit.ends else float("inf")

    @property
    def verdict(self) -> Verdict | None:
        return self.audit.verdict

    def step(self, number: int) -> str:
        if number > len(self.reached):
            return f"{number} (never reached)"
        point = self.reached[number - 1]
        return f"{number} ({point.process}: {point.step})"


@dataclass(frozen=True, slots=True)
class Hang:
    number: int
    seconds: float


BODIES: dict[str, dict[str, Any]] = {
    name: {"task": "Name a colour.", "strategy": name, "agents": [{"role": "DEV", "count": 3}], "seed": 7}
    for name in ("council", "vote")
}
# A coordinator that dies in its second stage is replaced after its deadline.
BODIES["short council"] = BODIES["council"] | {"constraints": {"timeout_seconds": 7}}


@dataclass
class Script:
    """The faults of a run: kills, a cancel at a step, and a hang.

    At the step `replaced_at` the coordinator is replaced in order. With a hang a second coordinator takes over.
    """

    strategy: str
    kills: tuple[Kill, ...] = ()
    cancel_at: int | None = None
    seed: int = 0
    hang: Hang | None = None
    replaced_at: int | None = None
    agents: AgentRunner = "ray"

    def run(self) -> Ran:
        with virtual_time(self.seed) as loop:
            coordinators = 1 if self.hang is None else 2
            return loop.run_until_complete(self._story(Stack(loop, Points(), answered, coordinators, self.agents)))

    async def _story(self, stack: Stack) -> Ran:
        ids: list[str] = []
        in_flight = 0

        def killing(kill: Kill) -> Callable[[Process], None]:
            def strike(process: Process) -> None:
                nonlocal in_flight
                in_flight += unrecorded(stack)
                process.die() if kill.victim == "process" else stack.die()

            return strike

        async def stop() -> None:
            # A client can cancel only once it has the id.
            if ids:
                await stack.cancel(ids[0])

        def hanging(hang: Hang) -> Callable[[Process], None]:
            def strike(process: Process) -> None:
                nonlocal in_flight
                in_flight += unrecorded(stack)
                process.stop()
                stack.loop.call_later(hang.seconds, process.go_on)

            return strike

        if self.hang is not None:
            stack.points.before[self.hang.number] = hanging(self.hang)
        for kill in self.kills:
            (stack.points.before if kill.side == "before" else stack.points.after)[kill.number] = killing(kill)
        if self.replaced_at is not None:
            stack.points.before[self.replaced_at] = lambda _: stack.coordinator.replace()
        if self.cancel_at is not None:
            stack.points.before[self.cancel_at] = lambda _: stack.outside(stop())
        stack.start()
        ids.append(await stack.submit(BODIES[self.strategy], "key"))
        quiet = await stack.quiet(ids, WITHIN_S)
        reached = list(stack.points.reached)
        await stack.idle()
        if self.hang is not None:
            # By then the hung process has woken up and finished.
            await stack.wait(self.hang.seconds + WAKE_S)
        audit = Audit(stack, ids[0], in_flight)
        audit.expect(quiet, "it has not ended")
        audit.hold()
        if self.hang is None or self.agents != "local":
            # Agents that hung with their coordinator make requests, once they wake up, that its successor's made.
            audit.hold_calls()
        if self.cancel_at is not None:
            hold_cancel(audit)
        await stack.stop()
        return Ran(reached, audit)


def unrecorded(stack: Stack) -> int:
    asked = {(each.deliberation_id, each.call_id) for each in stack.engine.asked}
    return sum(not stack.stands(deliberation, f"call.{call}.finished") for deliberation, call in asked)


def hold_cancel(audit: Audit) -> None:
    requested = [event for _, event in audit.events if isinstance(event, CancelRequested)]
    if not requested:
        return
    cancelled_at_s = (requested[0].ts - audit.stack.loop.epoch).total_seconds()
    for asked in audit.stack.engine.asked:
        audit.expect(asked.at_s <= cancelled_at_s + CUT_WITHIN_S, f"{asked.call_id} was asked for after the request")
        closed_at_s = asked.closed_at_s or float("inf")
        bound_s = max(cancelled_at_s, asked.at_s) + CUT_WITHIN_S
        audit.expect(closed_at_s <= bound_s, f"{asked.call_id} ran on to {closed_at_s} after {cancelled_at_s}")
