"""The texts that the product's schemas allow as vLLM's grammars.

A valid schema may still forbid a line break. Agents must be able to write the texts here.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.deliberation.outputs import Output, json_schema
from tests.vllm import build

pytestmark = pytest.mark.vllm

CODE = 'def greet(name: str) -> str:\n\treturn f"Hello, {name}!\\n"  # “Ä”'
CRITERIA = ("correctness", "clarity")
DOCUMENTS: list[tuple[Output, dict[str, Any]]] = [
    (Output(kind="answer"), {"reasoning": CODE, "answer": CODE, "confidence": 80}),
    (
        Output(kind="critique"),
        {
            "issues": [{"severity": "major", "where": CODE, "claim": CODE, "evidence": CODE, "fix": CODE}],
            "verdict": "revise",
        },
    ),
    (
        Output(kind="revision", issues=1),
        {"responses": [{"issue": 1, "decision": "accept", "reason": CODE}], "answer": CODE, "confidence": 80},
    ),
    (
        Output(kind="score", labels=("A",), criteria=CRITERIA),
        {"A": {"criteria": [{"id": name, "rationale": CODE, "score": 7} for name in CRITERIA]}},
    ),
    (Output(kind="pair"), {"notes_a": CODE, "notes_b": CODE, "winner": "A", "margin": 2}),
    (
        Output(kind="tests"),
        {
            "reasoning": CODE,
            "tests": [
                {"name": CODE, "call": "greet", "arguments": [CODE, [1, None]], "expected": {CODE: [2.5, True]}},
                {"name": CODE, "stdin": CODE, "stdout": CODE},
            ],
        },
    ),
]


class Verdicts(NamedTuple):
    plain: list[bool]
    code: list[bool]
    tab: list[bool]


def accepted(pairs: list[tuple[dict[str, Any], str]]) -> list[bool]:
    script = Path(__file__).with_name("grammar.py")
    finished = subprocess.run(
        [build.venv() / "bin" / "python", "-W", "ignore", script, build.model()],
        input=json.dumps(pairs),
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[bool] = json.loads(finished.stdout.splitlines()[-1])
    return answers


@pytest.fixture(scope="module")
def verdicts() -> Verdicts:
    code = [json.dumps(document, ensure_ascii=False) for _, document in DOCUMENTS]
    plain = [text.replace(json.dumps(CODE, ensure_ascii=False), '"plain words"') for text in code]
    tab = [text.replace("plain words", "plain\twords") for text in plain]
    schemas = [json_schema(output) for output, _ in DOCUMENTS]
    answers = accepted([*zip(schemas * 3, [*plain, *code, *tab], strict=True)])
    size = len(DOCUMENTS)
    return Verdicts(answers[:size], answers[size : 2 * size], answers[2 * size :])


def test_every_output_can_be_written_in_plain_words(verdicts: Verdicts) -> None:
    assert all(verdicts.plain)


def test_every_output_can_hold_code(verdicts: Verdicts) -> None:
    assert all(verdicts.code)


def test_no_output_can_hold_what_json_forbids(verdicts: Verdicts) -> None:
    assert not any(verdicts.tab)
