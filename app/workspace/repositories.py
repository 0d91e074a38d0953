"""The repositories that settings allow, and the commit that a ref of one names."""

import asyncio
import os
import re
from dataclasses import dataclass, field
from typing import Literal

from app.workspace.git import GitFailed, git

REF_PATTERN = r"^[A-Za-z0-9_@][A-Za-z0-9_@./+#-]{0,199}$"
COMMIT_PATTERN = r"^[0-9a-f]{40}$"
RESOLVED_WITHIN_S = 10.0
RESOLVED_AT_ONCE = 8

# A URL without user, port's default spelt otherwise, query or fragment, and without an escape that hides a slash.
_URL = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9_.~+-]+)*/?", re.ASCII)


class RepositoryRefused(Exception):
    """A repository that may not be read, cannot be, or lacks the ref; `field` is that of the request."""

    def __init__(self, field: Literal["git", "ref"], code: str, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.field: Literal["git", "ref"] = field
        self.code = code
        self.detail = detail
        self.remedy = remedy


def checked_prefix(prefix: str) -> str:
    """Returns a prefix of WORKSPACES; raises ValueError unless it is an absolute path or an http(s) URL."""
    if _is_url(prefix) or (os.path.isabs(prefix) and prefix.isprintable()):
        return prefix.rstrip("/") or "/"
    raise ValueError(
        f"{prefix!r} is no absolute path, and no URL as https://host/path without user, query and escapes. Correct it."
    )


def _is_url(text: str) -> bool:
    return _URL.fullmatch(text) is not None and not {".", ".."} & set(text.split("/"))


def _below(text: str, prefix: str) -> bool:
    return text == prefix or text.startswith(f"{prefix.rstrip('/')}/")


@dataclass(frozen=True, slots=True)
class AllowedRepositories:
    """The prefixes of URLs and paths that requests may name; each ends at a slash or the end."""

    prefixes: tuple[str, ...]
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(RESOLVED_AT_ONCE), compare=False)

    def location(self, repository: str) -> str:
        """Returns the source of a fetch: the URL, or the path with its links resolved. Reads the file system.

        Raises RepositoryRefused for a repository outside of all prefixes.
        """
        found = repository.rstrip("/") or "/"
        if os.path.isabs(repository) and repository.isprintable():
            found = os.path.realpath(repository)
            allowed = any(_below(found, os.path.realpath(each)) for each in self.prefixes if os.path.isabs(each))
        else:
            allowed = _is_url(repository) and any(_below(found, each) for each in self.prefixes)
        if not allowed:
            detail = "This repository is not allowed" if self.prefixes else "This gateway allows no workspaces"
            remedy = "Name one below a prefix in the setting WORKSPACES, or have the operator add it."
            raise RepositoryRefused("git", "repository_not_allowed", detail, remedy)
        return found

    async def commit_of(self, repository: str, ref: str) -> str:
        """Returns the commit of a branch, a tag, HEAD, or itself; raises RepositoryRefused.

        A commit's full id is not looked up: servers list only the ends of branches and tags.
        """
        location = await asyncio.to_thread(self.location, repository)
        unreachable = "Check that it is a repository that the gateway's host reaches without credentials."
        try:
            asked = ("ls-remote", "--quiet", "--", location, *_names_of(ref))
            async with asyncio.timeout(RESOLVED_WITHIN_S), self.slots:
                found = await git(*asked, within_s=RESOLVED_WITHIN_S)
        except (GitFailed, TimeoutError) as failure:
            detail = str(failure) or f"The repository did not answer within {RESOLVED_WITHIN_S:.0f} s"
            raise RepositoryRefused("git", "repository_unreachable", detail, unreachable) from failure
        if found.status != 0:
            detail = "The repository cannot be read"
            raise RepositoryRefused("git", "repository_unreachable", detail, unreachable)
        if re.fullmatch(COMMIT_PATTERN, ref):
            return ref
        commits = {name: commit for commit, name in _listed(found.data)}
        for name in _names_of(ref):
            # A tag's own object comes first, and after it the commit that it names.
            if commit := commits.get(f"{name}^{{}}") or commits.get(name):
                return commit
        remedy = "Name a branch, a tag, HEAD, or a commit by its full id."
        raise RepositoryRefused("ref", "unknown_ref", f"The repository has no {ref!r}", remedy)


NO_REPOSITORIES = AllowedRepositories(())


def _names_of(ref: str) -> tuple[str, ...]:
    """The names that a ref may stand for, in git's order."""
    return ref, f"refs/tags/{ref}", f"refs/tags/{ref}^{{}}", f"refs/heads/{ref}"


def _listed(data: bytes) -> list[tuple[str, str]]:
    lines = (line.split("\t") for line in data.decode("utf-8", "replace").splitlines())
    return [(parts[0], parts[1]) for parts in lines if len(parts) == 2 and re.fullmatch(COMMIT_PATTERN, parts[0])]
