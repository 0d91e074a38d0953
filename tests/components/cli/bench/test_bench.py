"""`deliberate bench quality`: its output, and its results with a gateway in this process."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from app.api.schemas import StrategyList, StrategyResource
from app.cli.bench.dataset import read_dataset
from app.cli.bench.grading import result_document, result_lines, summed_up
from app.cli.bench.quality import Plan, measure, own_parameters, request_body
from app.cli.bench.questions import TextQuestion
from app.cli.bench.rows import GradedRows
from app.cli.client import GatewayClient
from app.cli.exits import CommandError, Exit
from app.deliberation.calls import Call
from app.deliberation.facts import Accepted, decode
from app.deliberation.ports import Record
from tests.components.cli.bench.graded_answers import GRADED
from tests.components.routes.served import APP, COORDINATOR, Served, played, served, written
from tests.conditions import until
from tests.unit.facts_of import ballot

PLAN = Plan(
    strategies=("best_of_n",),
    agents=3,
    role="DEV",
    model=None,
    rounds=None,
    timeout_s=60,
    seed=5,
    concurrency=2,
    baseline=True,
)
QUESTIONS = [
    TextQuestion("1 + 1?", "2", "number"),
    TextQuestion("2 + 2?", "4", "number"),
    TextQuestion("Red?", "yes", "choice", ("yes", "no")),
]


def test_the_packaged_examples_are_a_data_set() -> None:
    questions = read_dataset(str(Path(__file__).parents[4] / "examples" / "quality.jsonl"), None)
    assert len(questions) == 20
    assert all(isinstance(each, TextQuestion) and each.is_right(each.answer) for each in questions)
    assert len(read_dataset(str(Path(__file__).parents[4] / "examples" / "quality.jsonl"), 3)) == 3


def test_every_strategy_gets_the_same_task_and_its_own_normaliser() -> None:
    asked = request_body(PLAN, "vote", 6, QUESTIONS[0], 2, {"stop": "none"})
    assert asked["task"] == "1 + 1?" and asked["seed"] == 7 and asked["parameters"] == {"stop": "none"}
    assert (asked["role"], asked["num_agents"]) == ("DEV", 6)
    named = request_body(replace(PLAN, model="m", rounds=2), "council", 2, QUESTIONS[0], 0, {})
    assert named["agents"] == [{"role": "DEV", "count": 2, "model": "m"}] and named["rounds"] == 2
    assert "num_agents" not in named


def test_a_name_of_berkeleys_data_without_its_package_says_how_to_get_it() -> None:
    with pytest.raises(CommandError) as missing:
        read_dataset("bfcl:simple_python", None)
    assert "pip install --no-deps bfcl-eval" in missing.value.remedy
    with pytest.raises(CommandError) as unknown:
        read_dataset("bfcl:simple", None)
    assert "simple_python" in unknown.value.remedy


def test_only_counting_strategies_get_a_normaliser() -> None:
    common: dict[str, Any] = dict(version=1, summary="", steps=(), calls="", tool_calls="", source="", fields=())
    counting = StrategyResource(name="vote", parameters={"properties": {"normaliser": {}, "options": {}}}, **common)
    scoring = StrategyResource(name="best_of_n", parameters={"properties": {"aggregation": {}}}, **common)
    known = StrategyList(items=(counting, scoring))
    assert own_parameters(known, "vote", QUESTIONS[0]) == {"normaliser": "number"}
    assert own_parameters(known, "vote", QUESTIONS[2]) == {"normaliser": "choice", "options": ["yes", "no"]}
    assert own_parameters(known, "best_of_n", QUESTIONS[2]) == {}


def right_or_not(accepted: Accepted) -> Callable[[Call], str]:
    """Answers to QUESTIONS: dev-002 is right, dev-001 is wrong, and all others are unreadable."""
    answer = next(each.answer for each in QUESTIONS if each.text == accepted.specification.task)

    def write(call: Call) -> str:
        text = written(call)
        if call.output.kind == "score":
            return ballot(call, lambda agent_id: 9 if agent_id == "dev-002" else 2)
        if call.output.kind != "answer":
            return text
        revised = {"dev-001": "no" if answer == "yes" else "-1", "dev-002": answer}.get(call.agent_id, "who knows")
        return json.dumps({**json.loads(text), "answer": revised})

    return write


@asynccontextmanager
async def client_of(here: Served) -> AsyncGenerator[GatewayClient]:
    role = {"role": "DEV", "replica": "r1", "model": "m", "simulated": True, "in_flight": 0, "engines": []}
    here.journal.replies.update({"control.coordinator": [COORDINATOR], "control.role.DEV": [role]})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await APP({**scope, "state": dict(here.gateway)}, receive, send)

    async with GatewayClient("http://localhost", transport=httpx.ASGITransport(app=app)) as gateway:
        yield gateway


@asynccontextmanager
async def gateway_with_agents() -> AsyncGenerator[GatewayClient]:
    """A gateway with deliberations that end as soon as they are accepted."""
    async with served() as here:

        def play(record: Record) -> None:
            accepted = decode(record.data)
            assert isinstance(accepted, Accepted)
            here.clock.advance(2)
            playing.append(asyncio.ensure_future(follow(accepted)))

        async def follow(accepted: Accepted) -> None:
            for fact in played(accepted, now=here.clock.now, write=right_or_not(accepted)):
                await here.append(fact)

        playing: list[asyncio.Future[None]] = []
        await here.journal.subscribe(["deliberations.*.*.accepted"], play)
        async with client_of(here) as gateway:
            yield gateway
        for each in playing:
            await each


async def test_results_report_accuracy_cost_flips_and_unreadable_answers(capsys: pytest.CaptureFixture[str]) -> None:
    async with gateway_with_agents() as gateway:
        await measure(gateway, PLAN, "three.jsonl", QUESTIONS, GradedRows(None), as_json=True)
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["simulated"] is True and document["dataset"] == "three.jsonl"
    (account,) = document["strategies"]
    assert (account["strategy"], account["agents"], account["questions"], account["right"]) == ("best_of_n", 3, 3, 3)
    assert account["accuracy"] == 1 and account["accuracy_low"] == pytest.approx(0.438, abs=1e-3)
    assert account["calls"] == 18 and account["calls_per_right"] == 6
    assert account["tokens"] == sum(each["tokens"] for each in account["deliberations"])
    # dev-001 was wrong each time.
    assert account["against_first"] == {"spoilt": 0, "mended": 3}
    # Three drafts, one of them unreadable, and the verdict.
    assert (account["answers"], account["unread"]) == (12, 3)
    assert (account["degraded"], account["failed"]) == (0, 0)
    assert account["vote"]["strategy"] == "vote" and account["vote"]["agents"] == 6 and account["vote"]["calls"] == 18


async def test_a_run_that_was_cut_asks_what_its_rows_lack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, plan = tmp_path / "rows.jsonl", replace(PLAN, baseline=False)
    async with gateway_with_agents() as gateway:

        async def ids() -> list[str]:
            await measure(gateway, plan, "three.jsonl", QUESTIONS, GradedRows(rows), as_json=True)
            (result,) = json.loads(capsys.readouterr().out.splitlines()[-1])["strategies"]
            assert (result["questions"], result["right"]) == (3, 3)
            return [each["id"] for each in result["deliberations"]]

        whole = await ids()
        lines = rows.read_text().splitlines()
        assert [json.loads(line)["strategy"] for line in lines] == ["best_of_n"] * 3
        # The last row was cut in its middle.
        rows.write_text("\n".join([*lines[:2], lines[2][:40]]))
        resumed = await ids()
        assert sorted(one == other for one, other in zip(whole, resumed, strict=True)) == [False, True, True]
        assert await ids() == resumed, "nothing is asked again"


async def test_a_run_that_is_stopped_cancels_what_it_asked() -> None:
    async with served() as here, client_of(here) as gateway:

        def kinds() -> list[str]:
            return [record.tokens[3] for record in here.journal.records if record.tokens[0] == "deliberations"]

        run = asyncio.create_task(measure(gateway, PLAN, "x", QUESTIONS[:1], GradedRows(None), as_json=True))
        await until(lambda: "accepted" in kinds())
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert kinds() == ["accepted", "cancel"]


def test_a_file_of_other_lines_is_no_file_of_rows(tmp_path: Path) -> None:
    other = tmp_path / "questions.jsonl"
    other.write_text('{"question": "1 + 1?", "answer": 2}\n')
    with pytest.raises(CommandError, match="line 1 is no row of a bench"):
        GradedRows(other)


async def test_results_as_text_are_labelled_when_the_engine_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    async with gateway_with_agents() as gateway:
        await measure(
            gateway,
            replace(PLAN, strategies=("single",)),
            "three.jsonl",
            QUESTIONS[:2],
            GradedRows(None),
            as_json=False,
        )
    printed = capsys.readouterr().out
    assert "SIMULATED" in printed and "2 questions of three.jsonl" in printed
    for text in ("single, 3 agents", "0 of 2 = 0.000", "– calls and – tokens per right answer"):
        assert text in printed


def test_results_name_the_reasons_of_failed_deliberations() -> None:
    grades = [
        replace(GRADED, id=f"d{number}", status=status, problem=problem, right=status == "completed")
        for number, (status, problem) in enumerate(
            [("completed", None), ("timeout", None), ("failed", "no_quorum"), ("failed", "no_quorum")]
        )
    ]
    result = summed_up("vote", 3, grades)
    lines = [line.plain for line in result_lines(result, None)]
    whole = [line.plain for line in result_lines(summed_up("vote", 3, grades[:1]), None)]
    document = result_document(result, None)

    assert "  failed      2 no_quorum, 1 timeout; see `deliberate show d1`" in lines
    assert not any(line.startswith("  failed") for line in whole)
    assert [each["problem"] for each in document["deliberations"]] == [None, None, "no_quorum", "no_quorum"]


async def test_a_refusal_of_the_gateway_ends_the_bench_with_its_problem() -> None:
    async with gateway_with_agents() as gateway:
        with pytest.raises(CommandError) as refused:
            await measure(gateway, replace(PLAN, role="NOBODY"), "x", QUESTIONS, GradedRows(None), as_json=True)
    assert refused.value.exit_code == Exit.USAGE
    assert [fault.field for fault in refused.value.fields] == ["--role"]
