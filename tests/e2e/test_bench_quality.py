import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from app.api.schemas import Deliberation
from app.cli.bench.dataset import read_dataset
from app.cli.bench.grading import first_drafts, grade, wilson
from tests.e2e.conftest import DELIBERATE, Stack

pytestmark = pytest.mark.e2e
DATASET = Path(__file__).parents[2] / "examples" / "quality.jsonl"
QUESTIONS = 4
STRATEGIES = ("single", "best_of_n", "vote")
WITHIN_S = 240


async def bench(*arguments: str) -> tuple[int, str, str]:
    command = [str(DELIBERATE), "bench", "quality", "--dataset", str(DATASET), *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(WITHIN_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_the_accounts_equal_the_engines_counts_and_the_gateways_records(stack: Stack) -> None:
    chosen = [part for strategy in STRATEGIES for part in ("--strategy", strategy)]
    code, out, err = await bench("--url", stack.url, "--limit", str(QUESTIONS), *chosen, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["simulated"] is True
    accounts: list[dict[str, Any]] = document["strategies"]
    assert [account["strategy"] for account in accounts] == list(STRATEGIES)
    votes = [account["vote"] for account in accounts]
    # A plain vote with as many calls stands beside what is neither a vote nor one call.
    assert [vote and vote["agents"] for vote in votes] == [None, 6, None]
    everything = [*accounts, *(vote for vote in votes if vote)]
    engine = await stack.engine_calls()
    assert sum(account["calls"] for account in everything) == engine["requests"]
    assert sum(account["tokens"] for account in everything) == engine["prompt_tokens"] + engine["completion_tokens"]
    for account in everything:
        await assert_recomputable(stack, account)


async def assert_recomputable(stack: Stack, account: dict[str, Any]) -> None:
    """The account equals what the deliberations stored at the gateway add up to."""
    questions = read_dataset(str(DATASET), QUESTIONS)
    held = [Deliberation.model_validate(await stack.read(each["id"])) for each in account["deliberations"]]
    assert [found.task for found in held] == [question.asked["task"] for question in questions]
    assert {(found.strategy, len(found.agents), found.status) for found in held} == {
        (account["strategy"], account["agents"], "completed")
    }
    assert account["calls"] == sum(found.usage.calls for found in held)
    assert account["questions"] == QUESTIONS and account["failed"] == 0
    grades = [grade(question, found) for question, found in zip(questions, held, strict=True)]
    assert account["right"] == sum(each.right for each in grades)
    assert (account["accuracy_low"], account["accuracy_high"]) == wilson(account["right"], QUESTIONS)
    drafts = [list(first_drafts(found).values()) for found in held]
    assert account["answers"] == sum(map(len, drafts)) + QUESTIONS
    unread = [
        text
        for question, found, texts in zip(questions, held, drafts, strict=True)
        for text in (*texts, found.verdict.content if found.verdict else None)
        if text is not None and question.read(text) is None
    ]
    assert account["unread"] == len(unread)


async def test_an_engine_gets_a_stack_of_its_own_that_is_gone_afterwards(stack: Stack, tmp_path: Path) -> None:
    engine = str(stack.engine.base_url).rstrip("/")
    arguments = ["--engine-url", engine, "--limit", "1", "--strategy", "single", "--data-dir", str(tmp_path)]
    code, out, err = await bench(*arguments)
    assert code == 0, err
    assert "SIMULATED" in out and "1 question of quality.jsonl" in out and "single, 3 agents" in out
    assert (await stack.engine_calls())["requests"] == 1
    # The state file goes when all of the stack has been stopped; what was asked to be kept stays.
    left = os.listdir(tmp_path)
    assert "logs" in left and "stack.json" not in left
