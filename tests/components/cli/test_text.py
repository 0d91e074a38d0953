import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cli.render.text import printable, prose

bounded = settings(max_examples=60, deadline=None, derandomize=True)

ANSWER = {"reasoning": "First, then.", "answer": 'Say "hi"\n\tand é 😀 \\ go', "confidence": 80}
CRITIQUE = {
    "issues": [
        {"severity": "major", "where": "line 3", "claim": "It leaks", "evidence": "no close", "fix": "close it"}
    ],
    "verdict": "revise",
}
REVISION = {
    "responses": [{"issue": 1, "decision": "reject", "reason": "It does not"}],
    "answer": "New",
    "confidence": 5,
}
SCORES = {"A": {"criteria": [{"id": "clarity", "rationale": "Reads well", "score": 8}]}}
PAIR = {"notes_a": "short", "notes_b": "long", "winner": "A", "margin": 2}
TURN = {"reasoning": "Seen.", "error": "line 1", "answer": "New", "confidence": 70}
CHOICE = {"reasoning": "It holds.", "choice": "B"}
ANALYSIS = {"agreements": ["blue"], "conflicts": ["how blue", "why"], "gaps": []}
PROGRAM = {"reasoning": "Simple.", "code": "def f():\n    return 1", "confidence": 9}
TESTS = {"reasoning": "Edges.", "tests": [{"name": "two", "call": "f", "arguments": [1, "a"], "expected": 2}]}
REPORT = {
    "outcomes": [
        {"name": "empty", "passed": True, "reason": "", "duration_ms": 4},
        {"name": "huge", "passed": False, "reason": "out of memory", "duration_ms": 900},
    ]
}


@pytest.mark.parametrize(
    ("output", "human"),
    [
        (ANSWER, 'First, then.\n\nSay "hi"\n\tand é 😀 \\ go\nconfidence 80 %'),
        (CRITIQUE, "major · line 3: It leaks\nno close\nfix: close it\nverdict: revise"),
        (REVISION, "issue 1 reject: It does not\nNew\nconfidence 5 %"),
        (SCORES, "A – clarity: Reads well → 8 of 10"),
        (PAIR, "A: short\nB: long\nwinner: A\nmargin: 2"),
        (TURN, "Seen.\n\nfound wrong: line 1\nNew\nconfidence 70 %"),
        (CHOICE, "It holds.\n\nchooses B"),
        (ANALYSIS, "agreed: blue\nin conflict: how blue\nin conflict: why"),
        (PROGRAM, "Simple.\n\ndef f():\n    return 1\nconfidence 9 %"),
        (TESTS, "Edges.\n\ntwo: f 1 a → 2"),
        (REPORT, "empty: passed: yes\n4 ms\nhuge: passed: no\nout of memory\n900 ms"),
        ({"sure": None, "free": False, "set": True}, "free: no\nset: yes"),
        ({"consensus": "yes"}, "consensus: yes"),
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("indent", [None, 2])
def test_each_kind_of_output_becomes_prose(output: object, human: str, ascii_only: bool, indent: int | None) -> None:
    assert prose(json.dumps(output, ensure_ascii=ascii_only, indent=indent)).strip() == human


@pytest.mark.parametrize(
    ("partial", "human"),
    [
        ("", ""),
        ('{"reas', ""),
        ('{"reasoning": "Because it', "Because it"),
        ('{"reasoning": "tab\\', "tab"),
        ('{"reasoning":"smile \\ud83d', "smile"),
        ('{"reasoning":"smile \\ud83d\\ude00', "smile 😀"),
        ('{"A": {"criteria": [{"id": "clarity", "ratio', "A – clarity"),
        ('{"A": {"criteria": [{"id": "clarity", "rationale": "ok", "score": 1', "A – clarity: ok → 1"),
        ('{"confidence": 8', "confidence 8"),
        ("  plain words, no JSON", "plain words, no JSON"),
        ("}{]", "}{]"),
        ('{"a": }}]] "x', '{"a": }}]] "x'),
    ],
)
def test_an_unfinished_output_shows_its_complete_values_and_the_begun_string(partial: str, human: str) -> None:
    assert prose(partial).strip() == human


@bounded
@given(st.sampled_from([ANSWER, CRITIQUE, REVISION, SCORES]), st.lists(st.integers(0, 400), max_size=8), st.booleans())
def test_prose_only_grows_while_the_output_grows(output: object, cuts: list[int], ascii_only: bool) -> None:
    text = json.dumps(output, ensure_ascii=ascii_only)
    before = ""
    for cut in [*sorted(cuts), len(text)]:
        assert prose(text[:cut]).startswith(before)
        before = prose(text[:cut])


@bounded
@given(st.text())
def test_no_text_raises_an_error_or_keeps_a_control_character(text: str) -> None:
    for candidate in (text, "{" + text, json.dumps({"answer": text})):
        shown = prose(candidate)
        assert shown == printable(shown)
