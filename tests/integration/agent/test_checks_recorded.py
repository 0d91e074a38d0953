import asyncio
import json
import os
from datetime import UTC, datetime

import pytest

from app.deliberation import outputs
from app.deliberation.calls import Call, Check, Usage
from app.deliberation.facts import CallDelta, CallFinished, CallStarted, CancelRequested
from app.deliberation.outputs import Output
from serve_deployments.agent.agent import AgentReplica
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.integration.agent.scripted_engine import ANSWER, ScriptedEngine, streamed
from tests.integration.agent.stage_runs import AnsweringJournal, call, outcomes, replica, request, views
from tests.integration.cli.children import alive, children_of, wardens_of
from tests.integration.sandbox.sandboxed import altered

ENDLESS = "def f():\n    while True: pass"


def checked(program: str = "def f(): return 1", *, timeout_s: int = 20) -> Call:
    tests = tuple(outputs.TestCase(name=f"is {number}", call="f", expected=number) for number in (1, 2))
    check = Check(code=program, tests=tests, timeout_s=timeout_s, memory_mb=256)
    plain = {"messages": (), "max_tokens": 0, "output": Output(kind="report"), "check": check}
    return call().model_copy(update=plain)


def agent(journal: InMemoryJournal) -> tuple[AgentReplica, ScriptedEngine]:
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    return replica(engine, journal), engine


async def test_a_report_is_recorded_and_no_engine_is_asked() -> None:
    journal = InMemoryJournal()
    running, engine = agent(journal)
    (outcome,) = await outcomes(running, request((checked(),)))
    report = outputs.SandboxReport.model_validate_json(outcome.text or "")
    assert [(each.name, each.passed) for each in report.outcomes] == [("is 1", True), ("is 2", False)]
    assert (outcome.usage, outcome.attempt, outcome.model, outcome.problem) == (Usage(), 1, None, None)
    assert engine.bodies == []
    assert [(started.model, started.attempt) for started in views(journal, CallStarted)] == [("sandbox", 1)]
    assert views(journal, CallDelta) == []


async def test_repeats_a_check_that_was_begun_but_not_one_that_was_recorded() -> None:
    journal = InMemoryJournal()
    running, _ = agent(journal)
    (first,) = await outcomes(running, request((checked(),)))
    with altered("raise SystemExit; "):
        assert await outcomes(agent(journal)[0], request((checked(),), resumed=True)) == [first]
    lost = InMemoryJournal(records=[record for record in journal.records if record.tokens[-1] != "finished"])
    (again,) = await outcomes(agent(lost)[0], request((checked(),), resumed=True))
    assert again.problem is None and again.usage == Usage(), "what a crash cut short was no request to an engine"


async def test_checks_take_no_slot_of_engine_calls() -> None:
    journal = InMemoryJournal()
    running, engine = agent(journal)
    running.engines.concurrency = 1
    engine.hold = asyncio.Event()
    both = asyncio.create_task(outcomes(running, request((call(2), checked()))))
    await until(lambda: len(views(journal, CallFinished)) == 1, timeout_s=60)
    engine.hold.set()
    assert sorted(outcome.usage.calls for outcome in await both) == [0, 1]


async def test_a_check_fails_where_the_sandbox_cannot_isolate() -> None:
    lacking = "import serve_deployments.sandbox.syscalls as c; c._NUMBERS['landlock_create_ruleset'] = (9999, 9999); "
    with altered(lacking):
        (outcome,) = await outcomes(agent(InMemoryJournal())[0], request((checked(),)))
    assert outcome.text is None and outcome.problem is not None and outcome.usage == Usage()
    assert outcome.problem.code == "sandbox_unavailable" and not outcome.problem.retryable
    assert outcome.problem.detail.startswith("the sandbox cannot isolate here: Landlock")


async def test_a_fact_that_stops_a_check_ends_its_processes() -> None:
    journal = AnsweringJournal()
    running, _ = agent(journal)
    await running.listen()
    check = asyncio.create_task(outcomes(running, request((checked(ENDLESS, timeout_s=60),))))
    await until(lambda: any(children_of(warden) for warden in wardens_of(os.getpid())), timeout_s=60)
    (warden,) = wardens_of(os.getpid())
    (child,) = children_of(warden)
    await journal.append("default", CancelRequested(deliberation_id="d1", ts=datetime.now(UTC)))
    (outcome,) = await check
    assert outcome.problem is not None and outcome.problem.code == "call_cancelled"
    await until(lambda: not alive(warden) and not alive(child))


async def test_a_check_reports_finished_tests_before_its_deadline() -> None:
    (outcome,) = await outcomes(agent(InMemoryJournal())[0], request((checked(ENDLESS, timeout_s=60),), deadline_s=4))
    report = json.loads(outcome.text or "{}")
    assert {each["reason"] for each in report["outcomes"]} == {"not run: the time of the check was over"}
    assert sorted(report["not_run"]) == [0, 1] and report["fault"] == ""


@pytest.mark.parametrize("text", ["\x00", "\ud800", "\u2028", "é" * 200_000])
async def test_any_text_of_a_program_reaches_the_sandbox_or_fails_in_it(text: str) -> None:
    (outcome,) = await outcomes(agent(InMemoryJournal())[0], request((checked(f"f = lambda: 1  # {text}"),)))
    assert outcome.text is not None and len(json.loads(outcome.text)["outcomes"]) == 2
