from pathlib import Path
from typing import Any

import httpx
import pytest

from app.deliberation.calls import FactProblem
from app.deliberation.facts import Failed
from app.planning.plans import role_deliberation_id
from tests.components.planning.plans import PLAN
from tests.components.routes.served import Served, served
from tests.story import NOW

GATEWAY = {"lists": True}


async def approve(gateway: Served, **more: Any) -> httpx.Response:
    given = {name: value for name, value in {**PLAN, **more}.items() if value is not None}
    return await gateway.client.post("/plans", json=given)


def statuses(plan: dict[str, Any]) -> dict[str, str]:
    return {role["role"]: role["status"] for role in plan["roles"]}


async def test_a_plan_is_accepted_once_with_a_deliberation_per_role(gateway: Served) -> None:
    first, again = await approve(gateway), await approve(gateway, approved_by="another")
    assert (first.status_code, first.headers["location"]) == (202, "/plans/plan-1")
    assert "idempotency-replayed" not in first.headers and again.headers["idempotency-replayed"] == "true"
    assert first.json() == again.json()
    assert statuses(first.json()) == {"DEV": "pending", "QA": "pending"}
    assert len([record for record in gateway.journal.records if record.tokens[-1] == "accepted"]) == 2
    for role in first.json()["roles"]:
        found = (await gateway.client.get(role["link"])).json()
        assert (found["role"], found["metadata"]["story_id"]) == (role["role"], "story-1")
        assert "plan-1 of story story-1" in found["task"]


async def test_the_whole_follows_its_roles(gateway: Served) -> None:
    ids = [role_deliberation_id("default", "plan-1", role) for role in ("DEV", "QA")]
    plan = (await approve(gateway)).json()
    assert plan["status"] == "in_progress"
    await gateway.play(ids[0])
    plan = (await gateway.client.get("/plans/plan-1")).json()
    assert (plan["status"], statuses(plan)) == ("in_progress", {"DEV": "completed", "QA": "pending"})
    problem = FactProblem(code="no_answers", detail="none", retryable=False)
    await gateway.append(Failed(deliberation_id=ids[1], ts=NOW, problem=problem))
    assert (await gateway.client.get("/plans/plan-1")).json()["status"] == "partial"
    await gateway.client.delete(f"/deliberations/{ids[0]}")
    plan = (await gateway.client.get("/plans/plan-1")).json()
    assert (plan["status"], statuses(plan)) == ("failed", {"DEV": "gone", "QA": "failed"})


async def test_a_full_queue_keeps_what_is_accepted_and_the_same_plan_continues() -> None:
    async with served(queue_depth_max=1) as gateway:
        refused = await approve(gateway)
        assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
        plan = (await gateway.client.get("/plans/plan-1")).json()
        assert (plan["status"], statuses(plan)) == ("waiting", {"DEV": "pending", "QA": "waiting"})
        await gateway.play(plan["roles"][0]["deliberation_id"])
        assert statuses((await approve(gateway)).json()) == {"DEV": "pending", "QA": "pending"}


async def test_an_archive_that_does_not_answer_refuses_a_plan_and_no_request_with_a_key(tmp_path: Path) -> None:
    async with served(database_url=f"sqlite:///{tmp_path}/missing/archive.db") as gateway:
        refused = await approve(gateway)
        assert (refused.status_code, refused.json()["code"]) == (503, "archive_unavailable")
        assert refused.json()["retryable"] and gateway.journal.records == []
        assert (await gateway.post({"task": "t"}, Idempotency_Key="k")).status_code == 202


@pytest.mark.parametrize(
    ("more", "pointer", "code"),
    [
        ({"plan_id": None}, "/plan_id", "missing"),
        ({"story_id": None}, "/story_id", "missing"),
        ({"approved_by": ""}, "/approved_by", "string_too_short"),
        ({"plan_id": "a b"}, "/plan_id", "string_pattern_mismatch"),
        ({"timestamp": "now"}, "/timestamp", "not_iso_8601"),
        ({"roles": ["NOBODY"]}, "/roles/0", "unknown_role"),
        ({"complexity": "huge"}, "/complexity", "literal_error"),
        ({"tenant": "rival"}, "/tenant", "foreign_tenant"),
        ({"title": " "}, "/title", "blank"),
        ({"title": "A login", "description": "\n\u2003"}, "/description", "blank"),
        ({"sprint": ["x" * 512]}, "/sprint", "string_too_long"),
        ({"a b": "c"}, "/a b", "string_pattern_mismatch"),
        ({f"field{number}": "" for number in range(12)}, "", "too_long"),
    ],
)
async def test_a_plan_that_breaks_the_contract_names_the_field(
    gateway: Served, more: dict[str, Any], pointer: str, code: str
) -> None:
    response = await approve(gateway, **more)
    assert response.status_code == 422
    (fault,) = response.json()["errors"]
    assert (fault["pointer"], fault["code"]) == (pointer, code) and fault["remedy"]
    assert gateway.journal.records == []


async def test_roles_of_a_complexity_that_the_gateway_lacks_are_named() -> None:
    async with served(plan_roles_medium=("DEV", "WIZARD")) as gateway:
        response = await approve(gateway, roles=None, complexity="medium")
    (fault,) = response.json()["errors"]
    assert response.status_code == 422 and (fault["pointer"], fault["code"]) == ("/roles", "unknown_role")
    assert "WIZARD" in fault["detail"] and "DEV" in fault["remedy"]


@pytest.mark.parametrize("roles", [["QA", "DEV"], ["QA"], ["ARCHITECT"], None])
async def test_other_roles_under_a_known_id_conflict_and_start_nothing(
    gateway: Served, roles: list[str] | None
) -> None:
    await approve(gateway, roles=["DEV"])
    before = len(gateway.journal.records)
    response = await approve(gateway, roles=roles)
    assert (response.status_code, response.json()["code"]) == (409, "plan_conflict")
    assert len(gateway.journal.records) == before


async def test_a_plan_goes_on_with_the_roles_that_it_began_with() -> None:
    """The operator changes the roles of its complexity while one of them waits."""
    async with served(queue_depth_max=1) as before:
        assert (await approve(before, roles=None)).status_code == 429
        journal = before.journal
    async with served(journal=journal, plan_roles_basic=("ARCHITECT", "QA")) as after:
        assert statuses((await approve(after, roles=None)).json()) == {"DEV": "pending", "QA": "pending"}
        assert len([record for record in journal.records if record.tokens[-1] == "accepted"]) == 2


async def test_roles_that_leave_no_room_for_metadata_are_refused(gateway: Served) -> None:
    response = await approve(gateway, roles=["DEV"] * 16)
    assert response.json()["errors"][0]["pointer"] == "/roles"
    assert (await approve(gateway, roles=["dev"] * 15)).json()["roles"][0]["role"] == "DEV"
