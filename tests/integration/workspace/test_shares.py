"""One tenant's slow repositories and many copies delay no other tenant's workspace."""

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from app.tenant_slots import TenantSlots
from app.workspace.repositories import RESOLVED_AT_ONCE, AllowedRepositories, CommitLookup
from serve_deployments.workspace.copies import COPIES_BYTES_MAX, COPIES_MAX, Copies
from serve_deployments.workspace.sources import FETCHES_AT_ONCE, Fetches, RepositoryCommit
from tests.conditions import until
from tests.git_server import GitServer, git_server
from tests.repositories import committed, source_of

WITHIN_S = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Generator[GitServer]:
    for name in ("slow/repo", "quick/repo"):
        committed(tmp_path / "served" / name, {"a": name})
    with git_server(tmp_path / "served") as server:
        yield server


def slow_requests(server: GitServer) -> int:
    return len([path for path, _ in server.asked if path.startswith("/slow/")])


async def test_refs_of_one_tenants_slow_repositories_leave_half_of_the_slots(server: GitServer) -> None:
    lookup = CommitLookup(AllowedRepositories((server.url,)))
    async with asyncio.TaskGroup() as group:
        slow = [
            group.create_task(lookup.commit_of(f"{server.url}/slow/repo", "main", "acme"))
            for _ in range(3 * RESOLVED_AT_ONCE)
        ]
        await until(lambda: slow_requests(server) == RESOLVED_AT_ONCE // 2)
        assert await lookup.commit_of(f"{server.url}/quick/repo", "main", "globex")
        assert slow_requests(server) == RESOLVED_AT_ONCE // 2 and not any(task.done() for task in slow)
        server.release.set()


async def test_fetches_of_one_tenants_slow_repositories_leave_half_of_the_slots(
    server: GitServer, tmp_path: Path
) -> None:
    commit = await CommitLookup(AllowedRepositories((server.url,))).commit_of(f"{server.url}/quick/repo", "main", "x")
    copies, fetches = Copies(tmp_path / "copies"), Fetches(AllowedRepositories((server.url,)))

    def source(name: str, number: int, tenant: str) -> RepositoryCommit:
        workspace = source_of(f"{server.url}/{name}/repo", commit, allowed=fetches.allowed).workspace
        return RepositoryCommit(fetches, workspace.model_copy(update={"commit": f"{number:040x}"}), tenant)

    async def opened(asked: RepositoryCommit) -> str:
        async with copies.opened(asked, WITHIN_S) as directory:
            return directory.name

    async with asyncio.TaskGroup() as group:
        slow = [
            group.create_task(asyncio.wait([asyncio.ensure_future(opened(source("slow", number, "acme")))]))
            for number in range(3 * FETCHES_AT_ONCE)
        ]
        await until(lambda: slow_requests(server) == FETCHES_AT_ONCE // 2)
        assert await opened(source("quick", int(commit, 16), "globex"))
        assert slow_requests(server) == FETCHES_AT_ONCE // 2 and not any(task.done() for task in slow)
        server.release.set()


async def test_entries_of_a_tenant_take_turns_with_those_of_others() -> None:
    slots, begun, go_on = TenantSlots(2, share=1), list[str](), asyncio.Event()

    async def hold(tenant: str) -> None:
        async with slots.slot(tenant):
            begun.append(tenant)
            await go_on.wait()

    async with asyncio.TaskGroup() as group:
        for tenant in ("acme", "acme", "acme", "globex", "initech"):
            group.create_task(hold(tenant))
        await until(lambda: len(begun) == 2)
        assert begun == ["acme", "globex"]
        go_on.set()
    assert sorted(begun[2:]) == ["acme", "acme", "initech"]


async def test_copies_of_one_tenant_do_not_displace_anothers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = committed(tmp_path / "repo", {"a": "1"})
    copies, allowed = Copies(tmp_path / "copies"), AllowedRepositories((str(tmp_path),))
    names = dict[str, str]()

    async def use(tenant: str, number: int = 0) -> None:
        ref = source_of(tmp_path / "repo", commit, tenant, allowed=allowed)
        git = f"{tmp_path / 'repo'}{'/' * number}"
        source = RepositoryCommit(ref.fetches, ref.workspace.model_copy(update={"git": git}), tenant)
        async with copies.opened(source, WITHIN_S) as directory:
            names[f"{tenant}-{number}"] = directory.name

    # Those of the others were used before all of the first tenant's.
    for tenant in ("globex", "initech"):
        await use(tenant)
    for number in range(COPIES_MAX + 2):
        await use("acme", number)

    def kept() -> set[str]:
        stored = {each.name for each in (tmp_path / "copies").iterdir() if each.is_dir()}
        return {name for name, directory in names.items() if directory in stored}

    newest = {f"acme-{number}" for number in range(4, COPIES_MAX + 2)}
    assert kept() == {"globex-0", "initech-0"} | newest
    size = sum(each.stat().st_size for each in (tmp_path / "copies" / names["globex-0"]).rglob("*") if each.is_file())
    monkeypatch.setattr("serve_deployments.workspace.copies.COPIES_BYTES_MAX", int(3.5 * size))
    copies.sweep()
    assert kept() == {"globex-0", "initech-0", f"acme-{COPIES_MAX + 1}"} and COPIES_BYTES_MAX > size
