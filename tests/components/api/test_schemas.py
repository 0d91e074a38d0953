import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from pydantic import Field, ValidationError

from app.api import problems
from app.api.problems import ERRORS_MAX, InvalidJson, ValidationFailed, body_problems
from app.api.request_body import JSON_VALUES_MAX, checked_json, parsed_body
from app.api.requests import TASK_CHARS_MAX, DeliberationRequest
from app.api.schemas import FieldProblem
from app.deliberation.specification import DEFAULT_RUBRIC
from app.deliberation.strategies import STRATEGIES
from app.lifecycle.specify import agents, body_sha256, deliberation_id, issued_at, specification
from app.process_settings import read_roles
from tests.story import NOW

ROLES = read_roles(None)
KNOWN = {"roles": ROLES, "strategies": STRATEGIES}
CRITERION = {"id": "c", "description": "d"}


def read(body: object) -> DeliberationRequest:
    return DeliberationRequest.model_validate_json(json.dumps(body), context=KNOWN)


def faults(body: object) -> dict[str, FieldProblem]:
    try:
        read(body)
    except ValidationError as exc:
        return {fault.pointer: fault for fault in body_problems(exc, DeliberationRequest).errors}
    except ValidationFailed as exc:
        return {fault.pointer: fault for fault in exc.errors}
    return {}


BOUNDS: list[tuple[str, object, bool]] = [
    ("/task", "x", True),
    ("/task", "x" * TASK_CHARS_MAX, True),
    ("/task", "x" * (TASK_CHARS_MAX + 1), False),
    ("/task", "", False),
    ("/task", " \n", False),
    ("/task", 5, False),
    ("/role", "NOBODY", False),
    ("/role", "dev", True),
    ("/num_agents", 1, True),
    ("/num_agents", 32, True),
    ("/num_agents", 0, False),
    ("/num_agents", 33, False),
    ("/num_agents", 2.5, False),
    ("/num_agents", 2.0, True),
    ("/num_agents", 1e400, False),
    ("/num_agents", True, False),
    ("/agents", [{"role": "DEV", "count": 32}], True),
    ("/agents", [{"role": "DEV", "count": 31}, {"role": "QA", "count": 2}], False),
    ("/agents", [], False),
    ("/agents/0/role", [{"role": "NOBODY"}], False),
    ("/agents/0/count", [{"role": "DEV", "count": 0}], False),
    ("/agents/1/temperature", [{"role": "DEV"}, {"role": "QA", "temperature": 2.1}], False),
    ("/agents/0/model", [{"role": "DEV", "model": ""}], False),
    ("/agents/0/extra", [{"role": "DEV", "extra": 1}], False),
    ("/strategy", "council", True),
    ("/strategy", "prayer", False),
    ("/rounds", 0, True),
    ("/rounds", 5, True),
    ("/rounds", -1, False),
    ("/rounds", 6, False),
    ("/constraints/rubric", {"rubric": "Is it short?"}, True),
    ("/constraints/rubric", {"rubric": [CRITERION]}, True),
    ("/constraints/rubric", {"rubric": []}, False),
    ("/constraints/rubric", {"rubric": [CRITERION, CRITERION]}, False),
    ("/constraints/rubric", {"rubric": 5}, False),
    ("/constraints/rubric/0/description", {"rubric": "x" * 2_001}, False),
    ("/constraints/rubric/0/id", {"rubric": [{"id": "C C", "description": "d"}]}, False),
    ("/constraints/rubric/0/weight", {"rubric": [{**CRITERION, "weight": 0}]}, False),
    ("/constraints/requirements", {"requirements": ["a"] * 32}, True),
    ("/constraints/requirements", {"requirements": ["a"] * 33}, False),
    ("/constraints/requirements/0", {"requirements": [""]}, False),
    ("/constraints/timeout_seconds", {"timeout_seconds": 1}, True),
    ("/constraints/timeout_seconds", {"timeout_seconds": 3_600}, True),
    ("/constraints/timeout_seconds", {"timeout_seconds": 0}, False),
    ("/constraints/timeout_seconds", {"timeout_seconds": 3_601}, False),
    ("/constraints/on_deadline", {"on_deadline": "fail"}, True),
    ("/constraints/on_deadline", {"on_deadline": "later"}, False),
    ("/constraints/metadata/k", {"metadata": {"k": 1}}, False),
    ("/constraints/extra", {"extra": 1}, False),
    ("/quorum", 3, True),
    ("/quorum", 0, False),
    ("/quorum", 4, False),
    ("/budget/max_tokens", {"max_tokens": 0}, False),
    ("/budget/max_calls", {"max_calls": 0}, False),
    ("/budget/max_cost", {"max_cost": 1_000_001}, False),
    ("/budget/max_cost", {"max_cost": 0}, False),
    ("/budget/max_cost", {"max_cost": 0.0000001}, False),
    ("/budget/max_cost", {"max_cost": "1"}, False),
    ("/sampling/temperature", {"temperature": 2}, True),
    ("/sampling/temperature", {"temperature": 2.01}, False),
    ("/sampling/temperature", {"temperature": -0.1}, False),
    ("/sampling/max_tokens", {"max_tokens": 32_768}, True),
    ("/sampling/max_tokens", {"max_tokens": 32_769}, False),
    ("/sampling/max_tokens", {"max_tokens": 0}, False),
    ("/sampling/top_p", {"top_p": 1}, True),
    ("/sampling/top_p", {"top_p": 0}, False),
    ("/seed", 0, True),
    ("/seed", 2**63 - 1, True),
    ("/seed", 2**63, False),
    ("/seed", -1, False),
    ("/seed", "1", False),
    ("/metadata", {f"k{n}": "v" for n in range(16)}, True),
    ("/metadata", {f"k{n}": "v" for n in range(17)}, False),
    ("/metadata/k", {"k": 1}, False),
    ("/metadata/k", {"k": "v" * 513}, False),
    ("/metadata/a key", {"a key": "v"}, False),
    ("/unknown", 1, False),
    ("/a~1b~0c", 1, False),
]


@pytest.mark.parametrize(("pointer", "value", "valid"), BOUNDS)
def test_a_field_out_of_bounds_is_named(pointer: str, value: object, valid: bool) -> None:
    field = pointer.split("/")[1].replace("~1", "/").replace("~0", "~")
    found = faults({"task": "t", field: value})
    assert (not found) == valid, found
    if not valid:
        assert list(found) == [pointer]
        assert found[pointer].location == "body"
        assert found[pointer].remedy


def test_all_invalid_fields_are_named_at_once() -> None:
    found = faults({"role": "NOBODY", "strategy": "prayer", "rounds": 9, "agents": [{"role": "X"}], "other": 1})
    assert set(found) == {"/task", "/role", "/strategy", "/rounds", "/agents/0/role", "/other"}
    assert "DEV" in found["/role"].remedy
    assert "council" in found["/strategy"].remedy
    assert found["/task"].code == "missing"


def test_agents_and_num_agents_exclude_each_other() -> None:
    found = faults({"task": "t", "agents": [{"role": "QA"}], "role": "DEV", "num_agents": 2, "quorum": 2})
    assert set(found) == {"/role", "/num_agents", "/quorum"}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"strategy": "council", "constraints": {"agreement_min": 0.5}}, {"/constraints/agreement_min"}),
        (
            {"strategy": "vote", "parameters": {"normaliser": "none"}, "constraints": {"agreement_min": 0.5}},
            {"/constraints/agreement_min"},
        ),
        ({"strategy": "vote", "constraints": {"on_disagreement": "fail"}}, {"/constraints/on_disagreement"}),
        (
            {
                "strategy": "vote",
                "constraints": {
                    "agreement_min": 0.5,
                    "on_disagreement": "reply",
                    "answer_schema": {"type": "object"},
                },
            },
            {"/constraints/on_disagreement"},
        ),
        ({"strategy": "fuse", "actions": {"tools": [{"name": "f"}]}}, {"/strategy"}),
        ({"strategy": "execute", "actions": {"tools": [{"name": "f"}]}}, {"/strategy"}),
        (
            {"strategy": "auto", "parameters": {"escalate_to": "fuse"}, "actions": {"tools": [{"name": "f"}]}},
            {"/parameters/escalate_to"},
        ),
        (
            {"strategy": "vote", "parameters": {"normaliser": "json"}, "actions": {"tools": [{"name": "f"}]}},
            {"/parameters/normaliser"},
        ),
        (
            {"workspace": {"files": [{"path": "a", "text": "b"}]}, "actions": {"tools": [{"name": "read_file"}]}},
            {"/actions/tools/0/name"},
        ),
        (
            {
                "workspace": {"files": [{"path": "a", "text": "b"}]},
                "tools": [],
                "actions": {"tools": [{"name": "read_file"}]},
            },
            set[str](),
        ),
    ],
)
def test_what_actions_and_agreement_demand_is_refused_by_name(fields: dict[str, Any], found: set[str]) -> None:
    assert set(faults({"task": "t", **fields})) == found


def test_bounds_of_all_tools_and_of_a_whole_conversation_are_told_in_words() -> None:
    properties: dict[str, Any] = {f"p{number}": {} for number in range(400)}
    tools = [{"name": f"t{n}", "parameters": {"type": "object", "properties": properties}} for n in range(8)]
    (fault,) = faults({"task": "t", "strategy": "vote", "actions": {"tools": tools}}).values()
    assert (fault.pointer, fault.code) == ("/actions/tools", "too_long") and "2,048 nodes" in fault.detail
    (fault,) = faults({"conversation": [{"role": "user", "text": "x" * 1_100_000}] * 2}).values()
    assert (fault.pointer, fault.code) == ("/conversation", "string_too_long") and fault.remedy.endswith("in all.")


def test_a_gateway_without_the_default_role_requires_a_role() -> None:
    with pytest.raises(ValidationFailed) as refused:
        DeliberationRequest.model_validate_json('{"task":"t"}', context={**KNOWN, "roles": {"QA": ROLES["QA"]}})
    assert [(fault.pointer, fault.code) for fault in refused.value.errors] == [("/role", "unknown_role")]


def test_problems_are_bounded_and_never_quote_values() -> None:
    found = faults({"task": "t", **{f"{'k' * 1_000}{n}": "canary" for n in range(500)}})
    assert len(found) == 1  # they differ beyond the length that is shown
    assert all(len(pointer) <= 256 and "canary" not in fault.detail for pointer, fault in found.items())


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"{'task':1}",
        b'{"task":NaN}',
        b'{"task":Infinity}',
        b'{"task":"a","task":"b"}',
        b'{"a":{"b":1,"b":2}}',
        b'{"task":"\xff"}',
        b'{"task":"a"} {}',
        b"[" * 33 + b"]" * 33,
        b"[" * 200_000,
        b'{"n":' + b"9" * 5_000 + b"}",
        b'{"a":"\x01"}',
    ],
    ids=lambda content: repr(content[:24]),
)
def test_rejects_json_that_parsers_read_differently(content: bytes) -> None:
    with pytest.raises(InvalidJson):
        checked_json(content)


def test_a_body_has_no_more_values_than_its_bound() -> None:
    most = json.dumps({"a": [{"b": 0}] * ((JSON_VALUES_MAX - 2) // 2)}).encode()
    assert checked_json(most) == most
    with pytest.raises(InvalidJson, match="more than 10,000 values"):
        checked_json(json.dumps({"a": [0] * JSON_VALUES_MAX}).encode())


def test_of_many_faults_the_first_are_described_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A description takes ten times the validation of its value."""
    described: list[str] = []

    def described_at(location: Sequence[int | str]) -> str:
        described.append(str(location))
        return described[-1]

    monkeypatch.setattr(problems, "pointer", described_at)
    body = {"task": "t", **{f"f{number}": number for number in range(9_000)}}
    with pytest.raises(ValidationFailed) as refused:
        parsed_body(json.dumps(body).encode(), DeliberationRequest)
    assert len(refused.value.errors) == len(described) == ERRORS_MAX
    assert "`errors` names 63 of 8999 more." in str(refused.value)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"task": "t", "rounds": 1}, {"rounds": 1, "task": "t"}, True),
        ({"task": "t"}, {"task": "t", "rounds": 1, "strategy": "council"}, True),
        ({"task": "t", "metadata": {"a": "1", "b": "2"}}, {"task": "t", "metadata": {"b": "2", "a": "1"}}, True),
        ({"task": "t"}, {"task": "u"}, False),
        ({"task": "t"}, {"task": "t", "seed": 1}, False),
    ],
)
def test_equivalent_bodies_have_the_same_hash(one: object, other: object, same: bool) -> None:
    assert (body_sha256(read(one)) == body_sha256(read(other))) == same


@pytest.mark.parametrize(
    ("body", "sha256"),
    [
        ({"task": "t"}, "875b61a44742b3d2678ea9f04ac1f99218cd710740b13632c8d842dd5fe5f2b9"),
        (
            {
                "task": "t",
                "agents": [{"role": "DEV"}],
                "constraints": {"rubric": "r"},
                "webhook": {"url": "https://example.com/"},
            },
            "8eedd3e4e15f462470c4a22a677cd572af333e4b51e1b9d0c8b0bf6b9789dee5",
        ),
    ],
)
def test_an_upgrade_keeps_the_hash_of_a_body(body: object, sha256: str) -> None:
    assert body_sha256(DeliberationRequest.model_validate(body)) == sha256, (
        "give a new field `exclude_if` for its default"
    )


def test_a_field_that_is_left_out_at_its_default_keeps_the_hash() -> None:
    class Later(DeliberationRequest):
        note: str | None = Field(default=None, exclude_if=lambda note: note is None)

    body = {"task": "t"}
    assert body_sha256(Later.model_validate(body)) == body_sha256(read(body))
    assert body_sha256(Later.model_validate({**body, "note": "n"})) != body_sha256(read(body))


def test_only_later_agents_vary_their_temperature_within_bounds() -> None:
    members = [{"role": "DEV", "count": 2}, {"role": "QA", "temperature": 0.1, "model": "m"}, {"role": "DEV"}]
    council = agents(read({"task": "t", "agents": members, "sampling": {"temperature": 1.8, "top_p": 0.5}}), ROLES)
    assert [agent.agent_id for agent in council] == ["dev-001", "dev-002", "qa-001", "dev-003"]
    assert [agent.sampling.temperature for agent in council] == [1.8, 2.0, 0.1, 2.0]
    assert {agent.sampling.top_p for agent in council} == {0.5}
    assert [agent.model for agent in council] == [None, None, "m", None]


def specified(body: dict[str, Any]) -> Any:
    return specification(read(body), ROLES, STRATEGIES, timeout_s=77)


def test_a_drawn_seed_is_a_number_that_a_double_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbelow", lambda below: below - 1)
    assert specified({"task": "t"}).seed == 2**53 - 1 == int(float(2**53 - 1))
    assert specified({"task": "t", "seed": 2**63 - 1}).seed == 2**63 - 1, "a given seed is kept"


def test_defaults_are_filled_in_at_acceptance() -> None:
    made = specified({"task": "t"})
    assert made.size == 3
    assert {agent.role for agent in made.agents} == {"DEV"}
    assert (made.strategy, made.rounds, made.quorum) == ("council", 1, 2)
    assert made.constraints.rubric == DEFAULT_RUBRIC
    assert made.constraints.timeout_seconds == 77
    assert made.agents[0].sampling.model_dump() == {"temperature": 0.7, "max_tokens": 2_048, "top_p": None}
    assert made.agents[1].sampling.temperature == 0.91
    assert made.constraints.on_deadline == "best"
    assert made.seed != specified({"task": "t"}).seed


def test_an_id_is_a_digest_of_tenant_and_key_or_time_and_random_bits() -> None:
    assert deliberation_id("a", "k", NOW) == deliberation_id("a", "k", NOW + timedelta(days=1))
    keyed = {deliberation_id(tenant, key, NOW) for tenant, key in (("a", "k"), ("b", "k"), ("a", "l"))}
    drawn = {deliberation_id("a", None, NOW) for _ in range(2)}
    assert len(keyed) == 3 and len(drawn) == 2
    assert all(len(each) == 26 and set(each) <= set("0123456789abcdefghijklmnopqrstuv") for each in keyed | drawn)


def test_only_an_id_without_a_key_contains_its_issue_time() -> None:
    for at in (NOW, NOW + timedelta(milliseconds=1), NOW + timedelta(days=36_500)):
        assert issued_at(deliberation_id("a", None, at)) == at
    assert deliberation_id("a", None, NOW) < deliberation_id("a", None, NOW + timedelta(milliseconds=1))
    foreign = [deliberation_id("a", str(number), NOW) for number in range(300)]
    assert {issued_at(each) for each in (*foreign, "d1", "", "0" * 25, "0" * 27, "0" * 25 + "w", "0" * 25 + "٣")} == {
        None
    }
