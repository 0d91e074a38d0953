"""Faults of the log's server and the network, one at a time, over the whole product.

Time is virtual, so that a time-out of seconds costs nothing.
"""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from app.deliberation.facts import Cancelled, Completed, Failed, Resumed, StageClosed, StageOpened, encode
from app.deliberation.ports import Appended
from app.log.connection import REQUEST_TIMEOUT_S
from tests.contracts.journal_facts import accepted
from tests.crash.audit import CUT_WITHIN_S, Audit
from tests.crash.client import journal_over
from tests.crash.clock import virtual_time
from tests.crash.points import Points, Process
from tests.crash.runs import BODIES, answered
from tests.crash.server import Fate, InMemoryServer
from tests.crash.stack import Stack

_Result = TypeVar("_Result")

ACCEPTED = "deliberations.*.*.accepted"


def result_of(story: Callable[[Stack], Coroutine[Any, Any, _Result]], **options: Any) -> _Result:
    async def played(stack: Stack) -> _Result:
        stack.start()
        try:
            return await story(stack)
        finally:
            await stack.stop()

    with virtual_time() as loop:
        return loop.run_until_complete(played(Stack(loop, Points(), answered, **options)))


async def audited(stack: Stack, *ids: str) -> list[Audit]:
    quiet = await stack.quiet(list(ids), 200)
    audits = [Audit(stack, each) for each in ids]
    for audit in audits:
        audit.expect(quiet, "not ended, or left in the queue")
        audit.hold()
        audit.hold_calls()
        assert audit.faults == []
    return audits


# Doubtful writes

WRITTEN = {
    "its answer is lost": ("unanswered", 1),
    "it never arrives": ("lost", 2),
}


@pytest.mark.parametrize(("fate", "writes"), WRITTEN.values(), ids=WRITTEN.keys())
def test_an_unanswered_write_is_repeated_only_when_it_is_absent(fate: Fate, writes: int) -> None:
    server = InMemoryServer()
    server.fates.append((ACCEPTED, fate))
    asked: list[str] = []

    async def appended() -> Appended:
        journal = await journal_over(server, "one", timeout_s=20)
        request = journal.client.request

        async def counted(subject: str, *arguments: Any, **options: Any) -> Any:
            asked.append(subject)
            return await request(subject, *arguments, **options)

        journal.client.request = counted
        return await journal.append("default", accepted("d1"))

    with virtual_time() as loop:
        outcome = loop.run_until_complete(appended())
    assert outcome.created and len(server.log.stored) == 1
    assert sum(subject.endswith(".accepted") for subject in asked) == writes


def test_a_write_stored_after_its_timeout_counts_as_created() -> None:
    server = InMemoryServer()
    server.fates.append((ACCEPTED, "late"))

    async def appended() -> Appended:
        journal = await journal_over(server, "one", timeout_s=20)
        # The read-back is lost as well, so that the write is stored before it is repeated.
        server.fates.append(("$JS.API.STREAM.MSG.GET.*", "lost"))
        return await journal.append("default", accepted("d1"))

    with virtual_time() as loop:
        outcome = loop.run_until_complete(appended())
        assert loop.time() > REQUEST_TIMEOUT_S
    assert outcome.created and len(server.log.stored) == 1


@pytest.mark.parametrize("fate", ["unanswered", "late", "lost"])
@pytest.mark.parametrize(
    "pattern",
    [
        ACCEPTED,
        "deliberations.*.*.stage.1.opened",
        "deliberations.*.*.stage.1.closed",
        "deliberations.*.*.call.s1-dev-001.finished",
        "deliberations.*.*.end",
        "orchestration.>",
    ],
)
def test_a_doubtful_write_of_any_fact_does_not_disturb_the_deliberation(pattern: str, fate: Fate) -> None:
    async def story(stack: Stack) -> list[Audit]:
        stack.server.fates.append((pattern, fate))
        return await audited(stack, await stack.submit(BODIES["vote"], "key"))

    (audit,) = result_of(story)
    assert isinstance(audit.ends[0], Completed)


# The queue


def test_heartbeats_keep_the_work_of_a_long_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.crash.engine.FIRST_S", 19.0)

    async def story(stack: Stack) -> list[Audit]:
        return await audited(stack, await stack.submit(BODIES["vote"], "key"))

    (audit,) = result_of(story, coordinators=2)
    assert not any(isinstance(fact, Resumed) for _, fact in audit.facts)


def test_a_redelivered_item_takes_no_second_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.crash.engine.FIRST_S", 19.0)

    async def story(stack: Stack) -> None:
        first = await stack.submit(BODIES["vote"], "first")
        for _ in range(20):
            await stack.wait(0.1)
            assert stack.server.consumer.again(stack.server.consumer.held[0])
        second = await stack.submit(BODIES["vote"], "second")
        await stack.wait(5)
        assert stack.stands(second, "stage.1.opened")
        await audited(stack, first, second)

    result_of(story)


def test_a_lost_acknowledgement_repeats_no_work() -> None:
    async def story(stack: Stack) -> list[Audit]:
        stack.server.fates.append(("$JS.ACK.>", "lost"))
        return await audited(stack, await stack.submit(BODIES["vote"], "key"))

    (audit,) = result_of(story)
    assert not any(isinstance(fact, Resumed) for _, fact in audit.facts)


def test_poisoned_work_fails_after_five_takeovers_and_leaves_the_queue() -> None:
    async def story(stack: Stack) -> None:
        def poison(process: Process, step: str) -> None:
            if step == "ask the agent":
                process.die()

        stack.points.watch = poison
        found = await stack.submit(BODIES["vote"], "key")
        assert await stack.quiet([found], 200)
        audit = Audit(stack, found)
        audit.hold()
        assert audit.faults == []
        (end,) = audit.ends
        assert isinstance(end, Failed) and end.problem is not None and end.problem.code == "poisoned"
        assert sum(isinstance(fact, Resumed) for _, fact in audit.facts) == 5

    result_of(story)


# Two coordinators with one deliberation


def test_adopts_a_stage_that_another_coordinator_closed_differently() -> None:
    async def story(stack: Stack) -> None:
        def foreign(process: Process, step: str) -> None:
            if step == "request deliberations.stage.1.closed":
                stack.points.watch = None
                fact = StageClosed(
                    deliberation_id=found,
                    ts=stack.loop.now(),
                    stage=1,
                    purpose="propose",
                    round=0,
                    seen=("s1-dev-003",),
                    reason="deadline",
                )
                stack.server.request(f"deliberations.default.{found}.stage.1.closed", encode(fact), {})

        stack.points.watch = foreign
        found = await stack.submit(BODIES["council"], "key")
        (audit,) = await audited(stack, found)
        assert audit.verdict is not None and audit.verdict.winner == "dev-003"

    result_of(story)


def test_a_cancel_may_arrive_before_its_deliberation() -> None:
    async def story(stack: Stack) -> None:
        stack.server.fates.append(("$JS.API.CONSUMER.MSG.NEXT.>", "lost"))
        found = await stack.submit(BODIES["vote"], "key")
        await stack.cancel(found)
        (audit,) = await audited(stack, found)
        assert isinstance(audit.ends[0], Cancelled)
        assert not any(isinstance(fact, StageOpened) for _, fact in audit.facts)

    result_of(story)


def test_repeats_a_lost_pull() -> None:
    async def story(stack: Stack) -> None:
        stack.server.fates.append(("$JS.API.CONSUMER.MSG.NEXT.>", "lost"))
        await audited(stack, await stack.submit(BODIES["vote"], "key"))

    result_of(story)


# The server


@pytest.mark.parametrize("down_s", [0.0, 1.0, 20.0])
def test_a_killed_server_loses_no_work(down_s: float) -> None:
    async def story(stack: Stack) -> list[Audit]:
        found = await stack.submit(BODIES["council"], "key")
        await stack.wait(1.2)
        await stack.kill_server(down_s)
        return await audited(stack, found)

    (audit,) = result_of(story)
    assert isinstance(audit.ends[0], Completed)


@pytest.mark.parametrize("service", ["coordinator", "agent"])
def test_a_cancel_during_a_lost_connection_is_not_missed(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.crash.engine.FIRST_S", 60.0)
    # Handle calls that return make the coordinator read the log as well.
    monkeypatch.setattr("serve_deployments.coordinator.coordinator.HEARD_WITHIN_S", 3_600.0)

    async def story(stack: Stack) -> None:
        found = await stack.submit(BODIES["vote"], "key")
        await stack.wait(2)
        assert len(stack.engine.open) == 2
        (connection,) = (each for each in stack.connections if each.name == service)
        await connection.lose(for_s=1.0)
        await stack.cancel(found)
        await stack.wait(3)
        assert stack.stands(found, "end") and stack.engine.open == []
        (audit,) = await audited(stack, found)
        assert isinstance(audit.ends[0], Cancelled)

    result_of(story)


# Stopped calls

# Two agents answer within nine seconds, the third one takes twelve. The last stage closes after 9.8 seconds of ten.
CUT: dict[str, Any] = {
    **BODIES["vote"],
    "strategy": "independent",
    "quorum": 2,
    "constraints": {"timeout_seconds": 10, "on_deadline": "fail"},
}


def cut_by_its_last_stage(watch: Callable[[Stack, str], None] = lambda *_: None) -> tuple[Audit, StageClosed, int]:
    async def story(stack: Stack) -> tuple[Audit, int]:
        stack.points.watch = lambda _, step: watch(stack, step)
        (audit,) = await audited(stack, await stack.submit(CUT, "key"))
        return audit, len(stack.engine.asked)

    audit, asked = result_of(story)
    (closed,) = [fact for _, fact in audit.facts if isinstance(fact, StageClosed)]
    assert (closed.reason, len(closed.seen)) == ("quorum", 2)
    return audit, closed, asked


def test_an_end_counts_the_calls_that_the_closing_of_its_last_stage_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.crash.engine.SPREAD_S", 15.0)
    audit, closed, asked = cut_by_its_last_stage()
    (end,) = audit.ends
    assert isinstance(end, Completed) and end.usage.calls == asked == 3
    assert audit.after_end == [] and (end.ts - closed.ts).total_seconds() < CUT_WITHIN_S / 10


def test_an_end_waits_for_stopped_calls_no_longer_than_its_deadline_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.crash.engine.SPREAD_S", 15.0)

    def crash(stack: Stack, step: str) -> None:
        if step == "request deliberations.stage.1.closed":
            stack.agent.process.die()

    audit, closed, _ = cut_by_its_last_stage(crash)
    (end,) = audit.ends
    assert isinstance(end, Completed) and end.usage.calls == 2, "in time, without the cost of the replica that died"
    assert 0.05 < (end.ts - closed.ts).total_seconds() < 0.15
