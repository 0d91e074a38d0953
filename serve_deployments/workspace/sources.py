"""What a copy is made of: a commit of a repository, or the files of a request. Both become a bare repository."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Accepted, decode, is_acceptance, prefix
from app.deliberation.ports import Journal
from app.deliberation.specification import FilesWorkspace, GitWorkspace, WorkspaceFile
from app.workspace.files import path_fault, same_paths
from app.workspace.git import GitFailed, git
from app.workspace.repositories import AllowedRepositories, RepositoryRefused
from serve_deployments.node_directory.directory import NodeDirectory
from serve_deployments.node_directory.slots import NodeSlots
from serve_deployments.tools.toolbox import ToolFailure

COMMITS = 50
FETCHED_WITHIN_S = 120.0
FETCHES_AT_ONCE = 4
"""How many fetches a node runs at once."""
_BRANCH = "refs/heads/files"


class Source(Protocol):
    """A tenant's source of a copy. `name` is unique within the tenant, and `revision` is the commit that tools read."""

    @property
    def tenant(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def revision(self) -> str: ...

    async def write(self, copy: Path) -> None:
        """Make the bare repository. Raises ToolFailure `refused`, and GitFailed."""
        ...


class Fetches:
    """What fetches share: the allowed repositories, and the node's slots."""

    def __init__(self, allowed: AllowedRepositories, node: NodeDirectory) -> None:
        self.allowed = allowed
        self.slots = NodeSlots(node, "fetches", FETCHES_AT_ONCE)


@dataclass(frozen=True, slots=True)
class RepositoryCommit:
    """A commit of a repository that the settings allow to the tenant, with the last `COMMITS` of its history."""

    fetches: Fetches
    workspace: GitWorkspace
    tenant: str

    @property
    def name(self) -> str:
        return f"{self.workspace.git} {self.workspace.commit}"

    @property
    def revision(self) -> str:
        return self.workspace.commit

    async def write(self, copy: Path) -> None:
        """Fetch it within the time, which includes the wait for a slot, so that abandoned fetches leave the queue."""
        try:
            location = await asyncio.to_thread(self.fetches.allowed.location, self.workspace.git, self.tenant)
        except RepositoryRefused as refused:
            raise ToolFailure("refused", refused.detail) from refused
        until_s, commit = time.monotonic() + FETCHED_WITHIN_S, self.workspace.commit
        into = ("--git-dir", str(copy))
        try:
            async with asyncio.timeout(FETCHED_WITHIN_S), self.fetches.slots.slot(self.tenant):
                await _initialised(copy)
                fetch = ("fetch", "--quiet", "--no-tags", f"--depth={COMMITS}", "--", location.source, commit)
                for arguments in (fetch, ("rev-parse", "--quiet", "--verify", f"{commit}^{{tree}}")):
                    output = await location.git(*into, *arguments, within_s=until_s - time.monotonic())
                    if output.status != 0:
                        raise GitFailed(output.error.splitlines()[-1] if output.error else f"git: {output.status}")
        except TimeoutError:
            raise GitFailed(f"it was not there within {FETCHED_WITHIN_S:.0f} s") from None


@dataclass(frozen=True, slots=True)
class RequestFiles:
    """The files of a deliberation's request, which its acceptance in the log holds."""

    journal: Journal
    deliberation_id: str
    tenant: str

    @property
    def name(self) -> str:
        return f"files {self.deliberation_id}"

    @property
    def revision(self) -> str:
        return _BRANCH

    async def write(self, copy: Path) -> None:
        files = await self._files()
        await _initialised(copy)
        commit = b"".join(_imported(files))
        asked = ("--git-dir", str(copy), "fast-import", "--quiet")
        output = await git(*asked, within_s=FETCHED_WITHIN_S, sent=commit)
        if output.status != 0:
            raise GitFailed(f"git: {output.status}")

    async def _files(self) -> Sequence[WorkspaceFile]:
        try:
            records = await self.journal.last([f"{prefix(self.tenant, self.deliberation_id)}.*"])
        except JournalUnavailable as away:
            raise ToolFailure("server_away", "the log cannot be reached") from away
        fact = next((decode(record.data) for record in records if is_acceptance(record.subject)), None)
        workspace = fact.specification.workspace if isinstance(fact, Accepted) else None
        if not isinstance(workspace, FilesWorkspace):
            raise ToolFailure("server_away", "the log does not hold the files any more")
        paths = [file.path for file in workspace.files]
        # A log without a key accepts any record.
        if any(map(path_fault, paths)) or any(same_paths(paths)):
            raise ToolFailure("refused", "a path of a file leads out, or stands twice")
        return workspace.files


async def _initialised(copy: Path) -> None:
    output = await git("init", "--quiet", "--bare", "--template=", "--", str(copy), within_s=FETCHED_WITHIN_S)
    if output.status != 0:
        raise GitFailed(output.error)


def _imported(files: Sequence[WorkspaceFile]) -> Iterator[bytes]:
    """A commit of the files, as git's `fast-import` reads it."""
    yield f"commit {_BRANCH}\ncommitter request <-> 0 +0000\ndata 0\n".encode()
    for file in files:
        text = file.text.encode()
        quoted = file.path.replace('"', '\\"')
        yield f'M 100644 inline "{quoted}"\ndata {len(text)}\n'.encode() + text + b"\n"
