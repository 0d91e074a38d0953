import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from app.deliberation.errors import InvalidOutput
from app.deliberation.outputs import (
    ISSUES_MAX,
    TEXT_CHARS_MAX,
    Answer,
    Critique,
    Output,
    Pair,
    ParsedOutput,
    Revision,
    Scores,
    json_schema,
    parse_output,
)
from app.deliberation.readings import read_output
from tests.unit.output_forms import ISSUE, OUTPUTS, RESPONSE, VALID, candidate, criterion

FORMS: dict[str, type[ParsedOutput]] = {
    "answer": Answer,
    "critique": Critique,
    "revision": Revision,
    "score": Scores,
    "pair": Pair,
}


def checked_form(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as the parser checks it: an answer is not empty, and a confidence may be missing."""
    properties = schema["properties"]
    required = [name for name in schema["required"] if name != "confidence"]
    if "confidence" in properties:
        properties = {**properties, "confidence": {"anyOf": [properties["confidence"], {"type": "null"}]}}
    return {
        **schema,
        "required": required,
        "properties": {
            **properties,
            **({"answer": {"type": "string", "minLength": 1}} if "answer" in properties else {}),
        },
    }


VALIDATORS = {name: Draft202012Validator(checked_form(json_schema(output))) for name, output in OUTPUTS.items()}


def parsed(name: str, value: object) -> ParsedOutput | None:
    try:
        return parse_output(OUTPUTS[name], json.dumps(value))
    except InvalidOutput:
        return None


def agree(name: str, value: Any) -> bool:
    """Whether the value is valid; the schema and the parser must say the same.

    But for a revision's surplus responses, which are dropped: what is left must be valid.
    """
    valid, found = VALIDATORS[name].is_valid(value), parsed(name, value)
    if isinstance(found, Revision) and not valid:
        left = [response.model_dump() for response in found.responses]
        assert left != value["responses"] and VALIDATORS[name].is_valid({**value, "responses": left}), value
    else:
        assert (found is not None) == valid, value
    return valid


def _members(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(cast("dict[Any, Any]", value).items())
    return list(enumerate(cast("list[Any]", value))) if isinstance(value, list) else []


@pytest.mark.parametrize("name", OUTPUTS)
def test_each_schema_is_one_and_takes_its_form(name: str) -> None:
    Draft202012Validator.check_schema(json_schema(OUTPUTS[name]))
    assert isinstance(parse_output(OUTPUTS[name], json.dumps(VALID[name])), FORMS[name])
    assert agree(name, VALID[name])


def unbounded(schema: Any, where: str = "$") -> list[str]:
    needed = {
        "array": ["maxItems"],
        "integer": ["minimum", "maximum"],
        "object": ["additionalProperties"],
    }
    members = dict(_members(schema))
    faults = [f"{where}: {missing}" for missing in needed.get(str(members.get("type")), []) if missing not in members]
    return faults + [fault for key, each in members.items() for fault in unbounded(each, f"{where}.{key}")]


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_array_and_integer_of_a_schema_is_bounded_and_no_text_is(name: str) -> None:
    schema = json_schema(OUTPUTS[name])
    assert unbounded(schema) == []
    assert unbounded({"type": "object", "properties": {"a": {"type": "integer"}}}) != []
    # A bound on a text would leave no way to write a line break: see the module's docstring.
    assert "Length" not in json.dumps(schema)


@pytest.mark.parametrize("name", OUTPUTS)
def test_reasons_precede_scores_and_answers(name: str) -> None:
    order = list(json_schema(OUTPUTS[name])["properties"])
    expected = {
        "answer": ["reasoning", "answer", "confidence"],
        "critique": ["issues", "verdict"],
        "revision": ["responses", "answer", "confidence"],
        "score": ["A", "B"],
        "pair": ["notes_a", "notes_b", "winner", "margin"],
    }
    assert order == expected[name]
    if name == "score":
        listing = json_schema(OUTPUTS[name])["properties"]["A"]["properties"]["criteria"]["prefixItems"]
        assert [list(each["properties"]) for each in listing] == [["id", "rationale", "score"]] * 2


# Nearly valid values: one change each


def _paths(value: Any) -> list[tuple[Any, ...]]:
    return [(), *((key, *path) for key, each in _members(value) for path in _paths(each))]


def _changed(value: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    copy = deepcopy(value)
    target = copy
    for key in path[:-1]:
        target = target[key]
    change(target, path[-1])
    return copy


REPLACEMENTS: list[Any] = [
    *(None, True, -1, 0, 1, 4, 7.0, 7.5, 10, 11, 101),
    *("7", "", "x" * 41, "x" * 3_000),
    *([], {}, [{}] * 9, {"": 0}),
]


def _replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    return _changed(value, path, lambda target, key: target.__setitem__(key, by))


def near_misses(value: Any) -> list[Any]:
    found: list[Any] = [None, 1, "text", [], {}, [value]]
    for path in _paths(value)[1:]:
        found.append(_changed(value, path, lambda target, key: target.pop(key)))
        found += [_replaced(value, path, by) for by in REPLACEMENTS]
    for path in _paths(value):
        inner = value
        for key in path:
            inner = inner[key]
        if isinstance(inner, dict):
            found.append(_replaced(value, (*path, "more"), 1))
        if isinstance(inner, list):
            found.append(_changed(value, (*path, 0), lambda target, _: target.append(deepcopy(target[0]))))
            found.append(_changed(value, (*path, 0), lambda target, _: target.reverse()))
    return found


@pytest.mark.parametrize("name", OUTPUTS)
def test_schema_and_parser_agree_on_all_that_is_nearly_valid(name: str) -> None:
    verdicts = [agree(name, value) for value in near_misses(VALID[name])]
    assert verdicts.count(False) > 50
    assert verdicts.count(True) > 3


_SHORT = st.text(max_size=45)
_WHOLE = st.integers(-1, 102)
_RESPONSES = st.lists(
    st.fixed_dictionaries({"issue": st.integers(0, 3), "decision": st.just("reject"), "reason": _SHORT}), max_size=3
)
_CRITERIA = st.lists(
    st.fixed_dictionaries(
        {"id": st.sampled_from(["right", "clear"]), "rationale": _SHORT, "score": st.integers(-1, 11)}
    ),
    min_size=1,
    max_size=3,
)
_SEVERITY = st.sampled_from(["blocker", "major", "minor", "nit"])
_VALUES = {
    "answer": st.fixed_dictionaries({"reasoning": _SHORT, "answer": _SHORT, "confidence": _WHOLE}),
    "critique": st.fixed_dictionaries(
        {
            "issues": st.lists(
                _SEVERITY.map(lambda severity: {**ISSUE, "severity": severity}), max_size=ISSUES_MAX + 1
            ),
            "verdict": st.sampled_from(["accept", "revise", "reject", "maybe"]),
        }
    ),
    "revision": st.fixed_dictionaries({"responses": _RESPONSES, "answer": _SHORT, "confidence": _WHOLE}),
    "score": st.dictionaries(
        st.sampled_from(["A", "B", "B", "C"]), st.fixed_dictionaries({"criteria": _CRITERIA}), max_size=3
    ),
    "pair": st.fixed_dictionaries(
        {
            "notes_a": _SHORT,
            "notes_b": _SHORT,
            "winner": st.sampled_from(["A", "B", "tie", "C"]),
            "margin": st.integers(0, 4),
        }
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_schema_and_parser_agree_on_values_of_the_right_shape(name: str, data: st.DataObject) -> None:
    agree(name, data.draw(_VALUES[name]))


# Texts that are no answer

NONSENSE = ["", " ", "{", "null", "[]", "nonsense", "```json\n{}\n```", "{} {}", '{"a": NaN}', "\x00", "[" * 100_000]


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_incomplete_or_foreign_document_is_invalid(name: str) -> None:
    whole = json.dumps(VALID[name])
    truncated = [whole[:cut] for cut in range(0, len(whole), 7)]
    for text in [*NONSENSE, *truncated, whole + "}", whole + " and more", f"Here it is: {whole}"]:
        with pytest.raises(InvalidOutput):
            parse_output(OUTPUTS[name], text)
    assert parse_output(OUTPUTS[name], f"\n {whole}\n ") == parse_output(OUTPUTS[name], whole)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_name_that_stands_twice_in_an_object_is_invalid(name: str) -> None:
    whole = json.dumps(VALID[name])
    first = next(iter(VALID[name]))
    member = f"{json.dumps(first)}: {json.dumps(VALID[name][first])}"
    twice = f"{{{member}, {whole[1:]}"
    assert json.loads(twice) == VALID[name]
    with pytest.raises(InvalidOutput, match=f"{first}: stands twice"):
        read_output(OUTPUTS[name], twice)


def test_a_ballot_that_only_becomes_one_inside_another_document_is_invalid() -> None:
    with pytest.raises(InvalidOutput):
        parse_output(OUTPUTS["score"], f'null, "candidates": {json.dumps(VALID["score"])}')


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"A": candidate()}, "exactly the labels A, B"),
        ({"A": candidate(), "B": candidate(), "C": candidate()}, "exactly the labels A, B"),
        ({"A": candidate(), "B": {"criteria": [criterion("right")]}}, "B.criteria: must be exactly right, clear"),
        ({"A": candidate(), "B": {"criteria": [criterion("clear"), criterion("right")]}}, "in this order"),
        ({"A": candidate(), "B": {"criteria": [criterion("right")] * 2}}, "in this order"),
        ({"A": candidate(), "B": {"criteria": [criterion("right", 11), criterion("clear")]}}, "B.criteria.0.score"),
        ({"A": candidate(), "B": {"criteria": [criterion("right", "7"), criterion("clear")]}}, "B.criteria.0.score"),
    ],
)
def test_an_invalid_ballot_names_its_fault(value: object, fault: str) -> None:
    with pytest.raises(InvalidOutput, match=fault):
        parse_output(OUTPUTS["score"], json.dumps(value))


def test_the_text_of_a_fault_is_short_for_an_output_of_any_length() -> None:
    long = "x" * 500_000
    for text in (json.dumps({long: 1}), f'{{"{long}": 1, "{long}": 1}}', long):
        with pytest.raises(InvalidOutput) as caught:
            read_output(OUTPUTS["pair"], text)
        assert len(str(caught.value)) < 500


def numbers_of(output: Output, numbers: list[int]) -> list[int]:
    responses = [{**RESPONSE, "issue": number, "reason": f"{place}"} for place, number in enumerate(numbers)]
    found = parse_output(output, json.dumps({**VALID["revision"], "responses": responses}))
    assert isinstance(found, Revision) and found.answer == "a"
    first = {number: str(place) for place, number in reversed(list(enumerate(numbers)))}
    assert all(each.reason == first[each.issue] for each in found.responses), "the first to each issue stands"
    return [each.issue for each in found.responses]


def test_a_response_to_nothing_that_was_raised_is_dropped_and_the_text_stands() -> None:
    for numbers, kept in (([1, 2, 3], [1, 2]), ([3], []), ([2, 2, 1], [2, 1]), ([9, 1, 10**9], [1]), ([1] * 40, [1])):
        assert numbers_of(OUTPUTS["revision"], numbers) == kept
    assert numbers_of(Output(kind="revision", issues=1), [1, 2]) == [1]
    assert numbers_of(Output(kind="revision"), list(range(1, 12))) == list(range(1, 9))


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_text_beyond_any_completion_is_invalid(name: str) -> None:
    whole = json.dumps(VALID[name])
    text = next(value for value in ("wrong", "true", "seen", "a", "r") if f'"{value}"' in whole)
    grown = whole.replace(f'"{text}"', f'"{"😀" * TEXT_CHARS_MAX}"', 1)
    assert parse_output(OUTPUTS[name], grown), "characters are counted and not bytes"
    with pytest.raises(InvalidOutput, match=str(TEXT_CHARS_MAX)):
        parse_output(OUTPUTS[name], grown.replace("😀", "😀x", 1))


@pytest.mark.parametrize(
    ("severities", "demanded"),
    [([], False), (["minor", "minor"], False), (["minor", "major"], True), (["blocker"], True)],
)
def test_a_critique_demands_a_revision_for_a_major_issue_or_a_blocker(severities: list[str], demanded: bool) -> None:
    value = {"issues": [{**ISSUE, "severity": severity} for severity in severities], "verdict": "accept"}
    found = parse_output(OUTPUTS["critique"], json.dumps(value))
    assert isinstance(found, Critique)
    assert found.demands_revision == demanded
