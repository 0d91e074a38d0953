"""A kill at every step, of the gateway, a coordinator, an agent or all at once; hangs, replacements, cancels.

All three run in one process over an in-memory nats-server and a scripted engine. The journal, the work queue, the
routes and the HTTP client of engines between them are real. Every publish, request, subscription, acknowledgement,
request to an engine, piece of its answer, handle call and heard message is a numbered step (tests/crash/points.py). A
process dies before a step's effect, or after it and before its answer; from then on it has no effect. A new one starts
half a second later. Without Ray the agent is a worker that pulls tasks, which has steps of its own, or lives and dies
with its coordinator; of these runs CRASH_POINTS=all makes every one.

tests/e2e shows that Ray and the supervisor notice dead processes and restart them. Nothing here loses data on a disk:
this server keeps everything that it has acknowledged. A process dies only at its steps: between them it has no
effect that others could see.
"""

import os
import random
from collections.abc import Sequence
from functools import cache
from typing import TypeVar, get_args

import pytest

from app.deliberation.facts import Cancelled, Completed, Resumed, StageOpened
from app.deliberation.roles import AgentRunner
from app.log.stream_settings import StreamSettings
from tests.crash.runs import Hang, Kill, Ran, Script, Side, Victim

_Item = TypeVar("_Item")

STRATEGIES = ("council", "vote")
# Without Ray every n-th run is made: coordinators, gateways and replicas are the same code over both.
WITHOUT_RAY_EVERY = {"vote": 3, "council": 12}
ALL = os.environ.get("CRASH_POINTS") == "all"
DOUBLE_KILLS = 300 if ALL else 150
# After the first kill step numbers differ between runs; the second kill falls within the recovery.
RECOVERY_STEPS = 60
# Every n-th step is tested: a council takes longer to run, and differs only in its number of stages.
REPLACED_EVERY = {"vote": 1, "council": 4}
# The steps of a coordinator after the request to stop.
HAND_OVER_STEPS = 6
NEVER = 1_000_000
ACK_WAIT_S = StreamSettings().ack_wait_s
HANGS_S = {"vote": (0.2, 0.8, 1.5), "council": (1.1,)}


every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
every_runner = pytest.mark.parametrize("agents", get_args(AgentRunner))


@cache
def undisturbed(strategy: str, agents: AgentRunner = "ray") -> Ran:
    ran = Script(strategy, agents=agents).run()
    assert ran.audit.faults == [] and ran.verdict is not None
    return ran


def sampled(runs: Sequence[_Item], strategy: str, agents: AgentRunner) -> Sequence[_Item]:
    return runs if ALL or agents == "ray" else runs[:: WITHOUT_RAY_EVERY[strategy]]


def faults_of(ran: Ran, strategy: str, *, stopped: bool = False) -> list[str]:
    if stopped and any(isinstance(end, Cancelled) for end in ran.audit.ends):
        return ran.audit.faults
    same = ran.verdict == undisturbed(strategy).verdict
    return [*ran.audit.faults, *([] if same else ["another verdict"])]


def test_a_run_reaches_steps_of_every_process() -> None:
    reached = {(point.process, point.step) for point in undisturbed("council").reached}
    assert reached >= {
        ("gateway", "request deliberations.accepted"),
        ("gateway", "answer"),
        ("coordinator", "hear deliberations.accepted"),
        ("coordinator", "request deliberations.stage.1.opened"),
        ("coordinator", "ask the agent"),
        ("coordinator", "hear deliberations.call.s1-dev-001.finished"),
        ("coordinator", "request deliberations.stage.4.closed"),
        ("coordinator", "request deliberations.end"),
        ("coordinator", "request orchestration.deliberation.completed"),
        ("coordinator", "publish ack"),
        ("agent", "engine request"),
        ("agent", "engine piece"),
        ("agent", "request deliberations.call.s1-dev-001.finished"),
        ("agent", "stage end"),
    }
    reached = {(point.process, point.step) for point in undisturbed("council", "nats").reached}
    assert reached >= {
        ("coordinator", "request agent.task.assigned.DEV"),
        ("agent", "publish CONSUMER.MSG.NEXT"),
        ("agent", "hear agent.task.assigned.DEV"),
        ("agent", "request deliberations.call.s1-dev-001.finished"),
        ("agent", "request STREAM.MSG.DELETE"),
        ("agent", "publish ack"),
    }
    assert not {("coordinator", "ask the agent"), ("agent", "stage end")} & reached
    reached = {(point.process, point.step) for point in undisturbed("council", "local").reached}
    assert reached >= {
        ("coordinator", "engine request"),
        ("coordinator", "request deliberations.call.s1-dev-001.finished"),
        ("coordinator", "request deliberations.end"),
    }
    assert {process for process, _ in reached} == {"gateway", "coordinator"}


def test_coordinators_killed_at_the_deadline_leave_the_same_verdict_to_their_successor() -> None:
    first = next(
        point.number
        for point in Script("short council").run().reached
        if point.step.startswith("hear deliberations.call.s2-")
    )
    kill = Kill(first, "after", "process")
    once = Script("short council", (kill,)).run()
    (end,) = once.audit.ends
    assert once.audit.faults == [] and isinstance(end, Completed) and end.degraded is not None
    assert [(stage.purpose, stage.by) for stage in end.degraded.cut] == [("revise", "deadline"), ("score", "deadline")]
    assert [fact.stage for _, fact in once.audit.facts if isinstance(fact, StageOpened)] == [1, 2]
    faults: list[str] = []
    for point in once.reached[first:]:
        for side in ("before", "after") if point.process == "coordinator" else ():
            ran = Script("short council", (kill, Kill(point.number, side, "process"))).run()
            found = list(ran.audit.faults)
            same = ran.verdict == once.verdict and [each.degraded for each in ran.audit.ends] == [end.degraded]
            found += [] if same else ["another verdict"]
            faults += [f"dies {side} {ran.step(point.number)}: {each}" for each in found]
    assert faults == []


@pytest.mark.parametrize("victim", ["process", "machine"])
@every_strategy
@every_runner
def test_a_kill_at_any_step_changes_neither_end_nor_verdict(strategy: str, victim: Victim, agents: AgentRunner) -> None:
    faults: list[str] = []
    for point in sampled(undisturbed(strategy, agents).reached, strategy, agents):
        sides: tuple[Side, ...] = ("before", "after") if point.effective else ("before",)
        if strategy == "council":
            # A kill before a step equals one after the previous step: the vote shows that.
            sides = sides[-1:]
        for side in sides:
            ran = Script(strategy, (Kill(point.number, side, victim),), agents=agents).run()
            faults += [f"{victim} dies {side} {ran.step(point.number)}: {each}" for each in faults_of(ran, strategy)]
    assert faults == []


@every_strategy
@every_runner
def test_a_coordinator_that_wakes_up_does_not_disturb_its_successor(
    strategy: str, agents: AgentRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Lookups of late requests would hide faults of the other guards.
    monkeypatch.setattr("serve_deployments.agent.outcome_check.ABSENT_FOR_S", 3_600.0)
    faults: list[str] = []
    reached = Script(strategy, hang=Hang(NEVER, 0), agents=agents).run().reached
    points = [point for point in reached if point.process.startswith("coordinator")]
    for point in sampled(points, strategy, agents):
        for after_s in HANGS_S[strategy]:
            ran = Script(strategy, hang=Hang(point.number, ACK_WAIT_S + after_s), agents=agents).run()
            what = f"hangs at {ran.step(point.number)} for {ACK_WAIT_S + after_s} s"
            faults += [f"{what}: {each}" for each in faults_of(ran, strategy)]
    assert faults == []


@every_strategy
@every_runner
def test_a_coordinator_replaced_at_any_step_hands_over_at_once(strategy: str, agents: AgentRunner) -> None:
    faults: list[str] = []
    points = undisturbed(strategy, agents).reached[:: REPLACED_EVERY[strategy]]
    for point in sampled(points, strategy, agents):
        ran = Script(strategy, replaced_at=point.number, agents=agents).run()
        found = faults_of(ran, strategy)
        if (took_s := ran.ended_s - undisturbed(strategy, agents).ended_s) > ACK_WAIT_S / 2:
            found.append(f"it ended {took_s} s later")
        if any(isinstance(fact, Resumed) for fact in ran.audit.after_end):
            found.append("handed over after its end")
        faults += [f"replaced at {ran.step(point.number)}: {each}" for each in found]
    assert faults == []


@every_runner
def test_a_kill_during_a_hand_over_is_like_any_other_kill(agents: AgentRunner) -> None:
    faults: list[str] = []
    coordinators = [point.number for point in undisturbed("vote", agents).reached if point.process == "coordinator"]
    for number in sampled(coordinators[::3], "vote", agents):
        for later in range(1, HAND_OVER_STEPS + 1):
            ran = Script("vote", (Kill(number + later, "after", "process"),), replaced_at=number, agents=agents).run()
            what = f"replaced at {ran.step(number)}, dies after {ran.step(number + later)}"
            faults += [f"{what}: {each}" for each in faults_of(ran, "vote")]
    assert faults == []


@every_strategy
@every_runner
def test_a_cancel_at_any_step_leads_to_one_end_and_stops_every_call(strategy: str, agents: AgentRunner) -> None:
    faults: list[str] = []
    for point in sampled(undisturbed(strategy, agents).reached, strategy, agents):
        ran = Script(strategy, cancel_at=point.number, agents=agents).run()
        faults += [f"stopped at {ran.step(point.number)}: {each}" for each in faults_of(ran, strategy, stopped=True)]
    assert faults == []


@every_runner
def test_two_kills_and_a_cancel_at_any_steps_leave_one_correct_end(agents: AgentRunner) -> None:
    faults: list[str] = []
    for seed in sampled(range(DOUBLE_KILLS), "council", agents):
        chance = random.Random(seed)
        # A council takes twice as long to run.
        strategy = "vote" if seed % 5 else "council"
        first = chance.randint(1, len(undisturbed(strategy, agents).reached))
        second = first + chance.randint(1, RECOVERY_STEPS)
        kills = tuple(
            Kill(number, chance.choice(("before", "after")), chance.choice(("process", "machine")))
            for number in (first, second)
        )
        cancel_at = None if chance.random() < 2 / 3 else chance.randint(1, second)
        ran = Script(strategy, kills, cancel_at, seed, agents=agents).run()
        what = ", ".join(f"{kill.victim} dies {kill.side} {ran.step(kill.number)}" for kill in kills)
        what += "" if cancel_at is None else f", stopped at {ran.step(cancel_at)}"
        stopped = cancel_at is not None
        faults += [f"seed {seed}, {strategy}: {what}: {each}" for each in faults_of(ran, strategy, stopped=stopped)]
    assert faults == []
