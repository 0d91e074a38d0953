"""AG-UI's own client and its verifier, against the whole stack."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.deliberation.strategies import STRATEGIES
from sdk import build
from tests.components.docs.blocks import blocks
from tests.sdk.conftest import json_of, output_of, pace
from tests.sdk.recorder import Recorder

pytestmark = pytest.mark.sdk

SCRIPT = Path(__file__).parent / "clients" / "ag_ui.mjs"
TASK = "Write a function that merges two sorted lists."
JOINS_MIN = 200
# How long a call takes, so that a council can be joined while its texts grow.
CALL_MS = 400


def module(script: str, *arguments: str) -> list[str | Path]:
    return [build.NODE, "--input-type=module", "--eval", script, *arguments]


async def deliberated(url: str, **body: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=url, headers={"Prefer": "wait=60"}, timeout=70) as http:
        answered = await http.post("/deliberations", json={"task": TASK, **body})
    assert answered.status_code == 200, answered.text
    return answered.json()


def verdicts(report: dict[str, Any]) -> list[str]:
    return [each["content"] for id, each in report["messages"].items() if ".verdict." in id]


async def test_every_strategy_passes_the_verifier_and_may_be_joined_at_any_moment(
    stack: dict[str, Any], recorder: Recorder
) -> None:
    url = recorder.url
    await pace(stack, CALL_MS)
    found = await json_of(module(SCRIPT.read_text(), url, json.dumps([*STRATEGIES]), "60"))
    assert {name: len(each["differ"]) for name, each in found.items()} == dict.fromkeys(STRATEGIES, 0)
    assert sum(each["joins"] for each in found.values()) >= JOINS_MIN
    assert sum(each["midText"] for each in found.values()) >= JOINS_MIN // 4
    await pace(stack, 0)
    for name, each in found.items():
        assert each["last"]["outcome"] == {"type": "success"} and verdicts(each)
        assert {"SUBAGENT_STARTED", "STEP_FINISHED", "ACTIVITY_DELTA"} <= {*each["kinds"]}, name
    for name in ("council", "vote"):
        rest = await deliberated(url, strategy=name, seed=11)
        assert verdicts(found[name]) == [rest["verdict"]["content"]]
        assert found[name]["last"]["result"]["winner"] == rest["verdict"]["winner"]
        billed = [[each["inputTokens"], each["outputTokens"]] for each in found[name]["last"]["usage"]]
        assert billed == [[rest["usage"]["prompt_tokens"], rest["usage"]["completion_tokens"]]]


async def test_the_documented_program_runs_and_joins(quick_url: str) -> None:
    (program,) = [each.text for each in blocks() if each.page == "docs/ag-ui.md" and each.language == "ts"]
    printed = await output_of(module(program.replace("http://127.0.0.1:8080", quick_url)))
    assert re.search(r"^dev-00\d: ", printed, re.MULTILINE) and '"agent_id": "dev-00' in printed
    first, again = re.findall(r"^verdict (.*)$", printed, re.MULTILINE)
    assert first == again
