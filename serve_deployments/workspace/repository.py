"""Files and history of one revision of a bare repository, as the tools read them. Nothing is ever checked out.

Links, submodules, hooks, filters and LFS thus do nothing: a link is a text, a submodule an id, an LFS file its pointer.
"""

import asyncio
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.workspace.git import GitOutput, git

ENTRIES_MAX = 1_000
BLOB_BYTES_MAX = 8 << 20
TEXT_BYTES_MAX = 48 << 10
LINES_MAX = 1_000
MATCHES_MAX = 200
LINE_CHARS_MAX = 400
COPY_BYTES_MAX = 32 << 20
COPY_FILES_MAX = 5_000
COPY_DEPTH_MAX = 32
_LISTING_BYTES_MAX = 4 << 20
_BINARY_AFTER = 8_000
_LINK, _SUBMODULE = "120000", "160000"
_FILES = ("100644", "100755", "100664")
_LFS = b"version https://git-lfs.github.com/spec/"
_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


class RepositoryFault(Exception):
    """A tool has no result, for a reason that the agent can read: a path that is missing, a file that is too large."""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """An entry of the tree. A directory and a submodule have no size."""

    mode: str
    id: str
    size: int
    path: str

    def __str__(self) -> str:
        match self.mode:
            case "120000":
                return f"{self.path} (a link, not followed)"
            case "160000":
                return f"{self.path} (a submodule, not fetched)"
            case _:
                return f"{self.path} ({self.size} bytes)"


def readable(data: bytes) -> str:
    """UTF-8 without control characters but tabs and ends of lines, cut at a bound."""
    text = data[:TEXT_BYTES_MAX].decode("utf-8", "replace")
    text = "".join(each if each.isprintable() or each in "\n\t" else "�" for each in text.replace("\r\n", "\n"))
    return f"{text}\n[cut after {TEXT_BYTES_MAX} bytes]" if len(data) > TEXT_BYTES_MAX else text


@dataclass(frozen=True, slots=True)
class Repository:
    """One revision of a bare repository: a commit, or the branch with the files of a request.

    Every method raises RepositoryFault for faults that the agent can correct, and GitFailed past `until_s` of the loop.
    """

    directory: Path
    revision: str
    until_s: float

    async def _git(self, *arguments: str, bytes_max: int = TEXT_BYTES_MAX + 1) -> GitOutput:
        left_s = self.until_s - asyncio.get_running_loop().time()
        return await git("--git-dir", str(self.directory), *arguments, within_s=left_s, bytes_max=bytes_max)

    async def _read(self, *arguments: str, bytes_max: int = TEXT_BYTES_MAX + 1) -> bytes:
        found = await self._git(*arguments, bytes_max=bytes_max)
        if found.status != 0 and not found.cut:
            raise RepositoryFault(readable(found.error.encode()) or f"git ended with status {found.status}")
        return found.data

    async def _entries(self, path: str, *, below: bool) -> list[TreeEntry]:
        where = ("--", path) if path else ()
        asked = ("ls-tree", "-l", "-z", "--full-tree", *(("-r",) if below else ()), self.revision, *where)
        data = await self._read(*asked, bytes_max=_LISTING_BYTES_MAX)
        # A cut listing ends within an entry.
        return list(_entries_in(data[: data.rfind(b"\0") + 1]))

    async def list_files(self, path: str) -> str:
        entries = await self._entries(path, below=True)
        if not entries:
            raise RepositoryFault(f"there is no {path!r} in the workspace" if path else "the workspace is empty")
        more = len(entries) - ENTRIES_MAX
        lines = list(map(str, entries[:ENTRIES_MAX]))
        return readable("\n".join([*lines, f"[{more} more: name a directory]"] if more > 0 else lines).encode())

    async def read_file(self, path: str, first_line: int, lines: int) -> str:
        entry = await self._file(path)
        data = await self._read("cat-file", "blob", entry.id, bytes_max=BLOB_BYTES_MAX)
        if b"\0" in data[:_BINARY_AFTER]:
            raise RepositoryFault(f"{path} is binary, of {entry.size} bytes")
        if data.startswith(_LFS):
            raise RepositoryFault(f"{path} is a pointer of Git LFS: the workspace has not its content")
        all_lines = data.split(b"\n")
        if all_lines[-1] == b"":
            all_lines.pop()
        if first_line > max(1, len(all_lines)):
            raise RepositoryFault(f"{path} has {len(all_lines)} lines")
        shown = all_lines[first_line - 1 : first_line - 1 + lines]
        head = f"{path}, lines {first_line} to {first_line - 1 + len(shown)} of {len(all_lines)}:"
        return "\n".join((head, readable(b"\n".join(shown))))

    async def _file(self, path: str) -> TreeEntry:
        found = await self._entries(path, below=False)
        entry = next((each for each in found if each.path == path), None)
        if entry is None:
            raise RepositoryFault(f"there is no {path!r} in the workspace")
        if entry.mode == _LINK:
            raise RepositoryFault(f"{path} is a link, and links are not followed")
        if entry.mode == _SUBMODULE:
            raise RepositoryFault(f"{path} is a submodule, which is not fetched")
        if entry.mode not in _FILES:
            raise RepositoryFault(f"{path} is a directory: list its files")
        if entry.size > BLOB_BYTES_MAX:
            raise RepositoryFault(f"{path} has {entry.size} bytes, and at most {BLOB_BYTES_MAX} are read")
        return entry

    async def search(self, pattern: str, path: str, *, regex: bool, ignore_case: bool) -> str:
        options = ("-E" if regex else "-F", *(("-i",) if ignore_case else ()))
        where = ("--", path) if path else ()
        found = await self._git("grep", "-I", "-n", "-z", "--no-color", *options, "-e", pattern, self.revision, *where)
        if found.status == 1 and not found.data:
            return "no line matches"
        if found.status != 0 and not found.cut:
            raise RepositoryFault(found.error.partition("\n")[0].removeprefix("fatal: ") or "git could not search")
        # A zero ends a name, which git would else quote.
        text = readable(found.data.replace(b"\0", b":"))
        lines = [line.removeprefix(f"{self.revision}:") for line in text.split("\n") if line]
        shown = [line if len(line) <= LINE_CHARS_MAX else f"{line[:LINE_CHARS_MAX]}…" for line in lines[:MATCHES_MAX]]
        return "\n".join([*shown, "[more lines match]"] if len(lines) > MATCHES_MAX else shown)

    async def diff(self, base: str, path: str) -> str:
        where = ("--", path) if path else ()
        asked = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "-M", await self._base(base), self.revision)
        return readable(await self._read(*asked, *where)) or "no difference"

    async def _base(self, base: str) -> str:
        named = f"{base or self.revision + '^'}^{{commit}}"
        found = await self._git("rev-parse", "--quiet", "--verify", "--end-of-options", named)
        if found.status == 0:
            return found.data.decode().strip()
        if base:
            raise RepositoryFault(f"the workspace has no commit {base}: git_log lists those that it has")
        return _EMPTY_TREE

    async def git_log(self, path: str, count: int) -> str:
        where = ("--", path) if path else ()
        form = "--format=%h %ad %an%n    %s"
        asked = ("log", f"-{count}", "--date=short", form, self.revision, *where)
        return readable(await self._read(*asked)) or "no commit"

    async def unpack(self, directory: Path) -> None:
        """Write the files of the revision into a directory: regular files alone, within bounds on size and number."""
        entries = await self._entries("", below=True)
        size = sum(entry.size for entry in entries)
        depth = max((entry.path.count("/") for entry in entries), default=0)
        if size > COPY_BYTES_MAX or len(entries) > COPY_FILES_MAX or depth > COPY_DEPTH_MAX:
            bounds = f"{COPY_BYTES_MAX >> 20} MB, {COPY_FILES_MAX} files and {COPY_DEPTH_MAX} levels of directories"
            raise RepositoryFault(f"the workspace is too large to run programs in: at most {bounds}")
        archive = directory.with_suffix(".tar")
        asked = ("archive", "--format=tar", f"--output={archive}", self.revision)
        await self._read(*asked)
        try:
            await asyncio.to_thread(_extract, archive, directory)
        except tarfile.TarError as error:
            raise RepositoryFault(f"a file of the workspace cannot be unpacked: {error}") from error
        finally:
            archive.unlink(missing_ok=True)


def _entries_in(listing: bytes) -> Iterator[TreeEntry]:
    for line in listing.decode("utf-8", "replace").split("\0")[:-1]:
        head, _, path = line.partition("\t")
        mode, _, id, size = head.split()
        yield TreeEntry(mode, id, int(size) if size.isdecimal() else 0, path)


def _extract(archive: Path, directory: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter=_regular)


def _regular(member: tarfile.TarInfo, directory: str) -> tarfile.TarInfo | None:
    """Leaves out all but files and directories; raises a TarError for a path that leads out."""
    return tarfile.data_filter(member, directory) if member.isfile() or member.isdir() else None
