"""One tenant's slow repositories and many copies delay no other tenant's workspace."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Generator
from pathlib import Path

import pytest

from app.tenant_slots import TenantSlots
from app.workspace.repositories import RESOLVED_AT_ONCE, AllowedRepositories, CommitLookup
from serve_deployments.node_directory.slots import NodeSlots, processors
from serve_deployments.node_directory.sweep import CopyBounds
from serve_deployments.workspace.copies import COPIES_BYTES_MAX, COPIES_MAX
from serve_deployments.workspace.sources import FETCHES_AT_ONCE, Fetches, RepositoryCommit
from tests.conditions import until
from tests.git_server import GitServer, git_server
from tests.repositories import committed, copies_in, node_of, source_of

WITHIN_S = 30.0
# Holds a slot until it is killed.
HOLDS = """
import asyncio, pathlib, sys
from serve_deployments.node_directory.directory import NodeDirectory
from serve_deployments.node_directory.slots import NodeSlots

async def hold():
    async with NodeSlots(NodeDirectory(pathlib.Path(sys.argv[1])), "programs", 2).slot("acme"):
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(hold())
"""


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
    allowed, node = AllowedRepositories((server.url,)), node_of(tmp_path)
    copies, fetches = copies_in(tmp_path), Fetches(allowed, node)

    def source(name: str, number: int, tenant: str) -> RepositoryCommit:
        workspace = source_of(f"{server.url}/{name}/repo", commit, allowed=allowed, node=node).workspace
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


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8), (None, 8)],
)
def test_a_control_groups_quota_bounds_the_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str | None, expected: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert processors(tmp_path / "cpu.max") == expected


async def test_the_replicas_of_a_node_share_its_slots_and_a_tenant_has_half_of_all(tmp_path: Path) -> None:
    replicas = [NodeSlots(node_of(tmp_path), "programs", 4) for _ in range(8)]
    working, most, go_on = list[str](), 0, asyncio.Event()

    async def hold(replica: NodeSlots, tenant: str) -> None:
        nonlocal most
        async with replica.slot(tenant):
            working.append(tenant)
            most = max(most, len(working))
            await go_on.wait()
            working.remove(tenant)

    async with asyncio.TaskGroup() as group:
        for replica in replicas:
            for _ in range(8):
                group.create_task(hold(replica, "acme"))
        await until(lambda: working == ["acme"] * 2)
        # However long the tenant's other entries wait for their turn, they have not more.
        for number, tenant in enumerate(("globex", "globex", "initech")):
            group.create_task(hold(replicas[number], tenant))
        names = node_of(tmp_path).path
        await until(lambda: len({name.rpartition("-")[0] for name in os.listdir(names)}) == 4)
        assert working == ["acme", "acme", "globex", "globex"]
        go_on.set()
    assert most == 4


async def test_a_slot_is_free_once_its_process_is_killed_and_a_sweep_removes_its_file(tmp_path: Path) -> None:
    node = node_of(tmp_path)
    bounds = CopyBounds(copies=1, bytes=1, unused_s=0.0)
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDS, str(node.path), stdout=PIPE)
    begun = asyncio.Event()

    async def hold() -> None:
        async with NodeSlots(node, "programs", 2).slot("acme"):
            begun.set()

    try:
        assert holder.stdout is not None and await holder.stdout.readline() == b"held\n"
        await node.sweep(bounds)
        assert len(os.listdir(node.path)) == 2, "the locks of the tenant and of all are held"
        waiting = asyncio.create_task(hold())
        await asyncio.sleep(0)
        assert not begun.is_set()
    finally:
        holder.kill()
        await holder.wait()
    await asyncio.wait_for(waiting, 10)
    await node.sweep(bounds)
    assert os.listdir(node.path) == [] and node.failed_removals == 0


async def test_copies_of_one_tenant_do_not_displace_anothers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = committed(tmp_path / "repo", {"a": "1"})
    copies, allowed = copies_in(tmp_path), AllowedRepositories((str(tmp_path),))
    names = dict[str, str]()

    async def use(tenant: str, number: int = 0) -> None:
        ref = source_of(tmp_path / "repo", commit, tenant, allowed=allowed, node=node_of(tmp_path))
        git = f"{tmp_path / 'repo'}{'/' * number}"
        source = RepositoryCommit(ref.fetches, ref.workspace.model_copy(update={"git": git}), tenant)
        async with copies.opened(source, WITHIN_S) as directory:
            names[f"{tenant}-{number}"] = directory.name

    # Those of the others were used before all of the first tenant's.
    for tenant in ("globex", "initech"):
        await use(tenant)
    for number in range(COPIES_MAX + 2):
        await use("acme", number)
    await copies.sweep()

    def kept() -> set[str]:
        stored = {each.name for each in (tmp_path / "copies").iterdir() if each.is_dir()}
        return {name for name, directory in names.items() if directory in stored}

    newest = {f"acme-{number}" for number in range(4, COPIES_MAX + 2)}
    assert kept() == {"globex-0", "initech-0"} | newest
    size = sum(each.stat().st_size for each in (tmp_path / "copies" / names["globex-0"]).rglob("*") if each.is_file())
    monkeypatch.setattr("serve_deployments.workspace.copies.COPIES_BYTES_MAX", int(3.5 * size))
    await copies.sweep()
    assert kept() == {"globex-0", "initech-0", f"acme-{COPIES_MAX + 1}"} and COPIES_BYTES_MAX > size
