"""Files and history of one revision of a bare repository, as the tools read them. Nothing is ever checked out.

Links, submodules, hooks, filters and LFS thus do nothing: a link is a text, a submodule an id, an LFS file its pointer.
"""

import asyncio
import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate, islice
from pathlib import Path

from app.bounded_child import ChildExceeded, ChildLimits, ChildOutput, module_command, run_child
from app.control_characters import is_control
from app.workspace.git import READING, GitFailed, environment, git
from serve_deployments.workspace.unpacking import REFUSED, UnpackingOrder

ENTRIES_MAX = 1_000
BLOB_BYTES_MAX = 8 << 20
TEXT_BYTES_MAX = 48 << 10
LINES_MAX = 1_000
MATCHES_MAX = 200
LINE_CHARS_MAX = 400
COPY_BYTES_MAX = 32 << 20
COPY_FILES_MAX = 5_000
COPY_DIRECTORIES_MAX = 5_000
COPY_DEPTH_MAX = 32
_COPY_BOUNDS = (
    f"{COPY_BYTES_MAX >> 20} MB, {COPY_FILES_MAX} files, {COPY_DIRECTORIES_MAX} directories, and {COPY_DEPTH_MAX} "
    "levels of directories"
)
_LISTING_BYTES_MAX = 4 << 20
_BINARY_AFTER = 8_000
_PATHS_AT_ONCE = 64
_MARKS_MAX = 30
_LINES_BYTES = 64 << 10
_BLANKS = "\n\t\r\f\v"
# Zeros end the name, which git would else quote, the line's number and the column.
_MATCH = re.compile(rb"([^\0]*)\0([0-9]+)\0([0-9]+)\0([^\n]*)\n?")
_REFERENCE_TO_MATCH = re.compile(r"(?<!\\)((?:\\\\)*)\\[<>]")
_LINK, _SUBMODULE = "120000", "160000"
_FILES = ("100644", "100755", "100664")
_LFS = b"version https://git-lfs.github.com/spec/"
_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_UNPACKING = module_command("serve_deployments.workspace.unpacking")
_UNPACKING_LIMITS = ChildLimits(memory_bytes=512 << 20, file_bytes=COPY_BYTES_MAX, processes=2, cpu_s=30)


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
    """UTF-8 without control characters but white space, cut at a bound."""
    text = data[:TEXT_BYTES_MAX].decode("utf-8", "replace")
    text = "".join("�" if is_control(char) and char not in _BLANKS else char for char in text.replace("\r\n", "\n"))
    return f"{text}\n[cut after {TEXT_BYTES_MAX} bytes]" if len(data) > TEXT_BYTES_MAX else text


@dataclass(frozen=True, slots=True)
class _Listing:
    """The entries of a tree, each with a zero at its end; not `whole` where git had more than are read."""

    data: bytes
    whole: bool

    @property
    def number(self) -> int:
        return self.data.count(b"\0")

    def entries(self, most: int) -> Iterator[TreeEntry]:
        """The first entries. Names that are no UTF-8 have surrogates in place of their bytes."""
        for line in self.data.split(b"\0", most)[: min(most, self.number)]:
            head, _, path = line.decode("utf-8", "surrogateescape").partition("\t")
            mode, _, id, size = head.split()
            yield TreeEntry(mode, id, int(size) if size.isdecimal() else 0, path)


@dataclass(frozen=True, slots=True)
class Repository:
    """One revision of a bare repository: a commit, or the branch with the files of a request.

    Every method raises RepositoryFault for faults that the agent can correct, and GitFailed past `until_s` of the loop.
    """

    directory: Path
    revision: str
    until_s: float

    @property
    def _left_s(self) -> float:
        return self.until_s - asyncio.get_running_loop().time()

    async def _git(self, *arguments: str, bytes_max: int = TEXT_BYTES_MAX + 1) -> ChildOutput:
        asked = ("--git-dir", str(self.directory), *arguments)
        return await git(*asked, within_s=self._left_s, limits=READING, bytes_max=bytes_max)

    async def _read(self, *arguments: str, bytes_max: int = TEXT_BYTES_MAX + 1) -> ChildOutput:
        output = await self._git(*arguments, bytes_max=bytes_max)
        if output.status != 0 and not output.cut:
            raise RepositoryFault(readable(output.error.encode()) or f"git ended with status {output.status}")
        return output

    async def _listing(self, path: str, *, below: bool) -> _Listing:
        where = ("--", path) if path else ()
        asked = ("ls-tree", "-l", "-z", "--full-tree", *(("-r",) if below else ()), self.revision, *where)
        output = await self._read(*asked, bytes_max=_LISTING_BYTES_MAX)
        # A cut listing ends within an entry.
        return _Listing(output.data[: output.data.rfind(b"\0") + 1], whole=not output.cut)

    async def list_files(self, path: str) -> str:
        path = await self._named(path)
        listing = await self._listing(path, below=True)
        if not listing.number:
            raise RepositoryFault(f"there is no {path!r} in the workspace" if path else "the workspace is empty")
        more = listing.number - ENTRIES_MAX
        lines = list(map(str, listing.entries(ENTRIES_MAX)))
        if more > 0:
            lines.append(f"[{'' if listing.whole else 'at least '}{more} more: name a directory]")
        return readable("\n".join(lines).encode("utf-8", "surrogateescape"))

    async def read_file(self, path: str, first_line: int, lines: int) -> str:
        path = await self._named(path)
        entry = await self._file(path)
        data = (await self._read("cat-file", "blob", entry.id, bytes_max=BLOB_BYTES_MAX)).data
        if b"\0" in data[:_BINARY_AFTER]:
            raise RepositoryFault(f"{path} is binary, of {entry.size} bytes")
        if data.startswith(_LFS):
            raise RepositoryFault(f"{path} is a pointer of Git LFS: the workspace has not its content")
        in_all = data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
        if first_line > max(1, in_all):
            raise RepositoryFault(f"{path} has {in_all} lines")
        shown = [line.rstrip(b"\n").removesuffix(b"\r") for line in islice(_after(data, first_line - 1), lines)]
        head = f"{path}, lines {first_line} to {first_line - 1 + len(shown)} of {in_all}:"
        return "\n".join((head, readable(b"\n".join(shown))))

    async def _named(self, path: str) -> str:
        """The path as the tree spells it: of names that are equal in Unicode's form NFC, the one that there is."""
        if path.isascii() or (await self._listing(path, below=False)).number:
            return path
        listing = await self._listing("", below=True)
        wanted, levels = unicodedata.normalize("NFC", path), path.count("/") + 1
        chars_max = len(unicodedata.normalize("NFD", path))
        seen, equal = set[str](), list[str]()
        for number, entry in enumerate(listing.entries(listing.number)):
            if number % _PATHS_AT_ONCE == 0:
                await asyncio.sleep(0)
            place = "/".join(entry.path.split("/", levels)[:levels])
            if not place.isascii() and len(place) <= chars_max and place not in seen:
                seen.add(place)
                if _is_stream_safe(place) and unicodedata.normalize("NFC", place) == wanted:
                    equal.append(place)
        return equal[0] if len(equal) == 1 else path

    async def _file(self, path: str) -> TreeEntry:
        listing = await self._listing(path, below=False)
        entry = next((entry for entry in listing.entries(ENTRIES_MAX) if entry.path == path), None)
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
        path = await self._named(path)
        options = ("-P" if regex else "-F", *(("-i",) if ignore_case else ()), "-e")
        # Perl's expressions have other marks for the ends of a word than POSIX's.
        written = _REFERENCE_TO_MATCH.sub(r"\1\\b", pattern) if regex else pattern
        where = ("--", path) if path else ()
        asked = ("grep", "-I", "-n", "-z", "--column", "--no-color", *options, written, self.revision, *where)
        output = await self._git(*asked, bytes_max=BLOB_BYTES_MAX)
        if output.status == 1 and not output.data:
            return _nothing_found(pattern, regex=regex)
        if output.status != 0 and not output.cut:
            fault = output.error.partition("\n")[0].removeprefix("fatal: ").removeprefix("command line, ")
            syntax = f"the pattern is read as a Perl-compatible regular expression: {fault}" if regex else fault
            raise RepositoryFault(syntax or "git could not search")
        matches = list(islice(_matches(output.data, self.revision), MATCHES_MAX + 1))
        text = readable("\n".join(matches[:MATCHES_MAX]).encode("utf-8", "surrogateescape"))
        return f"{text}\n[more lines match]" if output.cut or len(matches) > MATCHES_MAX else text

    async def diff(self, base: str, path: str) -> str:
        path = await self._named(path)
        where = ("--", path) if path else ()
        asked = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "-M", await self._base(base), self.revision)
        return readable((await self._read(*asked, *where)).data) or "no difference"

    async def _base(self, base: str) -> str:
        named = f"{base or self.revision + '^'}^{{commit}}"
        output = await self._git("rev-parse", "--quiet", "--verify", "--end-of-options", named)
        if output.status == 0:
            return output.data.decode().strip()
        if base:
            raise RepositoryFault(f"the workspace has no commit {base}: git_log lists those that it has")
        return _EMPTY_TREE

    async def git_log(self, path: str, count: int) -> str:
        path = await self._named(path)
        where = ("--", path) if path else ()
        form = "--format=%h %ad %an%n    %s"
        asked = ("log", f"-{count}", "--date=short", form, self.revision, *where)
        return readable((await self._read(*asked)).data) or "no commit"

    async def unpack(self, directory: Path) -> None:
        """Write the files of the revision into a directory: regular files alone, within bounds on size and number."""
        listing = await self._listing("", below=True)
        files = [entry for entry in listing.entries(COPY_FILES_MAX) if entry.mode in _FILES]
        if not listing.whole or listing.number > COPY_FILES_MAX or not _is_small(files):
            raise RepositoryFault(f"the workspace is too large to run programs in: at most {_COPY_BOUNDS}")
        blobs = [(file.path, file.id) for file in files]
        order = UnpackingOrder(str(self.directory), str(directory), environment(), blobs, COPY_BYTES_MAX)
        sent = json.dumps(order._asdict()).encode()
        try:
            output = await run_child(_UNPACKING, limits=_UNPACKING_LIMITS, within_s=self._left_s, sent=sent)
        except ChildExceeded as failure:
            raise GitFailed(f"unpacking {failure}") from failure
        if output.status == REFUSED:
            raise RepositoryFault(f"a file of the workspace cannot be unpacked: {readable(output.error.encode())}")
        if output.status != 0:
            raise GitFailed(f"unpacking ended with status {output.status}")


def _is_stream_safe(text: str) -> bool:
    """Whether it has no longer run of marks than Unicode's stream-safe text; marks are sorted in quadratic time.

    https://www.unicode.org/reports/tr15/#Stream_Safe_Text_Format.
    """
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.combining(character) else 0
        if marks > _MARKS_MAX:
            return False
    return True


def _after(data: bytes, lines: int) -> Iterator[bytes]:
    """The lines of a text after the first ones, of which there may be millions."""
    begin, end = 0, len(data)
    while lines and end - begin > _LINES_BYTES:
        middle = (begin + end) // 2
        before = data.count(b"\n", begin, middle)
        if before < lines:
            begin, lines = middle, lines - before
        else:
            end = middle
    return islice(BytesIO(data[begin:]), lines, None)


def _matches(data: bytes, revision: str) -> Iterator[str]:
    """The lines that git's search reports, one after the other; a line that is cut ends them."""
    at = 0
    while match := _MATCH.match(data, at):
        yield _shown(match, revision)
        at = match.end()


def _shown(match: re.Match[bytes], revision: str) -> str:
    """A line of git's search as `path:number:text`, of a long text the part around the match."""
    path, number, column, text = match.groups()
    path = path.removeprefix(f"{revision}:".encode())
    head = f"{path.decode('utf-8', 'surrogateescape')}:{number.decode()}:"
    width = max(LINE_CHARS_MAX // 2, LINE_CHARS_MAX - len(head) - 1)
    begin = len(text[: int(column) - 1].decode("utf-8", "surrogateescape"))
    whole = text.removesuffix(b"\r").decode("utf-8", "surrogateescape")
    first = max(0, min(begin - width // 2, len(whole) - width))
    return f"{head}{'…' if first else ''}{whole[first : first + width]}{'…' if first + width < len(whole) else ''}"


def _nothing_found(pattern: str, *, regex: bool) -> str:
    if regex and re.search(r"\\[|()]", pattern):
        return r"no line matches; `\|`, `\(` and `\)` are these signs themselves: alternatives are `(a|b)`"
    if not regex and re.search(r"\\[a-zA-Z]|[*+|]|\[.*\]|\(.*\)", pattern):
        return "no line contains this text; set `regex` to read it as a regular expression"
    return "no line matches"


def _is_small(files: Sequence[TreeEntry]) -> bool:
    """Whether files fit into a copy: by the sum of their sizes, by their depth, and by the number of directories."""
    size, depth = sum(file.size for file in files), max((file.path.count("/") for file in files), default=0)
    if size > COPY_BYTES_MAX or depth > COPY_DEPTH_MAX:
        # The directories of deep paths would have a length that grows with the square of the depth.
        return False
    directories = {above for file in files for above in accumulate(file.path.split("/")[:-1], "{}/{}".format)}
    return len(directories) <= COPY_DIRECTORIES_MAX
