"""A request names a repository or sends files: the gateway records them, or says which field cannot be used."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from app.api.requests import FILES_MAX
from app.deliberation.prompts.council import propose
from app.deliberation.specification import FilesWorkspace, GitWorkspace, WorkspaceFile
from app.deliberation.tools import FILES_TOOLS, WORKSPACE_TOOLS
from app.settings import Settings
from app.workspace.repositories import AllowedRepositories, RepositoryRefused
from tests.components.lifecycle.evidence import specified
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


async def test_a_gateway_without_git_refuses_each_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(workspaces=(str(tmp_path),)) as gateway:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert await faults(gateway, git=str(tmp_path)) == [("/workspace/git", "no_git")]
        assert await faults(gateway, files=[{"path": "a", "text": ""}]) == [("/workspace/files", "no_git")]


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


FILES = [{"path": "merge.py", "text": "def merge(): ...\n"}, {"path": "tests/größe.py", "text": "ä"}]


async def test_files_are_recorded_once_and_prompts_and_the_resource_name_them_without_texts(gateway: Served) -> None:
    id = await gateway.accepted(workspace={"files": FILES})
    found = await specified(gateway, id)
    assert found.workspace == FilesWorkspace(files=tuple(WorkspaceFile(**each) for each in FILES))
    shown = (await resource(gateway, id))["workspace"]
    assert shown == {"files": [{"path": "merge.py", "bytes": 17}, {"path": "tests/größe.py", "bytes": 2}]}
    for place in range(3):
        prompt = propose(found, place)[-1].content
        assert "# Files\n" in prompt and "merge.py (17 bytes)\ntests/größe.py (2 bytes)\n<<<end-of-peer-text " in prompt
        assert "def merge" not in prompt
    assert [agent.tools and agent.tools.names for agent in found.agents] == [FILES_TOOLS] * 3
    narrowed = await specified(gateway, await gateway.accepted(workspace={"files": FILES}, tools=["search"]))
    assert [agent.tools and agent.tools.names for agent in narrowed.agents] == [("search",)] * 3


async def test_a_prompt_names_a_hundred_files_and_how_many_more_there_are(gateway: Served) -> None:
    files = [{"path": f"{number:03}.py", "text": ""} for number in range(FILES_MAX)]
    found = await specified(gateway, await gateway.accepted(workspace={"files": files}))
    prompt = propose(found, 0)[-1].content
    assert "099.py (0 bytes)\n[156 more]\n" in prompt and "100.py" not in prompt


async def test_a_tool_of_history_over_files_is_refused_and_says_why(gateway: Served) -> None:
    body = {"task": "t", "workspace": {"files": FILES}, "tools": ["search", "diff", "git_log", "other"]}
    response = await gateway.post(body)
    assert response.status_code == 422
    found = [(each["pointer"], each["code"]) for each in response.json()["errors"]]
    assert found == [("/tools/1", "no_history"), ("/tools/2", "no_history"), ("/tools/3", "unknown_tool")]
    assert "read_file, run, run_tests, search" in response.json()["errors"][0]["remedy"]


@pytest.mark.parametrize(
    "path",
    [
        "", "/etc/passwd", "../a", "a/..", "./a", "a//b", "a/", "a\\b", "a\nb", "a\x00", "a\u202eb", "e\u0301",
        ".git/config", "a/.GIT/hooks/x", "git~1/x", "a./b", "a ", " a", "C:\\a", "a/" * 16 + "b", "ä" * 128,
    ],
)  # fmt: skip
async def test_a_path_that_leads_out_or_differs_between_systems_is_refused(gateway: Served, path: str) -> None:
    response = await gateway.post({"task": "t", "workspace": {"files": [FILES[0], {"path": path, "text": ""}]}})
    assert response.status_code == 422
    (fault,) = response.json()["errors"]
    assert fault["pointer"] == "/workspace/files/1/path" and fault["remedy"]


@pytest.mark.parametrize(
    "paths",
    [("a", "a"), ("a", "A"), ("straße", "STRASSE"), ("a", "a/b"), ("a/b", "A"), ("a/b/c", "a/B"), ("X/b", "x/B")],
)
async def test_two_files_are_never_one_on_any_system(gateway: Served, paths: tuple[str, str]) -> None:
    files = [{"path": path, "text": ""} for path in paths]
    response = await gateway.post({"task": "t", "workspace": {"files": files}})
    assert response.status_code == 422
    found = [(each["pointer"], each["code"]) for each in response.json()["errors"]]
    assert found == [("/workspace/files/1/path", "repeated_path")]


@pytest.mark.parametrize(
    ("workspace", "expected"),
    [
        ({}, [("/workspace/git", "missing")]),
        ({"git": "/x", "files": FILES}, [("/workspace/git", "conflict")]),
        ({"ref": "main", "files": FILES}, [("/workspace/ref", "conflict")]),
        ({"files": []}, [("/workspace/files", "too_short")]),
        ({"files": [{"path": str(n), "text": ""} for n in range(257)]}, [("/workspace/files", "too_long")]),
        ({"files": [{"path": "a"}]}, [("/workspace/files/0/text", "missing")]),
        ({"files": [{"path": "a", "text": "", "mode": 1}]}, [("/workspace/files/0/mode", "extra_forbidden")]),
    ],
)
async def test_a_workspace_is_a_repository_or_files(
    gateway: Served, workspace: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert await faults(gateway, **workspace) == expected


async def test_a_quote_counts_the_names_of_files_and_no_texts(gateway: Served) -> None:
    async def most(**body: Any) -> int:
        quoted = await gateway.client.post("/deliberations/quote", json={"task": "t", "tools": [], **body})
        return quoted.json()["at_most"]["prompt_tokens"]

    plain = await most()
    small = await most(workspace={"files": [{"path": "a", "text": "x"}]})
    large = await most(workspace={"files": [{"path": "a", "text": "x" * 100_000}]})
    assert plain < small and large - small < small - plain


async def test_a_prefix_of_tenants_is_for_them_alone_also_below_one_for_all(tmp_path: Path) -> None:
    for name in ("open/repo", "open/acme/repo", "open/acme/shared/repo", "globex/repo"):
        committed(tmp_path / name, {"a": "1"})
    allowed = AllowedRepositories(
        (str(tmp_path / "open"), str(tmp_path / "open/acme/shared")),
        (("acme", str(tmp_path / "open/acme")), ("globex", str(tmp_path / "globex"))),
    )

    def allows(tenant: str) -> list[str]:
        found = list[str]()
        for name in ("open/repo", "open/acme/repo", "open/acme/shared/repo", "globex/repo"):
            with suppress(RepositoryRefused):
                found.append(allowed.location(str(tmp_path / name), tenant).source.removeprefix(f"{tmp_path}/"))
        return found

    assert allows("acme") == ["open/repo", "open/acme/repo", "open/acme/shared/repo"]
    assert allows("globex") == ["open/repo", "open/acme/shared/repo", "globex/repo"]
    assert allows("initech") == ["open/repo", "open/acme/shared/repo"]
    settings = {"workspaces": allowed.prefixes, "tenant_workspaces": allowed.of_tenants}
    async with served(**settings) as gateway:
        found = await faults(gateway, git=str(tmp_path / "globex/repo"))
    assert found == [("/workspace/git", "repository_not_allowed")]
