"""A request names a repository: the gateway records the commit, or says which field cannot be used."""

from pathlib import Path
from typing import Any

import pytest

from app.deliberation.specification import GitWorkspace
from app.deliberation.tools import WORKSPACE_TOOLS
from app.settings import Settings
from tests.components.lifecycle.test_evidence import specified
from tests.components.routes.served import Served, served
from tests.repositories import committed, run_git


async def resource(gateway: Served, id: str) -> dict[str, Any]:
    return (await gateway.client.get(f"/deliberations/{id}")).json()


async def faults(gateway: Served, **workspace: Any) -> list[tuple[str, str]]:
    response = await gateway.post({"task": "t", "workspace": workspace})
    assert response.status_code == 422, response.text
    return [(each["pointer"], each["code"]) for each in response.json()["errors"]]


async def test_the_commit_at_acceptance_is_recorded_for_every_name_of_it(tmp_path: Path) -> None:
    first = committed(tmp_path / "repo", {"a": "1"})
    run_git(tmp_path / "repo", "tag", "--annotate", "--message=first", "v1")
    run_git(tmp_path / "repo", "branch", "old/main")
    second = committed(tmp_path / "repo", {"a": "2"}, "second")
    named = {"HEAD": second, "main": second, "refs/heads/main": second, "v1": first, "old/main": first, first: first}
    async with served(workspaces=(str(tmp_path),)) as gateway:
        for ref, commit in named.items():
            id = await gateway.accepted(workspace={"git": str(tmp_path / "repo"), "ref": ref})
            expected = {"git": str(tmp_path / "repo"), "ref": ref, "commit": commit}
            assert (await resource(gateway, id))["workspace"] == expected
        specification = await specified(gateway, id)
    assert isinstance(specification.workspace, GitWorkspace) and specification.workspace.commit == first


async def test_every_agent_has_the_tools_unless_the_request_leaves_them_out(tmp_path: Path) -> None:
    committed(tmp_path / "repo", {"a": "1"})
    workspace = {"git": str(tmp_path / "repo")}
    async with served(workspaces=(str(tmp_path),)) as gateway:
        all_of_them = await specified(gateway, await gateway.accepted(workspace=workspace))
        some = await specified(gateway, await gateway.accepted(workspace=workspace, tools=["search"]))
        none = await specified(gateway, await gateway.accepted(workspace=workspace, tools=[]))
        plain = await specified(gateway, await gateway.accepted())
    assert [agent.tools and agent.tools.names for agent in all_of_them.agents] == [WORKSPACE_TOOLS] * 3
    assert [agent.tools and agent.tools.names for agent in some.agents] == [("search",)] * 3
    assert [agent.tools for agent in (*none.agents, *plain.agents)] == [None] * 6


async def test_a_retry_gets_the_commit_of_the_first_acceptance(tmp_path: Path) -> None:
    first = committed(tmp_path / "repo", {"a": "1"})
    body = {"task": "t", "workspace": {"git": str(tmp_path / "repo")}}
    async with served(workspaces=(str(tmp_path),)) as gateway:
        id = (await gateway.post(body, Idempotency_Key="k")).json()["id"]
        committed(tmp_path / "repo", {"a": "2"}, "second")
        again = await gateway.post(body, Idempotency_Key="k")
    assert (again.json()["id"], again.json()["workspace"]["commit"]) == (id, first)


async def test_a_gateway_without_the_setting_refuses_and_names_it(tmp_path: Path) -> None:
    committed(tmp_path / "repo", {"a": "1"})
    async with served() as gateway:
        response = await gateway.post({"task": "t", "workspace": {"git": str(tmp_path / "repo")}})
        plain = await gateway.accepted()
        assert (await resource(gateway, plain))["workspace"] is None
        assert b"workspace" not in (await gateway.journal.facts("default", plain))[0].data
    (fault,) = response.json()["errors"]
    assert (fault["pointer"], fault["detail"]) == ("/workspace/git", "This gateway allows no repositories")
    assert "WORKSPACES" in fault["remedy"]


async def test_an_unknown_ref_and_an_unreachable_repository_name_their_fields(tmp_path: Path) -> None:
    committed(tmp_path / "repo", {"a": "1"})
    (tmp_path / "empty").mkdir()
    run_git(tmp_path / "empty", "init", "--quiet")
    closed = "http://127.0.0.1:9/repo.git"
    async with served(workspaces=(str(tmp_path), "http://127.0.0.1:9/")) as gateway:
        assert await faults(gateway, git=str(tmp_path / "repo"), ref="none") == [("/workspace/ref", "unknown_ref")]
        assert await faults(gateway, git=str(tmp_path / "empty")) == [("/workspace/ref", "unknown_ref")]
        for missing in (str(tmp_path), str(tmp_path / "none"), closed):
            assert await faults(gateway, git=missing) == [("/workspace/git", "repository_unreachable")]
        assert await faults(gateway, git=str(tmp_path.parent)) == [("/workspace/git", "repository_not_allowed")]
        assert await faults(gateway, ref="main") == [("/workspace/git", "missing")]


async def test_a_quote_refuses_what_an_acceptance_would(tmp_path: Path) -> None:
    committed(tmp_path / "repo", {"a": "1"})
    async with served(workspaces=(str(tmp_path),)) as gateway:
        for ref, status in (("main", 200), ("none", 422)):
            body = {"task": "t", "workspace": {"git": str(tmp_path / "repo"), "ref": ref}}
            assert (await gateway.client.post("/deliberations/quote", json=body)).status_code == status


@pytest.mark.parametrize(
    "prefix",
    [
        "relative/path",
        "ssh://host/x",
        "https://user:password@host/x",
        "https://host/a/../b",
        "https://host/?q",
        "ext::sh",
    ],
)
def test_a_prefix_that_is_no_path_and_no_plain_url_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="is no absolute path"):
        Settings(workspaces=prefix)  # pyright: ignore[reportArgumentType] -- as the environment gives it
