import gc
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from app.deliberation import json_objects
from app.deliberation.errors import InvalidOutput
from app.deliberation.json_objects import Span, objects
from app.deliberation.outputs import Output, parse_output
from app.deliberation.readings import LENIENCIES, Reading, read_output
from tests.unit.output_forms import OUTPUTS, VALID

ANSWER = '{"reasoning": "r", "answer": "42", "confidence": 90}'
DRAFT = ANSWER.replace("42", "41")
FRACTIONS = r"\frac{1}{2} {x} {} { " * 20


def answer(**fields: Any) -> str:
    return json.dumps({"reasoning": "r", "answer": "42", "confidence": 90, **fields})


def read(text: str, kind: str = "answer", *, cut_off: bool = False) -> tuple[Any, tuple[str, ...]]:
    reading = read_output(OUTPUTS[kind], text, cut_off=cut_off)
    parse_output(OUTPUTS[kind], reading.text)
    return json.loads(reading.text), reading.lenient


def refused(text: str, kind: str = "answer", *, cut_off: bool = False) -> str:
    with pytest.raises(InvalidOutput) as fault:
        read_output(OUTPUTS[kind], text, cut_off=cut_off)
    return str(fault.value)


# Where the answer stands

AS_IT_IS = {
    "alone": ANSWER,
    "before blanks": ANSWER + "\n" * 5_000,
    "behind a byte order mark": "\ufeff" + ANSWER,
}
WITHIN = {
    "a fence": (f"```json\n{ANSWER}\n```", "fence"),
    "a fence of tildes": (f"\n~~~\n{ANSWER}\n~~~\n", "fence"),
    "prose": (f"Here you are:\n{ANSWER}\nI hope that it helps.", "prose"),
    "prose full of braces": (FRACTIONS + ANSWER, "prose"),
    "prose with quotation marks": (f'He said: "{{so}} {{"a": "b" {ANSWER}', "prose"),
    "a draft before it": (f"First I thought {DRAFT}, but now: {ANSWER}", "prose"),
    "another object after it": (f'{ANSWER}\n{{}} {{"a": 1}}', "prose"),
    "an object that never ends": (f'{{"result": {{"a": [{ANSWER}, {{"b": "c', "prose"),
    "another object": (f'{{"draft": {DRAFT}, "final": [{ANSWER}]}}', "wrapper"),
    "closed reasoning": (f"<think>{FRACTIONS}{DRAFT}</think>\n{ANSWER}", "thinking"),
    "reasoning without a beginning": (f"{FRACTIONS}{DRAFT}</think>{ANSWER}", "thinking"),
    "reasoning in several parts": (f"<think>a</think><think>{DRAFT}</think>{ANSWER}<think>well", "thinking"),
    "reasoning after it": (f"{ANSWER}<thinking>was it {DRAFT}?</thinking>", "thinking"),
    "reasoning with an attribute": (f'<think budget="3">{DRAFT}</think >{ANSWER}', "thinking"),
    "reasoning of Magistral": (f"[THINK]{DRAFT}[/THINK]{ANSWER}", "thinking"),
    "reasoning of Seed-OSS": (f"<seed:think>{DRAFT}</seed:think>{ANSWER}", "thinking"),
    "reasoning of gpt-oss": (
        f"<|channel|>analysis<|message|>{DRAFT}<|end|><|start|>assistant<|channel|>final<|message|>{ANSWER}",
        "thinking",
    ),
    "nothing but reasoning": (f"<think>so: {DRAFT} no: {ANSWER}</think>\n", "thinking"),
    "reasoning that never ends": (f"<think>so: {DRAFT} no: {ANSWER}", "thinking"),
}


@pytest.mark.parametrize("text", AS_IT_IS.values(), ids=AS_IT_IS)
def test_a_bare_object_is_recorded_as_it_is(text: str) -> None:
    assert read_output(OUTPUTS["answer"], text) == Reading(ANSWER)


@pytest.mark.parametrize(("text", "kind"), WITHIN.values(), ids=WITHIN)
def test_the_last_object_that_satisfies_the_form_counts(text: str, kind: str) -> None:
    reading = read_output(OUTPUTS["answer"], text)
    assert json.loads(reading.text) == json.loads(ANSWER) and kind in reading.lenient
    assert set(reading.lenient) <= set(LENIENCIES)


def test_a_tag_within_a_string_of_the_answer_is_text() -> None:
    for told in ("<think>", "</think>", "</think> <think>"):
        whole = answer(answer=f"use {told} so")
        assert read(f"Well: {whole}")[0] == json.loads(whole)


def test_a_draft_in_the_reasoning_is_no_answer_beside_other_words() -> None:
    assert "Invalid JSON" in refused(f"<think>{DRAFT}</think>I cannot help with that.")


def test_of_a_reply_that_was_cut_off_only_the_object_at_its_end_counts() -> None:
    assert read(ANSWER + "\n" * 400, cut_off=True) == (json.loads(ANSWER), ())
    assert read(f"Well: {ANSWER} This is bec", cut_off=True)[0] == json.loads(ANSWER)
    for text in (f'{DRAFT} but: {{"reasoning": "r", "ans', f"<think>{DRAFT} but", ANSWER[:-3]):
        refused(text, cut_off=True)


NO_ANSWER = [
    "",
    " ",
    "The answer is 42.",
    "{" * 1_000,
    '{"a":' * 20_000,
    "[" * 100_000,
    ANSWER[:-5],
    '{"a": 1}',
    "null",
]


@pytest.mark.parametrize("text", NO_ANSWER, ids=lambda text: text[:12])
def test_a_text_without_a_whole_answer_is_invalid(text: str) -> None:
    assert len(refused(text)) < 300


def test_a_refused_text_leaves_nothing_to_the_collector() -> None:
    names = ", ".join(f'"n{number}": 0' for number in range(2_000))
    gc.collect()
    gc.disable()
    try:
        assert "stands twice" in refused(f'{{{names}, "x": 1, "x": 2}}')
        assert gc.collect() < 500, "the parsed pairs would be in cycles"
    finally:
        gc.enable()


def test_finds_the_objects_that_a_quadratic_search_finds() -> None:
    """The slow way: each place where an object may begin is tried."""
    chance = random.Random(1)
    pieces = [*'{}[],:" ', '{"a":', '"b"', "1", "null", "\\", '{"c": {}}', "x", '{":",', '":"', '"{"']
    seen = 0
    for _ in range(4_000):
        text = "".join(chance.choices(pieces, k=chance.randint(1, 14)))
        tried: list[tuple[int, int]] = []
        for start in range(len(text)):
            try:
                value, end = json.JSONDecoder().raw_decode(text, start)
            except ValueError:
                continue
            if isinstance(value, dict) and value and not any(a <= start and end <= b for a, b in tried):
                tried.append((start, end))
        # A comma before an end is let pass, and mended later.
        if re.search(r",\s*[}\]]", text) is None:
            # Empty objects are no answers, and may be left out.
            found = [span for span in objects(text) if json.loads(text[span.start : span.end])]
            assert sorted(found) == sorted(tried), text
            seen += len(tried)
    assert seen > 500


def test_a_beginning_that_was_read_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def run(text: str, place: int, decided: set[int]) -> list[Span]:
        tried.append(place)
        return real(text, place, decided)

    real: Any = vars(json_objects)["_run"]
    monkeypatch.setattr(json_objects, "_run", run)
    assert objects('{"a":' * 1_000) == [] and tried == [0]


# What decides nothing


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0.9, 90), (0.005, 0), ("90", 90), ("85%", 85), ("85.4 %", 85), ("0.9", 90), (90.4, 90), (0.0, 0), ("1%", 1),
        ("high", None), (101, None), (-1, None), (None, None), (True, None), ([90], None), (1e400, None),
        ("9" * 99, None),
    ],
)  # fmt: skip
def test_a_confidence_costs_no_answer(given: object, expected: int | None) -> None:
    found, lenient = read(answer(confidence=given))
    assert found == {"reasoning": "r", "answer": "42", "confidence": expected}
    assert set(lenient) <= {"confidence"}


RESPONSE = {"issue": 1, "decision": "accept", "reason": "x"}
LENIENT: dict[str, tuple[str, str, dict[str, Any], set[str]]] = {
    "surplus fields": ("answer", answer(notes="", more=[1]), {"answer": "42"}, {"extra_fields"}),
    "a number": ("answer", answer(answer=42), {"answer": "42"}, {"text"}),
    "a boolean": ("answer", answer(answer=True), {"answer": "true"}, {"text"}),
    "an object": ("answer", answer(answer={"x": [1]}), {"answer": '{"x": [1]}'}, {"json"}),
    "reasons as a list": ("answer", answer(reasoning=["a", 1]), {"reasoning": '["a", 1]'}, {"text"}),
    "the answer alone": (
        "answer",
        '{"answer": "42"}',
        {"reasoning": "", "answer": "42", "confidence": None},
        {"missing", "confidence"},
    ),
    "other spelling": (
        "answer",
        '{"Reasoning ": "r", "ANSWER": "42", "confidence": 1}',
        {"answer": "42"},
        {"spelling"},
    ),
    "line breaks": ("answer", answer(answer="a|b").replace("|", "\n\t"), {"answer": "a\n\tb"}, {"control_characters"}),
    "an unknown escape": (
        "answer",
        r'{"reasoning": "\alpha\\", "answer": "\"\(x\)", "confidence": 1}',
        {"reasoning": "\\alpha\\", "answer": '"\\(x\\)'},
        {"syntax"},
    ),
    "commas before an end": ("answer", answer(reasoning=",]")[:-1] + ", }", {"reasoning": ",]"}, {"syntax"}),
    "half a surrogate pair": (
        "answer",
        answer(answer="a|").replace("|", r"\ud83d"),
        {"answer": "a\ufffd"},
        {"surrogates"},
    ),
    "a missing reason": (
        "pair",
        '{"winner": "TIE", "margin": 2}',
        {"notes_a": "", "notes_b": "", "winner": "tie", "margin": 2},
        {"missing", "spelling"},
    ),
    "too many issues": (
        "critique",
        json.dumps({"issues": VALID["critique"]["issues"] * 9, "verdict": "Revise"}),
        {"issues": VALID["critique"]["issues"] * 4, "verdict": "revise"},
        {"extra_items", "spelling"},
    ),
    "malformed responses": (
        "revision",
        json.dumps({"responses": [{"issue": "1"}, RESPONSE, 3], "answer": "a", "confidence": 1}),
        {"responses": [RESPONSE]},
        {"responses", "missing"},
    ),
    "no responses": ("revision", '{"answer": "a", "confidence": 1}', {"responses": [], "answer": "a"}, {"responses"}),
}


@pytest.mark.parametrize(("kind", "text", "expected", "lenient"), LENIENT.values(), ids=LENIENT)
def test_what_decides_nothing_costs_no_answer(kind: str, text: str, expected: Any, lenient: set[str]) -> None:
    found, said = read(text, kind)
    assert found == {**found, **expected} and found.keys() == VALID[kind].keys()
    assert set(said) == lenient


def ballot(score: object = 7, criteria: tuple[str, ...] = ("right", "clear"), labels: str = "AB") -> str:
    entries = [{"id": each, "rationale": "seen", "score": score} for each in criteria]
    return json.dumps({label: {"criteria": entries} for label in labels})


def test_a_ballot_names_its_labels_and_criteria_in_any_order_and_spelling() -> None:
    whole = json.loads(ballot())
    assert read(ballot(criteria=("clear", "right")), "score") == (whole, ("order",))
    assert read(ballot(criteria=("Right ", "CLEAR"), labels="ab"), "score") == (whole, ("spelling",))
    assert read(ballot(labels="BA"), "score")[0] == whole
    assert read(ballot(criteria=("right", "clear", "short"), labels="ABC"), "score") == (whole, ("extra_fields",))


@pytest.mark.parametrize("score", [8.5, "8", "8/10", 11, -1, True, None])
def test_a_score_stays_strict(score: object) -> None:
    assert refused(ballot(score), "score").startswith("A.criteria.0.score: ")


@pytest.mark.parametrize(
    ("criteria", "labels", "fault"),
    [
        (("right",), "AB", "A.criteria: must be exactly right, clear"),
        (("right", "right"), "AB", "A.criteria: must be exactly right, clear"),
        (("right", "clear", "Clear"), "AB", "A.criteria: must be exactly right, clear"),
        (("right", "clear"), "A", "exactly the labels A, B"),
    ],
)
def test_a_ballot_that_is_missing_something_is_invalid(criteria: tuple[str, ...], labels: str, fault: str) -> None:
    assert fault in refused(ballot(criteria=criteria, labels=labels), "score")


def test_two_fields_of_one_spelling_are_none() -> None:
    assert refused('{"Answer": "1", "ANSWER": "2", "reasoning": ""}') == "answer: Field required"


def test_an_object_of_a_schema_may_be_written_as_a_text() -> None:
    output = Output(kind="answer").with_answers_of(json.dumps({"type": "object", "required": ["x"]}))
    reading = read_output(output, answer(answer='{"x": 1}'))
    assert json.loads(reading.text)["answer"] == {"x": 1} and reading.lenient == ("text",)
    with pytest.raises(InvalidOutput, match="answer: must be of type object"):
        read_output(output, answer(answer="{}"))


PIECES = [
    *'{}[]",:\\ \n\x00é',
    "\ud83d",
    r"\ud83d",
    "NaN",
    "1e999",
    "-",
    "null",
    "[]",
    "<think>",
    "</think>",
    "```",
    ANSWER,
]


def test_any_reply_is_read_into_a_record_or_is_invalid() -> None:
    """Replies that are mutated from valid ones: what is recorded can be stored, decoded and parsed."""
    chance, recorded = random.Random(5), 0
    schema = Output(kind="answer").with_answers_of(
        json.dumps({"type": "object", "properties": {"x": {"type": "integer"}}})
    )
    forms = [*OUTPUTS.items(), ("answer", schema)]
    for _ in range(4_000):
        name, output = chance.choice(forms)
        value = {**VALID[name], "answer": {"x": 1}} if output is schema else VALID[name]
        text = json.dumps(value, indent=chance.choice((None, 1)))
        for _ in range(chance.randint(1, 2)):
            place, length = chance.randrange(len(text) + 1), chance.choice((0, 0, 1, 1, 2, 9))
            text = text[:place] + chance.choice(("", "", *PIECES)) + text[place + length :]
        try:
            reading = read_output(output, text, cut_off=chance.random() < 0.2)
        except InvalidOutput as invalid:
            str(invalid).encode()
            continue
        recorded += 1
        reading.text.encode()
        parse_output(output, reading.text)
    assert recorded > 800


def test_the_documentation_names_each_lenient_reading() -> None:
    page = Path("docs/engines.md").read_text(encoding="utf-8")
    for kind, meaning in LENIENCIES.items():
        assert f"| `{kind}` | {meaning} |" in page


# Backslashes

BACKSLASHES = {
    "a formula and two lines": (
        r"Step 1: is \alpha.\nStep 2: (x,\nu) \to \infty\n\nDone",
        "Step 1: is \\alpha.\nStep 2: (x,\\nu) \\to \\infty\n\nDone",
    ),
    "half of a command alone": (r"2 \times 3", r"2 \times 3"),
    "a carriage return in a formula": (r"\left( \rho \right)", r"\left( \rho \right)"),
    "a folder with a blank": (r"C:\Users\John Smith\new folder\temp", r"C:\Users\John Smith\new folder\temp"),
    "a relative path": (r"src\app\new\test.py", r"src\app\new\test.py"),
    "an expression": (r"^\d+\t\w+\b", r"^\d+\t\w+\b"),
    "a program with an expression": (
        r"import re\nif x:\n\treturn re.match('\d', x)\n",
        "import re\nif x:\n\treturn re.match('\\d', x)\n",
    ),
    "a document": (
        r"\section{Intro}\nWe show \textbf{this}\n\end{document}",
        "\\section{Intro}\nWe show \\textbf{this}\n\\end{document}",
    ),
    "known escapes beside an unknown one": (r"\user \u00e9 \/ \"", '\\user é / "'),
    "a program": (r"def f():\n\treturn 1", "def f():\n\treturn 1"),
    "doubled ones": (r"C:\\new\\temp \\frac \\theta", r"C:\new\temp \frac \theta"),
    "a table": (r"one\ttwo\nthree", "one\ttwo\nthree"),
    "a form feed between pages": (r"one\n\f\ntwo", "one\n\f\ntwo"),
}


@pytest.mark.parametrize("name", BACKSLASHES)
def test_backslashes_are_read_as_the_model_meant_them(name: str) -> None:
    written, meant = BACKSLASHES[name]
    reply = f'{{"reasoning": "r", "answer": "{written}", "confidence": 90}}'
    found, lenient = read(reply)
    assert found["answer"] == meant
    try:
        as_it_is = json.loads(reply) == found
    except ValueError:
        as_it_is = False
    assert lenient == (() if as_it_is else ("syntax",))


def test_backslashes_of_a_long_reply_take_linear_time() -> None:
    written = r"C:\new\a \n x\theta " * 5_000
    began_s = time.process_time()
    found, _ = read(f'{{"reasoning": "r", "answer": "{written}", "confidence": 90}}')
    assert found["answer"].startswith(r"C:\new\a") and time.process_time() - began_s < 3


SCORED = Output(kind="score", labels=("A",), criteria=("right", "clear"))
BY_ID = {"right": {"rationale": "x", "score": 7}, "clear": {"rationale": "y", "score": 3}}


@pytest.mark.parametrize(
    "candidate",
    [
        {"criteria": BY_ID},
        {"criteria": {"clear": {"rationale": "y", "score": 3}, "Right": {"id": "other", "rationale": "x", "score": 7}}},
        {"criteria": {"right": 7, "clear": 3}},
        BY_ID,
        [{"id": name, **score} for name, score in BY_ID.items()],
    ],
)
def test_criteria_may_come_by_their_ids(candidate: object) -> None:
    reading = read_output(SCORED, json.dumps({"A": candidate}))
    (scored,) = json.loads(reading.text).values()
    assert [(each["id"], each["score"]) for each in scored["criteria"]] == [("right", 7), ("clear", 3)]
    assert {"order", "wrapper"} & set(reading.lenient)


def test_criteria_by_their_ids_need_all_scores() -> None:
    with pytest.raises(InvalidOutput):
        read_output(SCORED, json.dumps({"A": {"criteria": {"right": 7}}}))
