"""`deliberate bench quality`: its output, its refusals, and its results with a gateway in this process."""

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
from typer.testing import CliRunner, Result

from app.api.schemas import StrategyList, StrategyResource
from app.cli import cli
from app.cli.bench.dataset import Question, read_dataset
from app.cli.bench.grading import result_document, result_lines, summed_up
from app.cli.bench.quality import Plan, measure, own_parameters, request_body
from app.cli.client import GatewayClient
from app.cli.exits import CommandError, Exit
from app.deliberation.calls import Call
from app.deliberation.facts import Accepted, decode
from app.deliberation.ports import Record
from tests.components.cli.bench.test_grading import GRADED
from tests.components.routes.served import APP, COORDINATOR, played, served, written

runner = CliRunner()
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
    Question("1 + 1?", "2", "number"),
    Question("2 + 2?", "4", "number"),
    Question("Red?", "yes", "choice", ("yes", "no")),
]


def invoke(*arguments: str) -> Result:
    return runner.invoke(cli, ["bench", "quality", *arguments])


# Replaced by the path of a valid data set.
DATASET = "<data set>"
REFUSED = {
    "two places at once": (
        ["--dataset", DATASET, "--url", "http://g", "--engine-url", "http://e"],
        "give either --engine-url",
    ),
    "two stacks": (["--dataset", DATASET, "--url", "http://g", "--data-dir", "d"], "--url or --data-dir, not both"),
    "programs for answers": (["--dataset", DATASET, "--strategy", "execute"], "no answer to grade"),
    "a strategy without a verdict": (["--dataset", DATASET, "--strategy", "independent"], "no answer to grade"),
}


@pytest.mark.parametrize(("arguments", "detail"), REFUSED.values(), ids=REFUSED.keys())
def test_rejects_options_that_exclude_each_other(tmp_path: Path, arguments: list[str], detail: str) -> None:
    dataset = tmp_path / "questions.jsonl"
    dataset.write_text('{"question": "1 + 1?", "answer": 2}\n')
    printed = invoke(*(str(dataset) if argument == DATASET else argument for argument in arguments))
    assert printed.exit_code == Exit.USAGE
    assert detail in printed.stderr


@pytest.mark.parametrize("others", [[], ["--url", "http://127.0.0.1:9"]])
def test_a_data_set_that_does_not_exist_is_the_first_complaint(others: list[str]) -> None:
    printed = invoke("--dataset", "nowhere.jsonl", *others)
    assert printed.exit_code == Exit.USAGE
    assert printed.stderr.startswith("error dataset_unreadable: nowhere.jsonl: No such file or directory → ")


def test_rejects_invalid_rows_by_line_before_anything_starts(tmp_path: Path) -> None:
    dataset = tmp_path / "bad.jsonl"
    dataset.write_text(
        '{"question": "a", "answer": "1"}\n\nnonsense\n{"question": "b", "answer": "x", "normaliser": "number"}\n'
    )
    # Nothing listens there: a connection would fail as unreachable and not as a usage error.
    printed = invoke("--dataset", str(dataset), "--url", "http://127.0.0.1:9", "--limit", "1", "--json")
    fault = json.loads(printed.stderr)
    assert printed.exit_code == Exit.USAGE and fault["code"] == "dataset_invalid"
    assert [error["field"] for error in fault["errors"]] == ["line 3", "line 4"]
    assert "cannot be read as a number" in fault["errors"][1]["detail"] and fault["errors"][1]["remedy"]


def test_the_packaged_examples_are_a_data_set() -> None:
    questions = read_dataset(Path(__file__).parents[4] / "examples" / "quality.jsonl", None)
    assert len(questions) == 20 and all(question.is_right(question.answer) for question in questions)
    assert len(read_dataset(Path(__file__).parents[4] / "examples" / "quality.jsonl", 3)) == 3


def test_every_strategy_gets_the_same_task_and_its_own_normaliser() -> None:
    asked = request_body(PLAN, "vote", 6, QUESTIONS[0], 2, {"stop": "none"})
    assert asked["task"] == "1 + 1?" and asked["seed"] == 7 and asked["parameters"] == {"stop": "none"}
    assert (asked["role"], asked["num_agents"]) == ("DEV", 6)
    named = request_body(replace(PLAN, model="m", rounds=2), "council", 2, QUESTIONS[0], 0, {})
    assert named["agents"] == [{"role": "DEV", "count": 2, "model": "m"}] and named["rounds"] == 2
    assert "num_agents" not in named


def test_only_counting_strategies_get_a_normaliser() -> None:
    common: dict[str, Any] = dict(version=1, summary="", steps=(), calls="", source="", fields=())
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
        if call.output.kind != "answer":
            return _favouring(call, "dev-002") if call.output.kind == "score" else text
        revised = {"dev-001": "no" if answer == "yes" else "-1", "dev-002": answer}.get(call.agent_id, "who knows")
        return json.dumps({**json.loads(text), "answer": revised})

    return write


def _favouring(call: Call, agent_id: str) -> str:
    return json.dumps(
        {
            letter: {
                "criteria": [
                    {"id": each, "rationale": "r", "score": 9 if call.labels[letter] == agent_id else 2}
                    for each in call.output.criteria
                ]
            }
            for letter in call.output.labels
        }
    )


@asynccontextmanager
async def gateway_with_agents() -> AsyncGenerator[GatewayClient]:
    """A gateway with deliberations that end as soon as they are accepted."""
    role = {"role": "DEV", "replica": "r1", "model": "m", "simulated": True, "in_flight": 0, "engines": []}
    async with served() as here:
        here.journal.replies.update({"control.coordinator": [COORDINATOR], "control.role.DEV": [role]})

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

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await APP({**scope, "state": dict(here.gateway)}, receive, send)

        async with GatewayClient("http://localhost", transport=httpx.ASGITransport(app=app)) as gateway:
            yield gateway
        for each in playing:
            await each


async def test_results_report_accuracy_cost_flips_and_unreadable_answers(capsys: pytest.CaptureFixture[str]) -> None:
    async with gateway_with_agents() as gateway:
        await measure(gateway, PLAN, "three.jsonl", QUESTIONS, as_json=True)
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


async def test_results_as_text_are_labelled_when_the_engine_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    async with gateway_with_agents() as gateway:
        await measure(gateway, replace(PLAN, strategies=("single",)), "three.jsonl", QUESTIONS[:2], as_json=False)
    printed = capsys.readouterr().out
    assert "SIMULATED" in printed and "2 questions of three.jsonl" in printed
    assert (
        "single, 3 agents" in printed
        and "0 of 2 = 0.000" in printed
        and "– calls and – tokens per right answer" in printed
    )


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
            await measure(gateway, replace(PLAN, role="NOBODY"), "x", QUESTIONS, as_json=True)
    assert refused.value.exit_code == Exit.USAGE
    assert [fault.field for fault in refused.value.fields] == ["--role"]
