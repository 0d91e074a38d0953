import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.api.resource import resource
from app.api.schemas import Deliberation
from app.cli.bench.dataset import FAULTS_MAX, read_dataset
from app.cli.bench.grading import Flips, first_drafts, flips, grade, summed_up, wilson
from app.cli.bench.questions import TextQuestion
from app.cli.exits import CommandError
from app.deliberation.facts import Action, ActionCall
from app.deliberation.fold import fold
from tests.components.cli.bench.graded_answers import GRADED
from tests.unit.facts_of import CouncilScript, agent_ids, run, specification

RED = TextQuestion("Name a colour.", "red")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return tmp_path / "questions.jsonl"


def ended(agents: CouncilScript, size: int = 3, strategy: str = "council") -> Deliberation:
    state = fold(enumerate(run(specification(size, strategy=strategy), agents).facts, start=1))
    assert state is not None
    return resource(state, epoch="e", retention_s=60)


DELETE = {
    "name": "delete",
    "parameters": {
        "properties": {"path": {"type": "string"}, "force": {"type": "boolean", "default": False}},
        "required": ["path"],
    },
    "comparisons": {"path": "path"},
}


def row_of_calls(calls: list[list[dict[str, Any]]]) -> str:
    return json.dumps({"question": "Free db-2.", "actions": {"tools": [DELETE]}, "calls": calls})


BAD_ROWS = {
    "no JSON": ("nonsense", "Invalid JSON"),
    "no object": ("[]", "It is not an object"),
    "no question": ('{"answer": "x"}', "question: It is missing"),
    "an empty question": ('{"question": "", "answer": "x"}', "question: "),
    "no answer": ('{"question": "x"}', "answer: It is missing"),
    "a truth value for an answer": ('{"question": "x", "answer": true}', "answer: "),
    "an unknown normaliser": ('{"question": "x", "answer": "x", "normaliser": "num"}', "normaliser: "),
    "an unknown field": ('{"question": "x", "answer": "x", "weight": 2}', "weight: "),
    "an answer that is no number": ('{"question": "x", "answer": "x", "normaliser": "number"}', "read as a number"),
    "an answer that is no option": (
        '{"question": "x", "answer": "maybe", "normaliser": "choice", "options": ["yes", "no"]}',
        "read as a choice",
    ),
    "a call of no tool": (row_of_calls([[{"name": "drop", "arguments": {}}]]), "no tool is called 'drop'"),
    "no right action": (row_of_calls([]), "calls: "),
    "actions without calls": ('{"question": "x", "actions": {"tools": [{"name": "t"}]}}', "calls: It is missing"),
    "actions without tools": ('{"question": "x", "actions": {"tools": []}, "calls": [[]]}', "actions: "),
    "options without a choice": ('{"question": "x", "answer": "x", "options": ["x", "y"]}', "options: "),
}


@pytest.mark.parametrize(("row", "detail"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_an_invalid_row_is_reported_with_line_and_remedy(dataset: Path, row: str, detail: str) -> None:
    dataset.write_text(f'{{"question": "fine", "answer": 1}}\n\n{row}\n')
    with pytest.raises(CommandError) as refused:
        read_dataset(str(dataset), None)
    (fault,) = refused.value.fields
    assert fault.field == "line 3" and detail in fault.detail and fault.remedy


def test_rejects_an_empty_data_set_and_bounds_the_faults(dataset: Path) -> None:
    dataset.write_text("\n \n")
    with pytest.raises(CommandError) as empty:
        read_dataset(str(dataset), None)
    assert "no row" in empty.value.fields[0].detail
    dataset.write_text("x\n" * 100)
    with pytest.raises(CommandError, match="100 rows cannot be used") as many:
        read_dataset(str(dataset), None)
    assert len(many.value.fields) == FAULTS_MAX


def test_rows_keep_their_order_and_unicode_line_ends(dataset: Path) -> None:
    rows = [{"question": "a\u2028b", "answer": 4.50, "normaliser": "number"}, {"question": "c", "answer": "Red"}]
    dataset.write_text("\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    found = read_dataset(str(dataset), None)
    assert [question.asked["task"] for question in found] == ["a\u2028b", "c"]
    assert found[0].is_right("It is 4.5.") and not found[0].is_right("4.51")
    assert found[1].is_right("**red**") and not found[1].is_right(None)


def test_an_action_is_right_where_it_equals_one_of_the_right_ones(dataset: Path) -> None:
    right = [{"name": "delete", "arguments": {"path": "/var/log/old"}}]
    dataset.write_text("\n".join([row_of_calls([right]), row_of_calls([[]]), row_of_calls([right, []])]))
    acting, replying, either = read_dataset(str(dataset), None)
    call = ActionCall(id="call_1", name="delete", arguments={"force": False, "path": "/var/./log/old"})
    written = Action(calls=(call,)).model_dump_json()
    another = Action(calls=(call.model_copy(update={"arguments": {"path": "/var/log"}}),)).model_dump_json()
    reply = Action(reply="I do not know.").model_dump_json()
    graded = [
        [question.is_right(answer) for answer in (written, another, reply, "words", None)]
        for question in (acting, replying, either)
    ]
    assert graded == [
        [True, False, False, False, False],
        [False, False, True, False, False],
        [True, False, True, False, False],
    ]
    assert acting.asked["actions"]["tools"][0]["name"] == "delete" and acting.reading == {}
    assert acting.asked["conversation"] == [{"role": "user", "text": "Free db-2."}]


def test_actions_are_read_alike_in_whatever_order_they_call(dataset: Path) -> None:
    dataset.write_text(row_of_calls([[]]))
    (question,) = read_dataset(str(dataset), None)
    calls = [ActionCall(name="delete", arguments={"path": path}) for path in ("/a", "/b")]
    one, other = (question.read(Action(calls=tuple(order)).model_dump_json()) for order in (calls, calls[::-1]))
    assert one is not None and one == other and question.read("words") is None


def test_a_first_draft_is_the_answer_before_any_revision() -> None:
    agents = CouncilScript(text=lambda call_id: "red" if call_id.startswith("s1") else f"blue of {call_id}")
    found = ended(agents)
    assert found.verdict is not None and found.verdict.content != "red"
    assert list(first_drafts(found).items()) == [(agent_id, "red") for agent_id in agent_ids(3)]


def test_grades_spoilt_and_corrected_verdicts() -> None:
    spoilt = grade(RED, ended(CouncilScript(text=lambda call_id: "red" if call_id.startswith("s1") else "blue")))
    assert (spoilt.majority_right, spoilt.first_right, spoilt.right) == (True, True, False)
    mended = grade(RED, ended(CouncilScript(text=lambda call_id: "blue" if call_id.startswith("s1") else "red")))
    assert (mended.majority_right, mended.first_right, mended.right) == (False, False, True)


def test_a_grade_counts_calls_tokens_and_readable_answers() -> None:
    question = TextQuestion("Name a number.", "7", "number")
    texts = {"s1-dev-001": "7", "s1-dev-002": "seven", "s1-dev-003": "8"}
    found = grade(question, ended(CouncilScript(text=texts.__getitem__), strategy="best_of_n"))
    # Three drafts, one of them unreadable, and the verdict, which is the first agent's.
    assert (found.answers, found.readable, found.right) == (4, 3, True)
    assert (found.calls, found.tokens) == (6, 6 * 150)


def test_a_failed_deliberation_is_wrong_and_has_no_answers() -> None:
    failed = grade(RED, ended(CouncilScript(failing={f"s1-{each}" for each in agent_ids(3)})))
    assert (failed.status, failed.right, failed.majority_right, failed.answers) == ("failed", False, None, 0)
    assert (failed.problem, GRADED.problem) == ("no_answers", None)


def test_counts_flips_in_both_directions_and_ignores_missing_drafts() -> None:
    pairs = [(True, False), (True, True), (False, True), (False, True), (False, False), (None, True)]
    assert flips(pairs) == Flips(spoilt=1, mended=2)


def test_a_summary_adds_up_its_grades() -> None:
    wrong = replace(GRADED, right=False, seconds=4.0, readable=2, degraded=True)
    failed = replace(
        GRADED, right=False, status="timeout", majority_right=None, first_right=None, answers=0, readable=0
    )
    result = summed_up("council", 3, [GRADED, wrong, failed])
    assert (result.questions, result.right, result.calls, result.tokens) == (3, 1, 18, 1_800)
    assert result.accuracy == pytest.approx(1 / 3)
    assert (result.accuracy_low, result.accuracy_high) == pytest.approx((0.061, 0.792), abs=1e-3)
    assert (result.calls_per_right, result.tokens_per_right) == (18, 1_800)
    assert (result.against_majority, result.against_first) == (Flips(1, 0), Flips(1, 0))
    assert (result.answers, result.unread, result.degraded, result.failed) == (8, 2, 1, 1)
    assert result.mean_seconds == pytest.approx(8 / 3)
    assert summed_up("council", 3, [failed]).calls_per_right is None


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [(0, 10, 0.0, 0.278), (10, 10, 0.722, 1.0), (5, 10, 0.237, 0.763), (81, 263, 0.255, 0.366), (0, 0, 0.0, 1.0)],
)
def test_wilsons_interval_matches_the_published_one(hits: int, total: int, low: float, high: float) -> None:
    assert wilson(hits, total) == pytest.approx((low, high), abs=6e-4)
