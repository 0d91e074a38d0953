"""Tools by HTTP: what a request may narrow, `GET /tools`, readiness, quotes and events."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.deliberation.facts import Accepted, ToolUsed, decode
from tests.components.routes.served import Served, served
from tests.story import NOW

ROLES = """
roles:
  DEV:
    persona: You develop.
    tools:
      - mcp: {name: books, url: http://books:8000/mcp, headers_file: /run/secrets/books}
        allow: [look_up, write]
        per_call: {calls: 4}
      - mcp: {name: shell, command: [/bin/server, --token=hunter22]}
        allow: [ls]
  QA: {persona: You test.}
"""
BODY: dict[str, Any] = {"task": "Name a colour.", "num_agents": 3, "seed": 7, "strategy": "best_of_n"}
AWAY = {"name": "books", "connected": False, "away_since": NOW.isoformat(), "why": "connection refused"}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Served]:
    (tmp_path / "roles.yaml").write_text(ROLES)
    async with served(roles_file=tmp_path / "roles.yaml") as serving:
        yield serving


def replica(*tools: dict[str, Any]) -> dict[str, Any]:
    return {"role": "DEV", "replica": "a", "tools": list(tools)}


@pytest.mark.parametrize(
    ("narrowed", "names"),
    [({}, ("look_up", "write", "ls")), ({"tools": ["ls"]}, ("ls",)), ({"tools": []}, None)],
    ids=["all", "one", "none"],
)
async def test_the_specification_holds_the_tools_that_a_request_leaves(
    gateway: Served, narrowed: dict[str, Any], names: tuple[str, ...] | None
) -> None:
    await gateway.accepted(**BODY, **narrowed)
    (accepted,) = [fact for record in gateway.journal.records if isinstance(fact := decode(record.data), Accepted)]
    assert {agent.tools and agent.tools.names for agent in accepted.specification.agents} == {names}


@pytest.mark.parametrize("changes", [{"tools": ["ls", "burn"]}, {"role": "QA", "tools": ["ls", "ls"]}])
async def test_a_tool_that_no_role_of_the_council_has_is_refused_by_its_place(
    gateway: Served, changes: dict[str, Any]
) -> None:
    response = await gateway.post({**BODY, **changes})
    assert response.status_code == 422
    first = response.json()["errors"][0]
    place = 1 if "burn" in changes["tools"] else 0
    assert (first["pointer"], first["code"]) == (f"/tools/{place}", "unknown_tool"), response.text


async def test_tools_are_listed_with_limits_and_health_and_without_secrets(gateway: Served) -> None:
    gateway.journal.replies["control.role.DEV"] = [
        replica(AWAY, {"name": "shell", "connected": True, "tools": ["ll", "rm"]})
    ]
    response = await gateway.client.get("/tools")
    ((role),) = response.json()["items"]
    books, shell = role["servers"]
    assert (
        role["role"] == "DEV" and books["address"] == "http://books:8000/mcp" and books["allow"] == ["look_up", "write"]
    )
    assert books["per_call"] == {"calls": 4, "seconds": 60.0, "bytes": 65_536}
    assert books["health"]["connected"] == 0 and books["health"]["why"] == "connection refused"
    assert books["health"]["away_since"].startswith(f"{NOW:%Y-%m-%dT%H:%M}")
    assert shell["address"] == "/bin/server" and shell["health"]["tools"] == ["ll", "rm"]
    assert (books["missing"], shell["missing"]) == ([], ["ls"]), "of a server that is away nothing is known"
    assert (books["concurrency"], shell["concurrency"]) == (16, 16)
    assert shell["health"]["connected"] == 1 and shell["health"]["away_since"] is None
    assert "hunter22" not in response.text and "secrets" not in response.text


async def test_the_health_of_a_server_is_unknown_without_a_replica(gateway: Served) -> None:
    (role,) = (await gateway.client.get("/tools")).json()["items"]
    assert [server["health"] for server in role["servers"]] == [None, None]


async def test_the_tools_of_workspaces_are_listed_where_the_gateway_allows_some(
    gateway: Served, tmp_path: Path
) -> None:
    assert (await gateway.client.get("/tools")).json()["workspace"] is None
    async with served(workspaces=(str(tmp_path),)) as allowing:
        workspace = (await allowing.client.get("/tools")).json()["workspace"]
        files = (await allowing.client.get("/tools")).json()["files"]
    assert {"read_file", "search", "run_tests"} <= set(workspace["tools"])
    assert workspace["per_call"] == {"calls": 8, "seconds": 120.0, "bytes": 65_536} == files["per_call"]
    assert set(workspace["tools"]) - set(files["tools"]) == {"diff", "git_log"}


async def test_a_server_that_is_away_degrades_readiness_and_refuses_no_work(gateway: Served) -> None:
    gateway.journal.replies["control.role.DEV"] = [replica(AWAY)]
    gateway.journal.replies["control.role.QA"] = [{**replica(), "role": "QA"}]
    ready = await gateway.client.get("/readyz")
    assert ready.status_code == 200
    (degraded,) = ready.json()["degraded"]
    assert degraded["code"] == "tool_server_away" and "books" in degraded["detail"] and "DEV" in degraded["detail"]
    await gateway.accepted(**BODY)


async def test_a_quote_counts_uses_and_the_requests_that_they_add(gateway: Served) -> None:
    async def quoted(**changes: Any) -> dict[str, Any]:
        return (await gateway.client.post("/deliberations/quote", json={**BODY, **changes})).json()

    bare, found = await quoted(tools=[]), await quoted(tools=["look_up"])
    assert "tool_uses" not in bare["at_most"] and bare["at_most"]["calls"] == 6
    assert found["at_most"]["tool_uses"] == 3 * 4 and found["at_most"]["calls"] == 6 + 3 * 4
    assert 0 < found["expected"]["tool_uses"] < found["at_most"]["tool_uses"]
    assert found["at_most"]["prompt_tokens"] > bare["at_most"]["prompt_tokens"]


async def test_a_recorded_use_is_an_event_and_counts_in_the_resource(gateway: Served) -> None:
    id = await gateway.accepted(**BODY)
    await gateway.play(id, until_stage=1)
    use = ToolUsed(
        deliberation_id=id, ts=NOW, call_id="s1-dev-001", agent_id="dev-001", role="DEV", stage=1, number=1, turn=1,
        server="books", tool="look_up", name="look_up", tool_call_id="t1", arguments="{}", text="forty-two", bytes=9,
    )  # fmt: skip
    await gateway.append(use)
    await gateway.play(id)
    response = await gateway.client.get(f"/deliberations/{id}/events?after=0", headers={"Accept": "text/event-stream"})
    (event,) = [line for line in response.text.splitlines() if '"type":"tool.used"' in line]
    assert '"text":"forty-two"' in event
