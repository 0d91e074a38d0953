"""Members with names and personas of their own: what an acceptance records, and what is refused."""

from typing import Any

import pytest

from tests.components.routes.served import Served, served

PERSONA = "You look for the flaw that makes the plan fail."


async def test_a_member_has_its_own_name_and_persona(gateway: Served) -> None:
    council = [
        {"name": "sceptic", "persona": PERSONA},
        {"role": "QA", "count": 2},
        {"role": "QA", "name": "tester", "persona": "You test.", "count": 2},
        {"name": "plain", "role": "dev"},
    ]
    agents = (await gateway.client.get(f"/deliberations/{await gateway.accepted(agents=council)}")).json()["agents"]
    assert [(each["agent_id"], each["role"], each.get("persona")) for each in agents] == [
        ("sceptic", "DEV", PERSONA),
        ("qa-001", "QA", None),
        ("qa-002", "QA", None),
        ("tester-001", "QA", "You test."),
        ("tester-002", "QA", "You test."),
        ("plain", "DEV", None),
    ]


async def test_two_entries_of_one_name_are_numbered_on(gateway: Served) -> None:
    council = [{"name": "judge", "count": 2}, {"name": "judge", "count": 2, "persona": PERSONA}]
    agents = (await gateway.client.get(f"/deliberations/{await gateway.accepted(agents=council)}")).json()["agents"]
    assert [each["agent_id"] for each in agents] == [f"judge-00{number}" for number in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("council", "pointer", "code"),
    [
        ([{"name": "a"}, {"name": "a", "role": "QA"}], "/agents/1/name", "repeated_name"),
        ([{"role": "DEV"}, {"name": "dev-001"}], "/agents/1/name", "repeated_name"),
        ([{"name": "A"}], "/agents/0/name", "string_pattern_mismatch"),
        ([{"name": "a.b"}], "/agents/0/name", "string_pattern_mismatch"),
        ([{"name": "a" * 41}], "/agents/0/name", "string_pattern_mismatch"),
        ([{"persona": " \n"}], "/agents/0/persona", "blank"),
        ([{"persona": "p" * 4_001}], "/agents/0/persona", "string_too_long"),
        ([{"persona": 5}], "/agents/0/persona", "string_type"),
    ],
)
async def test_a_member_that_cannot_be_is_refused_by_its_field(
    gateway: Served, council: list[dict[str, Any]], pointer: str, code: str
) -> None:
    answer = await gateway.post({"task": "t", "agents": council})
    assert answer.status_code == 422
    (fault,) = answer.json()["errors"]
    assert (fault["pointer"], fault["code"]) == (pointer, code) and fault["remedy"]


async def test_a_member_without_a_role_needs_the_default_one(tmp_path: Any) -> None:
    (roles := tmp_path / "roles.yaml").write_text("roles: {QA: {persona: p}}")
    async with served(roles_file=roles) as gateway:
        (fault,) = (await gateway.post({"task": "t", "agents": [{"persona": PERSONA}]})).json()["errors"]
        assert (fault["pointer"], fault["code"]) == ("/agents/0/role", "unknown_role")


async def test_a_persona_is_in_the_price(gateway: Served) -> None:
    async def tokens(persona: str) -> int:
        body = {"task": "t", "strategy": "independent", "agents": [{"persona": persona}]}
        return (await gateway.client.post("/deliberations/quote", json=body)).json()["at_most"]["prompt_tokens"]

    # A token for three bytes at most.
    assert await tokens("p" * 3_001) - await tokens("p") == 1_000


async def test_the_same_council_without_names_is_the_same_request(gateway: Served) -> None:
    body, key = {"task": "t", "agents": [{"role": "DEV"}]}, {"Idempotency-Key": "k"}
    first = await gateway.post(body, **key)
    again = await gateway.post({**body, "agents": [{"role": "DEV", "name": None, "persona": None}]}, **key)
    assert first.json()["id"] == again.json()["id"]
