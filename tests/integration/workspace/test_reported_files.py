"""Files, names and arguments of public reports, against a real repository."""

from pathlib import Path
from typing import Any

import pytest

from app.workspace.repositories import AllowedRepositories, CommitLookup, RepositoryRefused
from serve_deployments.workspace.workspace import WorkspaceToolbox
from tests.reported_inputs import REPORTED, reported
from tests.repositories import committed, run_git, toolbox

WITHIN_S = 30.0
MINIFIED = f"{'x' * 60_000}needle{'y' * 100}\n"


def tools_over(folder: Path, files: dict[str, str]) -> WorkspaceToolbox:
    contents = {name: MINIFIED if name.endswith(".min.js") else text for name, text in files.items()}
    return toolbox(folder, folder / "repo", committed(folder / "repo", contents))


async def used(tools: WorkspaceToolbox, name: str, **arguments: Any) -> str:
    result = await tools.use(name, arguments, WITHIN_S)
    assert not result.failed, result.text
    return result.text


@pytest.mark.parametrize("name", [*reported("texts of any script"), *reported("what a tool does not find")])
async def test_a_use_of_a_report_finds_what_is_there(tmp_path: Path, name: str) -> None:
    report, expected = REPORTED[name]["input"], REPORTED[name]["expected"]
    tools = tools_over(tmp_path, report["files"])
    texts = [await used(tools, call["name"], **call["arguments"]) for call in report["tool_calls"]]
    for part in expected:
        assert any(part in text for text in texts), texts
    assert not any("\ufffd" in text for text in texts)


@pytest.mark.parametrize("name", reported("arguments of a workspace's tools"))
async def test_arguments_of_a_report_are_read_as_they_are_meant(tmp_path: Path, name: str) -> None:
    report = REPORTED[name]["input"]
    (call,) = report["tool_calls"]
    text = await used(tools_over(tmp_path, report["files"]), call["name"], **call["arguments"])
    assert REPORTED[name]["expected"] in text


async def test_a_repository_of_sha_256_is_refused_for_that(tmp_path: Path) -> None:
    repository = tmp_path / "repo"
    repository.mkdir()
    run_git(repository, "init", "-q", "--object-format=sha256")
    (repository / "a.txt").write_text("zebra\n")
    run_git(repository, "add", ".")
    run_git(repository, "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-qm", "first")
    lookup = CommitLookup(AllowedRepositories((str(tmp_path),)))
    with pytest.raises(RepositoryRefused, match=REPORTED["sha-256-repository"]["expected"]):
        await lookup.commit_of(str(repository), "HEAD", "acme")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [(r"total\(x1\|y\)", "alternatives are"), ("x(", "Perl-compatible regular expression"), (r"\<total\>", "a.py:1:")],
)
async def test_a_pattern_is_understood_or_its_syntax_is_named(tmp_path: Path, pattern: str, words: str) -> None:
    tools = tools_over(tmp_path, {"a.py": "def total(x1, y22):\n"})
    result = await tools.use("search", {"pattern": pattern, "regex": True}, WITHIN_S)
    assert words in result.text


async def test_a_text_that_reads_like_an_expression_is_told_apart(tmp_path: Path) -> None:
    tools = tools_over(tmp_path, {"a.py": "def total(x1, y22):\n"})
    assert "set `regex`" in await used(tools, "search", pattern=r"x\d")
    assert await used(tools, "search", pattern="nothing") == "no line matches"


async def test_control_characters_are_still_replaced(tmp_path: Path) -> None:
    tools = tools_over(tmp_path, {"a.txt": "a\x1b[31mb\x07\n"})
    assert await used(tools, "read_file", path="a.txt") == "a.txt, lines 1 to 1 of 1:\na\ufffd[31mb\ufffd"


async def test_of_two_names_that_are_equal_neither_is_guessed(tmp_path: Path) -> None:
    tools = tools_over(tmp_path, {"e\u0301.txt": "apart\n", "\u00e9.txt": "whole\n", "sub-e\u0301/a.txt": "below\n"})
    assert "whole" in await used(tools, "read_file", path="\u00e9.txt")
    assert "apart" in await used(tools, "read_file", path="e\u0301.txt")
    assert "below" in await used(tools, "read_file", path="sub-\u00e9/a.txt")
    assert "below" in await used(tools, "search", pattern="below", path="sub-\u00e9")
