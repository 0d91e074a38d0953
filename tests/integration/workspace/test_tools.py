"""Each tool of a workspace reads a real repository, and names what is wrong with its arguments."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.deliberation.tools import WORKSPACE_TOOLS
from app.workspace.git import git
from serve_deployments.workspace.repository import ENTRIES_MAX, LINE_CHARS_MAX, MATCHES_MAX, TEXT_BYTES_MAX
from serve_deployments.workspace.workspace import WorkspaceToolbox
from tests.repositories import committed, run_git, toolbox

WITHIN_S = 30.0
MERGE = "def merge(a, b):\n    return a + b\n"
TESTS = "from merge import merge\n\n\ndef test_merges():\n    assert merge([1, 3], [2]) == [1, 2, 3]\n"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("workspace")
    committed(folder / "repo", {"merge.py": "def merge(a, b):\n    return []\n", "docs/a.md": "One.\nTwo.\n"})
    files = {"merge.py": MERGE, "tests/test_merge.py": TESTS, "image.bin": b"\x00\x01"}
    return folder, committed(folder / "repo", files, "second")


@pytest.fixture
def tools(repository: tuple[Path, str]) -> WorkspaceToolbox:
    folder, commit = repository
    return toolbox(folder, folder / "repo", commit)


async def used(tools: WorkspaceToolbox, name: str, **arguments: Any) -> str:
    result = await tools.use(name, arguments, WITHIN_S)
    assert not result.failed, result.text
    return result.text


async def fault(tools: WorkspaceToolbox, name: str, **arguments: Any) -> str:
    result = await tools.use(name, arguments, WITHIN_S)
    assert result.failed, result.text
    return result.text


async def test_list_files_names_every_file_with_its_size(tools: WorkspaceToolbox) -> None:
    listed = (await used(tools, "list_files")).splitlines()
    sizes = [len(MERGE), len(TESTS)]
    assert listed == [
        "docs/a.md (10 bytes)",
        "image.bin (2 bytes)",
        f"merge.py ({sizes[0]} bytes)",
        f"tests/test_merge.py ({sizes[1]} bytes)",
    ]
    assert await used(tools, "list_files", path="docs/") == "docs/a.md (10 bytes)"
    assert await fault(tools, "list_files", path="none") == "there is no 'none' in the workspace"


async def test_read_file_returns_the_lines_that_are_asked_for(tools: WorkspaceToolbox) -> None:
    assert await used(tools, "read_file", path="merge.py") == f"merge.py, lines 1 to 2 of 2:\n{MERGE.rstrip()}"
    assert await used(tools, "read_file", path="docs/a.md", first_line=2) == "docs/a.md, lines 2 to 2 of 2:\nTwo."
    assert await fault(tools, "read_file", path="docs/a.md", first_line=3) == "docs/a.md has 2 lines"
    assert await fault(tools, "read_file", path="docs") == "docs is a directory: list its files"
    assert await fault(tools, "read_file", path="image.bin") == "image.bin is binary, of 2 bytes"


async def test_search_finds_texts_and_expressions_with_file_and_line(tools: WorkspaceToolbox) -> None:
    assert await used(tools, "search", pattern="return a + b") == "merge.py:2:    return a + b"
    assert await used(tools, "search", pattern="^def (test_)?merges?", regex=True) == (
        "merge.py:1:def merge(a, b):\ntests/test_merge.py:4:def test_merges():"
    )
    assert await used(tools, "search", pattern="ONE", path="docs", ignore_case=True) == "docs/a.md:1:One."
    assert await used(tools, "search", pattern="a.b") == "no line matches"
    assert "missing closing parenthesis" in await fault(tools, "search", pattern="(", regex=True)


async def test_diff_shows_the_last_change_or_all_since_a_commit(
    tools: WorkspaceToolbox, repository: tuple[Path, str]
) -> None:
    first = run_git(repository[0] / "repo", "rev-parse", "HEAD^")
    last = await used(tools, "diff", path="merge.py")
    assert "-    return []\n+    return a + b" in last
    assert await used(tools, "diff", path="merge.py", base=first[:10]) == last
    assert await used(tools, "diff", base=repository[1]) == "no difference"
    assert "has no commit 0000" in await fault(tools, "diff", base="0000")


async def test_diff_of_a_first_commit_shows_all_its_files(tmp_path: Path) -> None:
    commit = committed(tmp_path / "new", {"a.txt": "alone\n"})
    assert "+alone" in await used(toolbox(tmp_path, tmp_path / "new", commit), "diff")


async def test_git_log_lists_commits_newest_first(tools: WorkspaceToolbox) -> None:
    lines = (await used(tools, "git_log")).splitlines()
    assert [line.strip() for line in lines[1::2]] == ["second", "first"]
    assert lines[0].endswith("2026-11-27 Ada")
    assert [line.strip() for line in (await used(tools, "git_log", path="docs")).splitlines()[1::2]] == ["first"]


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is the Linux kernel's")
async def test_run_tests_names_the_test_that_fails_and_why(tools: WorkspaceToolbox) -> None:
    text = await used(tools, "run_tests")
    assert "tests/test_merge.py::test_merges ... FAIL" in text
    assert 'File "tests/test_merge.py", line 5, in test_merges' in text
    assert "FAILED (failures=1)" in text


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is the Linux kernel's")
async def test_run_tests_takes_functions_cases_fixtures_and_broken_files(tmp_path: Path) -> None:
    files = {
        "src/package/__init__.py": "VALUE = 7\n",
        "tests/test_kinds.py": "import unittest\nfrom package import VALUE\n\n"
        "def test_function():\n    assert VALUE == 7\n\n"
        "def test_with_fixture(tmp_path):\n    raise AssertionError\n\n"
        "class Case(unittest.TestCase):\n    def test_method(self):\n        self.assertEqual(VALUE, 8)\n",
        "tests/test_broken.py": "import package_that_is_not_installed\n",
    }
    tools = toolbox(tmp_path, tmp_path / "repo", committed(tmp_path / "repo", files))
    text = await used(tools, "run_tests")
    assert "tests/test_kinds.py::test_function ... ok" in text
    assert "tests/test_kinds.py::test_with_fixture ... skipped 'it takes tmp_path" in text
    assert "AssertionError: 7 != 8" in text and "No module named 'package_that_is_not_installed'" in text
    assert "FAILED (failures=1, errors=1, skipped=1)" in text
    assert "Ran 1 test " in await used(tools, "run_tests", only="test_function")
    assert (await used(tools, "run_tests", path="src")).startswith("no test found")


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is the Linux kernel's")
async def test_run_prints_and_what_it_writes_is_gone_afterwards(tools: WorkspaceToolbox) -> None:
    code = "import merge, os\nopen('new', 'w').close()\nprint(merge.merge([1], [2]), sorted(os.listdir('.')))"
    expected = "[1, 2] ['docs', 'image.bin', 'merge.py', 'new', 'tests']\n"
    assert await used(tools, "run", code=code) == expected
    assert "'new'" not in await used(tools, "run", code="import os\nprint(os.listdir('.'))")
    assert "ZeroDivisionError" in await used(tools, "run", code="1 / 0")


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is the Linux kernel's")
async def test_a_program_that_does_not_end_shows_what_it_printed(tools: WorkspaceToolbox) -> None:
    result = await tools.use("run", {"code": "print('begun')\nwhile True: pass"}, 5.0)
    assert result.text.startswith("begun\n\n[ran longer than ") and not result.failed


@pytest.mark.parametrize(
    ("name", "arguments", "named"),
    [
        ("erase", {}, "there is no tool 'erase'"),
        ("read_file", {}, "path: Field required"),
        ("read_file", {"path": 7}, "path: Input should be a valid string"),
        ("read_file", {"path": "a", "lines": "many"}, "lines: Input should be a valid integer"),
        ("list_files", {"where": "a"}, "where: Extra inputs are not permitted"),
        ("search", {"pattern": "a\nb"}, "pattern: it must be one line without control characters"),
        ("diff", {"base": "HEAD~1"}, "base: String should match pattern"),
        ("git_log", {"count": [1]}, "count: Input should be a valid integer"),
    ],
)
async def test_arguments_that_do_not_fit_are_named(
    tools: WorkspaceToolbox, name: str, arguments: Mapping[str, Any], named: str
) -> None:
    assert named in await fault(tools, name, **arguments)


async def test_long_results_are_cut_and_say_so(tmp_path: Path) -> None:
    many = {f"many/{number:05}": f"needle {number} {'x' * LINE_CHARS_MAX}\n" for number in range(ENTRIES_MAX + 1)}
    commit = committed(tmp_path / "repo", {**many, "long.txt": "line\n" * TEXT_BYTES_MAX})
    tools = toolbox(tmp_path, tmp_path / "repo", commit)
    assert (await used(tools, "list_files")).endswith("[2 more: name a directory]")
    found = (await used(tools, "search", pattern="needle")).splitlines()
    assert len(found) <= MATCHES_MAX + 1 and max(map(len, found)) <= LINE_CHARS_MAX + 1
    assert (await used(tools, "read_file", path="long.txt", lines=1_000)).startswith("long.txt, lines 1 to 1000 of ")
    assert f"[cut after {TEXT_BYTES_MAX} bytes]" in await used(tools, "diff")


async def test_every_tool_is_described_and_may_be_repeated(tools: WorkspaceToolbox) -> None:
    offered = await tools.tools()
    remedy = "WORKSPACE_TOOLS in app/deliberation/tools.py and _USES in workspace.py name the same tools in one order"
    assert tuple(tool.name for tool in offered) == WORKSPACE_TOOLS, remedy
    assert all(tool.repeatable and tool.description and tool.server == "workspace" for tool in offered)
    assert all(tool.input_schema["additionalProperties"] is False for tool in offered)


async def test_output_beyond_the_bound_ends_git_at_once(tmp_path: Path) -> None:
    committed(tmp_path / "repo", {"long.txt": "line\n" * 1_000_000})
    for bytes_max in (1_000, 100_000, 300_000, 1_000_000):
        found = await git(
            "--git-dir", str(tmp_path / "repo/.git"), "show", "HEAD:long.txt", within_s=30, bytes_max=bytes_max
        )
        assert (len(found.data), found.cut) == (bytes_max, True)
