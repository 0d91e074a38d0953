"""Hostile trees, archives, patterns and programs of one tenant cost the others no more than its share.

The node's directory is as it was within a minute, and no sweep ends by what it meets. One replica serves both tenants.
"""

import asyncio
import fcntl
import os
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.workspace.repositories import AllowedRepositories
from serve_deployments.node_directory.directory import NodeDirectory
from serve_deployments.node_directory.removal import empty
from serve_deployments.node_directory.slots import AT_ONCE
from serve_deployments.node_directory.sweep import CopyBounds
from serve_deployments.sandbox.checks import Sandbox
from serve_deployments.workspace.copies import Copies
from serve_deployments.workspace.repository import BLOB_BYTES_MAX
from serve_deployments.workspace.workspace import WorkspaceToolbox
from tests.attack.pauses import PAUSE_S_MAX, paused
from tests.conditions import until
from tests.integration.sandbox.sandboxed import PASSES, check
from tests.repositories import blob, committed, committed_tree, run_git, source_of, used

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is the Linux kernel's")

LEVELS = 1_500
KEPT = CopyBounds(copies=16, bytes=2 << 30, unused_s=900.0)
SEARCH = "((((a{1,200}){1,200}){1,200}){1,200})"


class Node:
    """A replica of agents on a node of its own, for the workspaces of any tenant."""

    def __init__(self, folder: Path) -> None:
        self.directory = NodeDirectory(folder / "node")
        self.copies, self.sandbox = Copies(self.directory), Sandbox(self.directory)
        self._allowed = AllowedRepositories((str(folder),))

    def tools(self, tenant: str, repository: Path, commit: str) -> WorkspaceToolbox:
        source = source_of(repository, commit, tenant, allowed=self._allowed, node=self.directory)
        return WorkspaceToolbox(self.copies, self.sandbox, source)

    def left(self) -> list[str]:
        """What stands in the directory beside copies and their locks."""
        return [
            name
            for name in os.listdir(self.directory.path)
            if name.startswith(("deliberation-run-", "deliberation-removed-"))
        ]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def deep(directory: Path, levels: int = LEVELS) -> None:
    """A chain of directories, each with a file."""
    directory.mkdir()
    here = os.open(directory, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


async def seconds(use: Callable[[], Awaitable[object]], times: int = 5) -> float:
    """The longest of some uses one after the other."""
    longest = 0.0
    for _ in range(times):
        began_s = time.monotonic()
        await use()
        longest = max(longest, time.monotonic() - began_s)
    return longest


@asynccontextmanager
async def attacked(*attacks: Awaitable[object]) -> AsyncGenerator[None]:
    tasks = [asyncio.ensure_future(attack) for attack in attacks]
    # They all begin before the other tenant does.
    await asyncio.sleep(0)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- trees


async def test_a_sweep_removes_trees_of_any_shape_and_follows_no_link(node: Node, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    at = node.directory.path
    at.mkdir(mode=0o700)
    deep(at / "deliberation-run-deep")
    for name in ("deliberation-run-closed", "deliberation-removed-closed"):
        (at / name / "inner" / "inmost").mkdir(parents=True)
        (at / name / "inner" / "inmost" / "file").write_text("x")
        (at / name / "inner" / "inmost").chmod(0)
        (at / name / "inner").chmod(0)
        (at / name).chmod(0o100)
    (at / "deliberation-run-linked").mkdir()
    (at / "deliberation-run-linked" / "folder").symlink_to(outside)
    (at / "deliberation-run-link").symlink_to(outside)
    (at / "deliberation-run-left.tar").write_bytes(b"x" * 1_000)
    os.mkfifo(at / "deliberation-run-fifo")
    (at / f"{'a' * 32}-{'b' * 40}").mkdir()
    (at / f"{'c' * 32}-{'d' * 40}.new").write_text("no directory")
    of_the_operator = ["run-results", "removed-things", "slot-1", "of-the-operator"]
    for name in of_the_operator:
        (at / name).mkdir()
    await node.directory.sweep(KEPT)
    assert sorted(os.listdir(at)) == sorted(of_the_operator)
    assert node.directory.failed_removals == 0
    assert (outside / "kept").read_text() == "kept"


async def test_what_cannot_be_removed_keeps_nothing_else_and_ends_no_sweep(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = node.directory.path
    at.mkdir(mode=0o700)
    (at / "deliberation-run-a").mkdir()
    (at / "deliberation-run-b").mkdir()
    # A program of the node holds the lock of its directory.
    held = os.open(at / "deliberation-run-a", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)
    await node.directory.sweep(KEPT)
    assert os.listdir(at) == ["deliberation-run-a"]
    os.close(held)
    # A child that cannot work at all is counted, too.
    monkeypatch.setattr("serve_deployments.node_directory.directory._SWEEP", ("/nonexistent",))
    sweeping = asyncio.create_task(node.copies.keep())
    await until(lambda: node.directory.failed_removals == 1)
    assert not sweeping.done()
    sweeping.cancel()
    monkeypatch.undo()
    await node.directory.sweep(KEPT)
    assert os.listdir(at) == []


def test_a_directory_that_is_moved_away_meanwhile_is_not_followed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    (outside / "kept").mkdir(parents=True)
    (tree / "moved").mkdir(parents=True)
    scandir = os.scandir

    def moving(at: int) -> object:
        if (tree / "moved").exists() and os.path.samestat(os.fstat(at), (tree / "moved").stat()):
            (tree / "moved").rename(outside / "moved")
        return scandir(at)

    monkeypatch.setattr(os, "scandir", moving)
    empty(str(tree))
    assert os.listdir(tree) == [] and sorted(os.listdir(outside)) == ["kept", "moved"]


async def test_a_program_that_chains_directories_costs_no_other_tenant(node: Node, tmp_path: Path) -> None:
    chains = LEVELS // 15
    evil = committed(tmp_path / "evil", {f"{chain}/{'d/' * 14}file": "x" for chain in range(chains)})
    good = committed(tmp_path / "good", {"a": "1"})
    own = node.tools("globex", tmp_path / "good", good)
    alone_s = await seconds(lambda: used(own, "run", code="print(1)"))
    chained = f"""
import os
for n in range(1, {chains}):
    os.rename(str(n - 1), f'{{n}}/' + 'd/' * 14 + 'x')
print('chained')
"""
    tools = node.tools("acme", tmp_path / "evil", evil)
    async with attacked(*(used(tools, "run", code=chained) for _ in range(4))):
        beside_s = await seconds(lambda: used(own, "run", code="print(1)"))
    assert beside_s <= 1.5 * alone_s + 1.0
    assert "chained" in (await used(tools, "run", code=chained)).text
    await until(lambda: not node.left(), timeout_s=60)
    assert node.directory.failed_removals == 0


# --- archives


async def test_no_attribute_changes_the_bytes_that_are_checked(node: Node, tmp_path: Path) -> None:
    text = "".join(f"$Format:%<({width})%h$ $Id$\n" for width in range(16_000, 16_100))
    attributes = "* export-subst ident text eol=crlf working-tree-encoding=UTF-16 filter=evil\nb export-ignore\n"
    commit = committed(tmp_path / "evil", {"a": text, "b": "1"})
    commit = committed(tmp_path / "evil", {".gitattributes": "b export-ignore\n", "c": "1"}, "attributes")
    tree = run_git(tmp_path / "evil", "ls-tree", commit).replace("\t.gitattributes", "\tplain")
    lines = tree + f"\n100644 blob {blob(tmp_path / 'evil', attributes.encode())}\t.gitattributes\n"
    tools = node.tools("acme", tmp_path / "evil", committed_tree(tmp_path / "evil", lines))
    sizes = "import os\nprint(sorted((name, os.stat(name).st_size) for name in os.listdir() if len(name) == 1))"
    assert (await used(tools, "run", code=sizes)).text == f"{[('a', len(text)), ('b', 1), ('c', 1)]}\n"
    await until(lambda: not node.left())


async def test_a_listing_that_is_cut_is_not_taken_as_whole(node: Node, tmp_path: Path) -> None:
    names = (f"{number:05}{'n' * 240}" for number in range(20_000))
    files = "".join(f"M 644 :1 {name}\n" for name in names)
    stream = f"blob\nmark :1\ndata 1\nx\ncommit refs/heads/main\ncommitter A <a@b> 0 +0000\ndata 1\nx{files}\n"
    run_git(tmp_path, "init", "--quiet", "--initial-branch=main", "evil")
    run_git(tmp_path / "evil", "fast-import", "--quiet", given=stream.encode())
    tools = node.tools("acme", tmp_path / "evil", run_git(tmp_path / "evil", "rev-parse", "main"))
    assert "too large to run programs in" in (await used(tools, "run", code="print(1)")).text
    listing = (await used(tools, "list_files")).text
    assert "at least" in listing or "[cut after" in listing


def _below_many(repository: Path) -> str:
    """A deep tree below many directories; its listing is short, and the paths of its directories are not."""
    run_git(repository.parent, "init", "--quiet", "--initial-branch=main", repository.name)
    path = "d/" * 1_900 + "file"
    stream = f"commit refs/heads/main\ncommitter A <a@b> 0 +0000\ndata 1\nxM 644 inline {path}\ndata 1\nx\n"
    run_git(repository, "fast-import", "--quiet", given=stream.encode())
    tree = run_git(repository, "rev-parse", "main:d")
    return committed_tree(repository, "".join(f"040000 tree {tree}\té{number}\n" for number in range(900)))


def _of_many_marks(repository: Path) -> str:
    """Files with names of 1,000 combining marks, each of which takes milliseconds to normalise."""
    committed(repository, {"a": "1"})
    content, marks = blob(repository, b"1"), "\u0301" * 500 + "\u0316" * 500
    return committed_tree(repository, "".join(f"100644 blob {content}\t{number}{marks}\n" for number in range(1_500)))


@pytest.mark.parametrize("made", [_below_many, _of_many_marks])
async def test_names_of_a_tree_are_compared_while_the_loop_goes_on(
    node: Node, tmp_path: Path, made: Callable[[Path], str]
) -> None:
    tools = node.tools("acme", tmp_path / "repo", made(tmp_path / "repo"))
    await used(tools, "git_log")
    async with paused() as pauses:
        assert "there is no" in (await used(tools, "list_files", path="é" * 1_000)).text
        assert "there is no" in (await used(tools, "list_files", path="é/" * 400 + "f")).text
        await used(tools, "run", code="print(1)")
    assert pauses.longest_s < PAUSE_S_MAX, pauses.longest_s


async def test_a_search_reads_no_more_matches_than_it_shows(node: Node, tmp_path: Path) -> None:
    repository, name = tmp_path / "repo", "\n" * 4_000
    committed(repository, {"a": "1"})
    entry = f"100644 blob {blob(repository, b'needle' + bytes([10]) + b'needle')}\t{name}\0"
    tree = run_git(repository, "mktree", "-z", given=entry.encode())
    commit = committed_tree(repository, "".join(f"040000 tree {tree}\t{number}\n" for number in range(1_500)))
    tools = node.tools("acme", repository, commit)
    await used(tools, "git_log")
    async with paused() as pauses:
        text = (await used(tools, "search", pattern="needle")).text
    assert text.startswith(f"0/{name}:1:needle\n0/{name}:2:needle\n1/") and pauses.longest_s < PAUSE_S_MAX


async def test_lines_of_a_file_are_read_without_the_millions_before_them(node: Node, tmp_path: Path) -> None:
    lines = 2_700_000
    commit = committed(tmp_path / "repo", {"many": "".join(f"{number % 100}\n" for number in range(lines))})
    tools = node.tools("acme", tmp_path / "repo", commit)
    await used(tools, "git_log")
    tracemalloc.start()
    for first in (1, 1_000_001, 2_699_999):
        text = (await used(tools, "read_file", path="many", first_line=first, lines=2)).text
        assert text == f"many, lines {first} to {first + 1} of {lines}:\n{(first - 1) % 100}\n{first % 100}"
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 6 * BLOB_BYTES_MAX


@pytest.mark.parametrize("name", ["n" * 300, "twice", "sub/" + "n" * 300, '"caf\\351"'])
async def test_a_name_that_no_file_system_takes_is_a_result(node: Node, tmp_path: Path, name: str) -> None:
    committed(tmp_path / "evil", {"a": "1"})
    content = blob(tmp_path / "evil", b"1")
    inner = run_git(tmp_path / "evil", "mktree", given=f"100644 blob {content}\tx\n".encode())
    entry = f"100644 blob {content}\t{name}\n"
    if name == "twice":
        entry += f"040000 tree {inner}\ttwice\n"
    if name.startswith("sub/"):
        inner = run_git(tmp_path / "evil", "mktree", given=f"100644 blob {content}\t{name[4:]}\n".encode())
        entry = f"040000 tree {inner}\tsub\n"
    commit = committed_tree(tmp_path / "evil", entry)
    tools = node.tools("acme", tmp_path / "evil", commit)
    result = await used(tools, "run", code="import os\nprint(os.listdir(b'.'))")
    assert "cannot be unpacked" in result.text or result.text == "[b'caf\\xe9']\n", result.text
    assert (await used(tools, "list_files")).text
    await until(lambda: not node.left())


async def test_a_use_that_is_cancelled_while_it_unpacks_ends_its_child(node: Node, tmp_path: Path) -> None:
    commit = committed(tmp_path / "large", {f"{n % 50}/{n}": "x" * 6_000 for n in range(3_000)})
    tools = node.tools("acme", tmp_path / "large", commit)
    await used(tools, "list_files")
    use = asyncio.create_task(used(tools, "run", code="print(1)"))
    await until(lambda: any(node.directory.path.glob("deliberation-run-*/*")))
    use.cancel()
    await asyncio.wait({use})
    await until(lambda: not node.left(), timeout_s=60)
    assert node.directory.failed_removals == 0


# --- programs


async def test_a_use_that_is_cancelled_while_its_directory_is_made_leaves_none(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = committed(tmp_path / "repo", {"a": "1"})
    tools = node.tools("acme", tmp_path / "repo", commit)
    await used(tools, "list_files")
    made, go_on = threading.Event(), threading.Event()
    mkdtemp = tempfile.mkdtemp

    def slow(prefix: str, dir: Path) -> str:
        directory = str(mkdtemp(prefix=prefix, dir=dir))
        made.set()
        go_on.wait(10)
        return directory

    monkeypatch.setattr(tempfile, "mkdtemp", slow)
    use = asyncio.create_task(used(tools, "run", code="print(1)"))
    await until(made.is_set)
    use.cancel()
    await asyncio.wait({use})
    go_on.set()
    await until(lambda: not node.left())


async def test_programs_of_one_tenant_that_sleep_leave_slots_to_others(node: Node, tmp_path: Path) -> None:
    commit = committed(tmp_path / "repo", {"a": "1"})
    own, other = (node.tools(tenant, tmp_path / "repo", commit) for tenant in ("globex", "acme"))
    alone_s = await seconds(lambda: used(own, "run", code="print(1)"))
    asked = check("def f(): return 1", PASSES)
    alone_s = max(alone_s, await seconds(lambda: node.sandbox.report(asked, "globex", 30.0)))
    await used(other, "list_files")
    sleeping = "import time\ntime.sleep(60)"
    async with attacked(*(used(other, "run", code=sleeping) for _ in range(64))):
        beside_s = await seconds(lambda: used(own, "run", code="print(1)"))
        executed_s = await seconds(lambda: node.sandbox.report(asked, "globex", 30.0))
    assert max(beside_s, executed_s) <= 1.5 * alone_s + 1.0


@pytest.mark.parametrize("mode", ["r+b", "ab", "wb"])
async def test_a_program_writes_no_more_than_its_creations_in_sum(node: Node, tmp_path: Path, mode: str) -> None:
    commit = committed(tmp_path / "repo", {f"{n}": "x" for n in range(600)})
    program = f"""
import errno
written = 0
for n in range(600):
    try:
        with open(str(n), {mode!r}) as file:
            file.write(b'x' * (1 << 10))
        written += 1
    except OSError as error:
        assert error.errno == errno.ENOSPC
print(written)
"""
    assert int((await used(node.tools("acme", tmp_path / "repo", commit), "run", code=program)).text) <= 256


async def test_a_program_starts_no_process_however_often_it_tries(node: Node, tmp_path: Path) -> None:
    commit = committed(tmp_path / "repo", {"a": "1"})
    program = """
import os
refused = 0
for _ in range(10_000):
    try:
        os.fork() or os._exit(0)
    except PermissionError:
        refused += 1
for sparse in range(3):
    with open(f'sparse{sparse}', 'wb') as file:
        try:
            file.truncate(1 << 40)
        except OSError:
            refused += 1
try:
    os.link('a', 'b')
except PermissionError:
    refused += 1
print(refused)
"""
    assert (await used(node.tools("acme", tmp_path / "repo", commit), "run", code=program)).text == "10004\n"


# --- patterns


async def test_patterns_of_one_tenant_leave_memory_and_time_to_others(node: Node, tmp_path: Path) -> None:
    commit = committed(tmp_path / "repo", {"a": ("a" * 5_000 + "\n") * 20})
    own, other = (node.tools(tenant, tmp_path / "repo", commit) for tenant in ("globex", "acme"))
    alone_s = await seconds(lambda: used(own, "search", pattern="b"))
    await used(other, "list_files")
    searches = (used(other, "search", 5.0, pattern=SEARCH, regex=True) for _ in range(4 * AT_ONCE))
    async with attacked(*searches):
        beside_s = await seconds(lambda: used(own, "search", pattern="b"))
    assert beside_s <= 1.5 * alone_s + 1.0
