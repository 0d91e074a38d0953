"""The repositories that settings allow to tenants, and the commit that a ref of one names."""

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import structlog

from app.bounded_child import ChildOutput
from app.control_characters import has_control
from app.secret_files import SecretsUnreadable, read_headers, secrets_of, without
from app.tenant_slots import TenantSlots
from app.workspace.git import GitFailed, git

REF_PATTERN = r"^[A-Za-z0-9_@][A-Za-z0-9_@./+#-]{0,199}$"
COMMIT_PATTERN = r"^[0-9a-f]{40}$"
RESOLVED_WITHIN_S = 10.0
RESOLVED_AT_ONCE = 8

# A URL without user, port's default spelt otherwise, query or fragment, and without an escape that hides a slash.
_URL = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9_.~+-]+)*/?", re.ASCII)


log = structlog.get_logger(__name__)


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
    if _is_url(prefix) or (os.path.isabs(prefix) and not has_control(prefix)):
        return prefix.rstrip("/") or "/"
    raise ValueError(
        f"{prefix!r} is no absolute path, and no URL as https://host/path without user, query and escapes. Correct it."
    )


def _is_url(text: str) -> bool:
    return _URL.fullmatch(text) is not None and not {".", ".."} & set(text.split("/"))


def _below(text: str, prefix: str) -> bool:
    return text == prefix or text.startswith(f"{prefix.rstrip('/')}/")


def _spelling(text: str) -> str:
    """The form that other spellings of a repository share: servers ignore case, and a `.git` at the end of a name."""
    return re.sub(r"\.git(?=/|$)", "", text.lower())


@dataclass(frozen=True, slots=True)
class Location:
    """The source of a fetch: a URL, or a path with its links resolved; and where its credentials are."""

    source: str
    headers_prefix: str = ""
    headers_file: str = ""

    async def git(self, *arguments: str, within_s: float) -> ChildOutput:
        """Run git with the repository's credentials, which are read now; its errors have them replaced.

        Raises GitFailed as `git` does, and when the credentials cannot be read.
        """
        if not self.headers_file:
            return await git(*arguments, within_s=within_s)
        try:
            headers = await asyncio.to_thread(read_headers, self.headers_file)
        except SecretsUnreadable as unreadable:
            log.error("repository_credentials_unreadable", error=str(unreadable))
            raise GitFailed("the credentials of the repository cannot be read") from None
        lines = [f"\textraHeader = {_quoted(f'{name}: {value}')}" for name, value in headers.items()]
        # Git sends them below the prefix alone.
        configuration = "\n".join((f'[http "{self.headers_prefix}"]', *lines, ""))
        output = await git(*arguments, within_s=within_s, configuration=configuration)
        return replace(output, error=without(output.error, secrets_of(headers)))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class AllowedRepositories:
    """The prefixes of URLs and paths that requests may name; each ends at a slash or the end.

    `prefixes` hold for every tenant. `of_tenants` are pairs of a tenant and a prefix, which holds for those tenants
    alone, also below a shorter prefix. `headers_files` have the credentials of what is below a URL.
    """

    prefixes: tuple[str, ...] = ()
    of_tenants: tuple[tuple[str, str], ...] = ()
    headers_files: Mapping[str, str] = field(default_factory=dict[str, str])

    def location(self, repository: str, tenant: str) -> Location:
        """Returns the repository's location. Reads the file system.

        Raises RepositoryRefused outside of all prefixes, and where the longest one belongs to other tenants.
        """
        source, prefixes = repository.rstrip("/") or "/", list(self.prefixes)
        of_tenants = list(self.of_tenants)
        if os.path.isabs(repository) and not has_control(repository):
            source = os.path.realpath(repository)
            prefixes = [os.path.realpath(prefix) for prefix in prefixes if os.path.isabs(prefix)]
            of_tenants = [(owner, os.path.realpath(prefix)) for owner, prefix in of_tenants if os.path.isabs(prefix)]
        elif not _is_url(repository):
            prefixes, of_tenants = [], []
        open_to_all = max((len(prefix) for prefix in prefixes if _below(source, prefix)), default=-1)
        reserved = [
            (len(prefix), owner) for owner, prefix in of_tenants if _below(_spelling(source), _spelling(prefix))
        ]
        longest = max((length for length, _ in reserved), default=-1)
        is_below = open_to_all >= 0 or any(owner == tenant and _below(source, prefix) for owner, prefix in of_tenants)
        if not is_below or (longest >= open_to_all and (longest, tenant) not in reserved):
            known = self.prefixes or self.of_tenants
            detail = "This repository is not allowed" if known else "This gateway allows no repositories"
            remedy = "Name one below a prefix in the setting WORKSPACES, or have the operator add it."
            raise RepositoryRefused("git", "repository_not_allowed", detail, remedy)
        prefix = max((prefix for prefix in self.headers_files if _below(source, prefix)), key=len, default="")
        return Location(source, prefix, self.headers_files.get(prefix, ""))


@dataclass(frozen=True, slots=True)
class CommitLookup:
    """Asks allowed repositories for the commits of refs."""

    allowed: AllowedRepositories
    slots: TenantSlots = field(
        default_factory=lambda: TenantSlots(RESOLVED_AT_ONCE, RESOLVED_AT_ONCE // 2), compare=False
    )

    async def commit_of(self, repository: str, ref: str, tenant: str) -> str:
        """Returns the commit of a branch, a tag, HEAD, or itself; raises RepositoryRefused.

        A commit's full id is not looked up: servers list only the ends of branches and tags.
        """
        location = await asyncio.to_thread(self.allowed.location, repository, tenant)
        unreachable = "Check that it is a repository that the gateway's host reaches, with the operator's credentials."
        try:
            asked = ("ls-remote", "--quiet", "--", location.source, *_names_of(ref))
            async with asyncio.timeout(RESOLVED_WITHIN_S), self.slots.slot(tenant):
                output = await location.git(*asked, within_s=RESOLVED_WITHIN_S)
        except (GitFailed, TimeoutError) as failure:
            detail = str(failure) or f"The repository did not answer within {RESOLVED_WITHIN_S:.0f} s"
            raise RepositoryRefused("git", "repository_unreachable", detail, unreachable) from failure
        if output.status != 0 and not output.cut:
            detail = "The repository cannot be read"
            raise RepositoryRefused("git", "repository_unreachable", detail, unreachable)
        if re.fullmatch(COMMIT_PATTERN, ref):
            return ref
        commits = {name: commit for commit, name in _listed(output.data)}
        for name in _names_of(ref):
            # A tag's own object comes first, and after it the commit that it names.
            if commit := commits.get(f"{name}^{{}}") or commits.get(name):
                return commit
        if output.cut:
            detail = "The repository lists more refs of this name than are read"
            raise RepositoryRefused("git", "repository_unreachable", detail, "Name the ref by its full id.")
        remedy = "Name a branch, a tag, HEAD, or a commit by its full id."
        raise RepositoryRefused("ref", "unknown_ref", f"The repository has no {ref!r}", remedy)


NO_REPOSITORIES = AllowedRepositories()


def _names_of(ref: str) -> tuple[str, ...]:
    """The names that a ref may stand for, in git's order."""
    return ref, f"refs/tags/{ref}", f"refs/tags/{ref}^{{}}", f"refs/heads/{ref}"


def _listed(data: bytes) -> list[tuple[str, str]]:
    lines = [line.split("\t") for line in data.decode("utf-8", "replace").splitlines()]
    if any(len(parts) == 2 and re.fullmatch(r"[0-9a-f]{64}", parts[0]) for parts in lines):
        detail = "The repository's ids are SHA-256, and repositories are read by SHA-1 ids alone"
        raise RepositoryRefused("git", "unsupported_repository", detail, "Name one in the format sha1.")
    return [(parts[0], parts[1]) for parts in lines if len(parts) == 2 and re.fullmatch(COMMIT_PATTERN, parts[0])]
