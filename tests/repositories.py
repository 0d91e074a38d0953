"""Git repositories of tests: made by git itself, with fixed names and times, without this machine's configuration."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.deliberation.specification import GitWorkspace
from app.workspace.repositories import AllowedRepositories
from serve_deployments.node_directory.directory import NodeDirectory
from serve_deployments.sandbox.checks import Sandbox
from serve_deployments.tools.toolbox import ToolFailure, ToolResult
from serve_deployments.workspace.copies import Copies
from serve_deployments.workspace.sources import Fetches, RepositoryCommit
from serve_deployments.workspace.workspace import WorkspaceToolbox

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (
        ("NAME", "Ada"), ("EMAIL", "ada@example.com"), ("DATE", "2026-11-27T12:00:00Z"))},
}  # fmt: skip


def run_git(directory: Path, *arguments: str, given: bytes = b"") -> str:
    command = ["git", "-C", str(directory), *arguments]
    return (
        subprocess.run(command, input=given, env=ENVIRONMENT, check=True, capture_output=True).stdout.decode().strip()
    )


def committed(directory: Path, files: Mapping[str, str | bytes], message: str = "first") -> str:
    """Write and commit files, into a new repository where there is none; returns the commit."""
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / ".git").exists():
        run_git(directory, "init", "--quiet", "--initial-branch=main")
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    run_git(directory, "add", "--all", "--force")
    run_git(directory, "commit", "--quiet", "--allow-empty", f"--message={message}")
    return run_git(directory, "rev-parse", "HEAD")


def committed_tree(directory: Path, entries: str) -> str:
    """Commit a tree as its lines say, also one that `git add` would not make; returns the commit."""
    tree = run_git(directory, "mktree", "--missing", given=entries.encode())
    commit = run_git(directory, "commit-tree", tree, "-m", "a tree")
    run_git(directory, "update-ref", "refs/heads/main", commit)
    return commit


def blob(directory: Path, content: bytes) -> str:
    return run_git(directory, "hash-object", "-w", "--stdin", given=content)


def toolbox(
    folder: Path, repository: Path, commit: str, *, tenant: str = "acme", copies: Copies | None = None
) -> WorkspaceToolbox:
    """The toolbox of a workspace over a repository in `folder`, which is the only allowed prefix."""
    allowed = AllowedRepositories((str(folder),))
    source = source_of(repository, commit, tenant, allowed=allowed, node=node_of(folder))
    return WorkspaceToolbox(copies or copies_in(folder), sandbox_in(folder), source)


def source_of(
    repository: Path | str,
    commit: str,
    tenant: str = "acme",
    *,
    allowed: AllowedRepositories,
    node: NodeDirectory,
) -> RepositoryCommit:
    workspace = GitWorkspace(git=str(repository), ref="HEAD", commit=commit)
    return RepositoryCommit(Fetches(allowed, node), workspace, tenant)


def node_of(folder: Path) -> NodeDirectory:
    return NodeDirectory(folder / "copies")


def copies_in(folder: Path) -> Copies:
    return Copies(node_of(folder))


def sandbox_in(folder: Path) -> Sandbox:
    return Sandbox(node_of(folder))


async def used(tools: WorkspaceToolbox, name: str, within_s: float = 30.0, **arguments: Any) -> ToolResult:
    """A use of a tool; a failure is a result that has `failed`."""
    try:
        return await tools.use(name, arguments, within_s)
    except ToolFailure as failure:
        return ToolResult(f"{failure.code}: {failure.detail}", failed=True)
