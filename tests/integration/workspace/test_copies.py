"""Copies of repositories: fetched once, shared by processes, bounded, and removed when nothing uses them."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from app.workspace.repositories import NO_REPOSITORIES, AllowedRepositories
from serve_deployments.node_directory.sweep import SLOT
from serve_deployments.tools.toolbox import ToolFailure
from serve_deployments.workspace.copies import COPIES_MAX, UNUSED_S_MAX
from serve_deployments.workspace.sources import COMMITS, RepositoryCommit
from serve_deployments.workspace.workspace import WorkspaceToolbox
from tests.repositories import committed, copies_in, node_of, run_git, sandbox_in, source_of, toolbox

WITHIN_S = 30.0


def stored(folder: Path) -> list[str]:
    names = (path.name for path in (folder / "copies").iterdir())
    return sorted(name for name in names if not name.startswith(SLOT))


async def test_concurrent_uses_fetch_once_and_the_source_is_not_needed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = list[str]()
    write = RepositoryCommit.write

    async def counted(self: RepositoryCommit, copy: Path) -> None:
        fetched.append(self.revision)
        await write(self, copy)

    monkeypatch.setattr(RepositoryCommit, "write", counted)
    commit = committed(tmp_path / "repo", {"a": "1"})
    # Two processes of a node.
    boxes = [toolbox(tmp_path, tmp_path / "repo", commit, copies=copies_in(tmp_path)) for _ in range(2)]
    results = await asyncio.gather(*(box.use("list_files", {}, WITHIN_S) for box in boxes * 4))
    assert {result.text for result in results} == {"a (1 bytes)"} and fetched == [commit]
    shutil.rmtree(tmp_path / "repo")
    assert (await boxes[0].use("read_file", {"path": "a"}, WITHIN_S)).text.endswith("\n1")


async def test_a_commit_stays_as_it_was_when_its_branch_moves(tmp_path: Path) -> None:
    first = committed(tmp_path / "repo", {"a": "before"})
    committed(tmp_path / "repo", {"a": "after"}, "second")
    text = (await toolbox(tmp_path, tmp_path / "repo", first).use("read_file", {"path": "a"}, WITHIN_S)).text
    assert text.endswith("before")


async def test_history_is_bounded(tmp_path: Path) -> None:
    *_, commit = (committed(tmp_path / "repo", {"a": str(n)}, f"commit {n}") for n in range(COMMITS + 5))
    text = (await toolbox(tmp_path, tmp_path / "repo", commit).use("git_log", {"count": COMMITS}, WITHIN_S)).text
    assert len(text.splitlines()) == 2 * COMMITS
    (copy,) = (each for each in (tmp_path / "copies").iterdir() if each.is_dir())
    assert run_git(copy, "rev-list", "--count", commit) == str(COMMITS)


async def test_copies_above_the_number_and_the_age_are_removed_but_none_that_is_read(tmp_path: Path) -> None:
    copies = copies_in(tmp_path)
    commit = committed(tmp_path / "repo", {"a": "1"})
    tenants = [f"tenant-{number}" for number in range(COPIES_MAX + 2)]
    allowed = AllowedRepositories((str(tmp_path),))
    sources = [
        source_of(tmp_path / "repo", commit, tenant, allowed=allowed, node=node_of(tmp_path)) for tenant in tenants
    ]
    async with copies.opened(sources[0], WITHIN_S) as read:
        for source in sources[1:]:
            async with copies.opened(source, WITHIN_S):
                pass
        await copies.sweep()
        kept = [each for each in stored(tmp_path) if not each.endswith(".lock")]
        assert read.name in kept and len(kept) == COPIES_MAX
        for name in stored(tmp_path):
            os.utime(tmp_path / "copies" / name, (0, 0))
        await copies.sweep()
        assert stored(tmp_path) == [read.name, f"{read.name}.lock"]
    os.utime(f"{read}.lock", (0, 0))
    await copies.sweep()
    assert stored(tmp_path) == []
    assert UNUSED_S_MAX < 3_600


async def test_what_a_dead_process_left_is_removed_and_fetched_anew(tmp_path: Path) -> None:
    commit = committed(tmp_path / "repo", {"a": "1"})
    copies = copies_in(tmp_path)
    box = toolbox(tmp_path, tmp_path / "repo", commit, copies=copies)
    await box.use("list_files", {}, WITHIN_S)
    (copy,) = (each for each in (tmp_path / "copies").iterdir() if each.is_dir())
    copy.rename(f"{copy}.new")
    (tmp_path / "copies" / "deliberation-run-left").mkdir()
    for name in ("deliberation-run-left", f"{copy.name}.lock"):
        os.utime(tmp_path / "copies" / name, (0, 0))
    assert (await box.use("list_files", {}, WITHIN_S)).text == "a (1 bytes)"
    await copies.sweep()
    assert stored(tmp_path) == [copy.name, f"{copy.name}.lock"]


@pytest.mark.parametrize(("what", "code"), [("repository", "server_away"), ("commit", "server_away")])
async def test_a_missing_repository_or_commit_is_a_failure_of_the_use(tmp_path: Path, what: str, code: str) -> None:
    commit = committed(tmp_path / "repo", {"a": "1"})
    box = toolbox(tmp_path, tmp_path / ("none" if what == "repository" else "repo"), commit[::-1])
    with pytest.raises(ToolFailure) as failure:
        await box.use("list_files", {}, WITHIN_S)
    assert failure.value.code == code
    assert [each for each in stored(tmp_path) if not each.endswith(".lock")] == []


async def test_a_process_without_the_setting_fetches_nothing(tmp_path: Path) -> None:
    commit = committed(tmp_path / "repo", {"a": "1"})
    source = source_of(tmp_path / "repo", commit, allowed=NO_REPOSITORIES, node=node_of(tmp_path))
    box = WorkspaceToolbox(copies_in(tmp_path), sandbox_in(tmp_path), source)
    with pytest.raises(ToolFailure, match="allows no repositories") as failure:
        await box.use("list_files", {}, WITHIN_S)
    assert failure.value.code == "refused"


async def test_a_directory_of_another_user_is_not_used(tmp_path: Path) -> None:
    commit = committed(tmp_path / "repo", {"a": "1"})
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies").chmod(0o777)
    with pytest.raises(ToolFailure, match="belongs to another user"):
        await toolbox(tmp_path, tmp_path / "repo", commit).use("list_files", {}, WITHIN_S)
