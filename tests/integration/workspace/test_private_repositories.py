"""Private repositories: credentials stand in a file, and reach the repository's server alone."""

import asyncio
import base64
import os
from collections.abc import Generator
from pathlib import Path

import pytest
import structlog

from app.settings import Settings
from app.workspace.repositories import AllowedRepositories, CommitLookup, RepositoryRefused
from serve_deployments.tools.toolbox import ToolFailure
from serve_deployments.workspace.workspace import WorkspaceToolbox
from tests.components.routes.served import served
from tests.conditions import until
from tests.git_server import GitServer, git_server, processes_with
from tests.repositories import committed, copies_in, node_of, run_git, sandbox_in, source_of

WITHIN_S = 30.0
TOKEN = base64.b64encode(b"reader:token-of-the-operator").decode()


@pytest.fixture
def server(tmp_path: Path) -> Generator[GitServer]:
    for name in ("private/repo", "public/repo", "slow/private"):
        committed(tmp_path / "served" / name, {"a.txt": f"{name}\n"})
    with git_server(tmp_path / "served", authorization=f"Basic {TOKEN}", reflects=True) as server:
        yield server


def authorize(path: Path, token: str = TOKEN) -> None:
    path.write_text(f"Authorization: Basic {token}\n")


@pytest.fixture
def headers_file(tmp_path: Path) -> Path:
    authorize(tmp_path / "headers")
    return tmp_path / "headers"


def settings_of(server: GitServer, headers_file: Path, below: str = "/private") -> Settings:
    return Settings(
        workspaces=(server.url,),
        tenant_workspaces=(("acme", f"{server.url}/private"),),
        workspace_headers_files=((f"{server.url}{below}", str(headers_file)),),
    )


async def read(folder: Path, allowed: AllowedRepositories, repository: str, commit: str, tenant: str = "acme") -> str:
    source = source_of(repository, commit, tenant, allowed=allowed, node=node_of(folder))
    box = WorkspaceToolbox(copies_in(folder), sandbox_in(folder), source)
    return (await box.use("read_file", {"path": "a.txt"}, WITHIN_S)).text


async def test_a_private_repository_is_read_by_the_credentials_of_its_prefix(
    tmp_path: Path, server: GitServer, headers_file: Path
) -> None:
    allowed, repository = settings_of(server, headers_file).repositories, f"{server.url}/private/repo"
    commit = await CommitLookup(allowed).commit_of(repository, "main", "acme")
    assert (await read(tmp_path, allowed, repository, commit)).endswith("private/repo")
    assert {authorization for _, authorization in server.asked} == {f"Basic {TOKEN}"}
    server.asked.clear()
    public = await CommitLookup(allowed).commit_of(f"{server.url}/public/repo", "main", "globex")
    assert (await read(tmp_path, allowed, f"{server.url}/public/repo", public, "globex")).endswith("public/repo")
    assert {authorization for _, authorization in server.asked} == {""}


async def test_a_changed_file_holds_from_the_next_use_on(server: GitServer, headers_file: Path) -> None:
    lookup = CommitLookup(settings_of(server, headers_file).repositories)
    authorize(headers_file, "b2xk")
    with pytest.raises(RepositoryRefused):
        await lookup.commit_of(f"{server.url}/private/repo", "main", "acme")
    authorize(headers_file)
    assert await lookup.commit_of(f"{server.url}/private/repo", "main", "acme")


async def test_another_tenant_gets_nothing_however_it_spells_the_url(server: GitServer, headers_file: Path) -> None:
    # The credentials hold for the whole server, as those of a host's user do.
    settings = settings_of(server, headers_file, below="")
    lookup = CommitLookup(settings.repositories)
    for name in ("private/repo", "Private/repo", "PRIVATE.git/repo", "private", "private/"):
        with pytest.raises(RepositoryRefused) as refused:
            await lookup.commit_of(f"{server.url}/{name}", "main", "globex")
        assert refused.value.code == "repository_not_allowed"
    assert not server.asked
    assert await lookup.commit_of(f"{server.url}/private/repo", "main", "acme")
    with pytest.raises(ToolFailure, match="not allowed"):
        await read(headers_file.parent, settings.repositories, f"{server.url}/private/repo", "0" * 40, "globex")


async def test_credentials_follow_no_redirect(server: GitServer, headers_file: Path, tmp_path: Path) -> None:
    with git_server(tmp_path / "served") as other:
        server.redirects["/private/moved/"] = f"{other.url}/public/repo/"
        server.redirects["/private/within/"] = "/public/repo/"
        lookup = CommitLookup(settings_of(server, headers_file).repositories)
        for name in ("moved", "within"):
            with pytest.raises(RepositoryRefused):
                await lookup.commit_of(f"{server.url}/private/{name}", "main", "acme")
        assert not other.asked and not [path for path, _ in server.asked if path.startswith("/public/")]


async def test_a_server_of_plain_files_cannot_name_another_that_would_get_them(
    headers_file: Path, tmp_path: Path
) -> None:
    commit = committed(tmp_path / "source/repo", {"a.txt": "1"})
    plain = tmp_path / "plain/repo"
    run_git(tmp_path, "init", "--quiet", "--bare", str(plain))
    (plain / "info/refs").write_text(f"{commit}\trefs/heads/main\n")
    with git_server(tmp_path / "source") as other, git_server(tmp_path / "plain", plain=True) as server:
        (plain / "objects/info/http-alternates").write_text(f"{other.url}/repo/.git/objects/\n")
        allowed = AllowedRepositories((server.url,), (), {server.url: str(headers_file)})
        with pytest.raises(ToolFailure, match="dumb http transport"):
            await read(tmp_path, allowed, f"{server.url}/repo", commit)
    assert server.asked and not other.asked


async def test_credentials_stand_in_no_argument_environment_log_or_problem(
    server: GitServer, headers_file: Path
) -> None:
    secret = f"{TOKEN[:-4]}AAA="
    authorize(headers_file, secret)
    settings = settings_of(server, headers_file).model_copy(
        update={"workspace_headers_files": ((server.url, str(headers_file)),)}
    )
    with structlog.testing.capture_logs() as logs:
        async with served(
            workspaces=settings.workspaces, workspace_headers_files=settings.workspace_headers_files
        ) as gateway:
            body = {"task": "t", "workspace": {"git": f"{server.url}/private/repo"}}
            refused = await gateway.post(body)
            assert refused.status_code == 422 and secret not in refused.text
            os.unlink(headers_file)
            missing = await gateway.post(body)
            assert "credentials of the repository cannot be read" in missing.text and "headers" not in missing.text
            authorize(headers_file, secret)
        with pytest.raises(ToolFailure) as failure:
            await read(headers_file.parent, settings.repositories, f"{server.url}/private/repo", "0" * 40)
    assert secret in server.asked[0][1] and secret not in str(logs)
    assert "remote error: refused: [secret]" in failure.value.detail
    assert any(each["event"] == "repository_credentials_unreadable" for each in logs)


async def test_no_process_shows_credentials_while_git_runs(server: GitServer, headers_file: Path) -> None:
    allowed = AllowedRepositories((server.url,), (), {server.url: str(headers_file)})
    asking = asyncio.create_task(CommitLookup(allowed).commit_of(f"{server.url}/slow/private", "main", "acme"))
    await until(lambda: bool(server.asked))
    assert TOKEN in server.asked[0][1]
    assert processes_with("ls-remote"), "git runs, and is seen"
    assert processes_with(TOKEN) == []
    server.release.set()
    assert await asking


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("WORKSPACE_HEADERS_FILES", "https://host/acme", "is no URL with an absolute path"),
        ("WORKSPACE_HEADERS_FILES", "/srv/git=/run/secrets/x", "is no URL with an absolute path"),
        ("WORKSPACE_HEADERS_FILES", "https://u:p@host=/run/secrets/x", "is no absolute path, and no URL"),
        ("TENANT_WORKSPACES", "https://host/acme", "String should match"),
        ("TENANT_WORKSPACES", "acme=relative", "is no absolute path"),
    ],
)
def test_a_setting_of_another_form_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, named: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=named):
        Settings()


def test_pairs_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENANT_WORKSPACES", "acme=https://host/acme, globex=/srv/globex/")
    monkeypatch.setenv("WORKSPACE_HEADERS_FILES", "https://host/acme=/run/secrets/a=b")
    found = Settings().repositories
    assert found.of_tenants == (("acme", "https://host/acme"), ("globex", "/srv/globex"))
    assert found.headers_files == {"https://host/acme": "/run/secrets/a=b"}
