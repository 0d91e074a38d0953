"""What a hostile tenant asks of a stack: the ten attacks that once got through, and their nearest variants.

Each work is a list of bodies of `POST /deliberations`, whose tasks order uses of tools. An obedient model makes them.
"""

import hashlib
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.attack.evil_tool_server import LIES
from tests.attack.obedient_engine import Use, ordering
from tests.repositories import blob, committed, committed_tree, run_git

# Each role is a replica of its own, beside the others on one node.
ROLES = ("DEV", *(f"DEV{number}" for number in range(1, 8)))
PATTERN = "((((a{1,200}){1,200}){1,200}){1,200})"
LEVELS = 3_600
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HostileWork:
    """`write` makes what it needs in a folder, and returns the bodies. `number` is an attack's; variants have 0."""

    name: str
    number: int
    write: Callable[[Path], Sequence[Body]]


def _councils(uses: Sequence[Use], workspace: Body | None, count: int = 1, of_role: int = 1) -> list[Body]:
    """Councils with members of every replica, which all make the same uses."""
    body = {
        "task": ordering(uses),
        "strategy": "independent",
        "agents": [{"role": role, "count": of_role} for role in ROLES],
        "tools": sorted({name for name, _ in uses}),
        "constraints": {"timeout_seconds": 120},
    }
    return [body if workspace is None else {**body, "workspace": workspace}] * count


def _files(paths: Sequence[str], text: str = "x") -> Body:
    return {"files": [{"path": path, "text": text} for path in paths]}


def _run(code: str) -> Use:
    return "run", {"code": code}


# --- the ten


def _chains(_: Path) -> list[Body]:
    below = "d/" * 14
    chains = LEVELS // 15
    code = f"""
import os
for n in range(1, {chains}):
    os.rename(str(n - 1), f'{{n}}/{below}x')
print('chained')
"""
    return _councils([_run(code)] * 2, _files([f"{chain}/{below}file" for chain in range(chains)]), count=2)


def _substituted(width: int, lines: int) -> Callable[[Path], list[Body]]:
    def write(place: Path) -> list[Body]:
        folder = place / f"substituted-{width}"
        text = f"$Format:%<({width})%h$\n" * lines
        committed(folder, {".gitattributes": "* export-subst\n", **{f"f{number}": text for number in range(8)}})
        code = "import os\nprint(sum(os.stat(name).st_size for name in os.listdir()))"
        return _councils([_run(code), ("run_tests", {}), ("read_file", {"path": "f1"})], {"git": str(folder)})

    return write


def _listed(place: Path) -> list[Body]:
    names = (f"{number:05}{'n' * 240}" for number in range(20_000))
    files = "".join(f"M 644 :1 {name}\n" for name in names)
    stream = f"blob\nmark :1\ndata 1\nx\ncommit refs/heads/main\ncommitter A <a@b> 0 +0000\ndata 1\nx{files}\n"
    run_git(place, "init", "--quiet", "--initial-branch=main", "listed")
    run_git(place / "listed", "fast-import", "--quiet", given=stream.encode())
    uses: list[Use] = [("list_files", {}), _run("print(1)"), ("search", {"pattern": "x"}), ("git_log", {})]
    return _councils(uses, {"git": str(place / "listed")})


def _lies(*lies: str) -> Callable[[Path], list[Body]]:
    def write(_: Path) -> list[Body]:
        orders: list[list[Use]] = [[(name, {})] * 2 for name, lie in LIES.items() if lie in lies]
        return [body for uses in orders for body in _councils(uses, None)]

    return write


def _programs(code: str, count: int, paths: Sequence[str] = ("a",)) -> Callable[[Path], list[Body]]:
    """So many councils, of which each member runs the program twice."""

    def write(_: Path) -> list[Body]:
        return _councils([_run(code)] * 2, _files(paths), count)

    return write


def _searched(place: Path) -> list[Body]:
    committed(place / "searched", {"a": ("a" * 5_000 + "\n") * 20})
    uses: list[Use] = [("search", {"pattern": PATTERN, "regex": True})] * 2
    return _councils(uses, {"git": str(place / "searched")}, of_role=4)


def _unpacked(place: Path) -> list[Body]:
    committed(place / "unpacked", {f"{number % 50}/{number}": f"{number}" * 1_500 for number in range(4_500)})
    return _councils([_run("print(1)")] * 4, {"git": str(place / "unpacked")}, count=2)


_REWRITES = """
import os
for turn in range(20):
    for name in os.listdir():
        with open(name, 'r+b') as file:
            file.write(b'x' * (1 << 20))
"""


def _named(place: Path) -> list[Body]:
    bodies: list[Body] = []
    for number, name in enumerate(("n" * 300, "twice", "sub", '"caf\\351"', '"a\\012b"')):
        folder = place / f"named-{number}"
        committed(folder, {"a": "1"})
        content = blob(folder, b"1")
        inner = run_git(folder, "mktree", given=f"100644 blob {content}\t{'n' * 300}\n".encode())
        entry = f"100644 blob {content}\t{name}\n" if name != "sub" else ""
        if name in ("twice", "sub"):
            entry += f"040000 tree {inner}\t{name}\n"
        committed_tree(folder, entry)
        uses: list[Use] = [("list_files", {}), _run("import os\nprint(os.listdir(b'.'))"), ("search", {"pattern": "1"})]
        bodies += _councils(uses, {"git": str(folder)})
    return bodies


# --- the variants


def _attributed(place: Path) -> list[Body]:
    lines = ("ident", "text eol=crlf", "working-tree-encoding=UTF-16", "filter=evil", "diff=evil", "merge=evil")
    attributes = "".join(f"* {line}\n" for line in lines) + "[attr]x y\n" * 20_000
    folder = place / "attributed"
    committed(folder, {"a": "$Id$\n" * 1_000})
    contents = {".gitattributes": attributes.encode(), "a": b"$Id$ 2\n" * 1_000}
    committed_tree(folder, "".join(f"100644 blob {blob(folder, text)}\t{name}\n" for name, text in contents.items()))
    uses: list[Use] = [("diff", {}), _run("print(open('a').read()[:9])"), ("search", {"pattern": "Id"})]
    return _councils(uses, {"git": str(folder)})


def _number(length: int) -> bytes:
    """A size as deltas write it: seven bits at a time, the least first."""
    data = b""
    while length > 127:
        data, length = data + bytes([length & 127 | 128]), length >> 7
    return data + bytes([length])


def _packed(kind: int, size: int, data: bytes, base: bytes = b"") -> bytes:
    head, size = [kind << 4 | size & 15], size >> 4
    while size:
        head[-1] |= 128
        head.append(size & 127)
        size >>= 7
    return bytes(head) + base + zlib.compress(data)


def _bomb(place: Path, blobs: int = 6, copies: int = 16) -> list[Body]:
    """A pack of some 20 KB: deltas that copy a blob of 16 MB, so often that they have 256 MB each, 1.5 GB in all."""
    commit, tree, file, delta = 1, 2, 3, 7
    whole = bytes((1 << 24) - 1)
    objects = [_packed(file, len(whole), whole)]
    whole_id = hashlib.sha1(b"blob %d\0" % len(whole) + whole).digest()
    entries = b""
    copy = bytes([0x80 | 0x70, 255, 255, 255])
    for number in range(blobs):
        own = bytes([len(name := b"%d" % number)]) + name
        changes = _number(len(whole)) + _number(len(whole) * copies + len(name)) + copy * copies + own
        objects.append(_packed(delta, len(changes), changes, whole_id))
        unpacked = hashlib.sha1(b"blob %d\0" % (len(whole) * copies + len(name)))
        for _ in range(copies):
            unpacked.update(whole)
        unpacked.update(name)
        entries += b"100644 f%02d\0" % number + unpacked.digest()
    objects.append(_packed(tree, len(entries), entries))
    tree_id = hashlib.sha1(b"tree %d\0" % len(entries) + entries).hexdigest()
    text = f"tree {tree_id}\nauthor A <a@b> 0 +0000\ncommitter A <a@b> 0 +0000\n\nx\n".encode()
    objects.append(_packed(commit, len(text), text))
    commit_id = hashlib.sha1(b"commit %d\0" % len(text) + text).hexdigest()
    pack = b"PACK" + struct.pack(">II", 2, len(objects)) + b"".join(objects)
    run_git(place, "init", "--quiet", "--initial-branch=main", "bomb")
    run_git(place / "bomb", "index-pack", "--stdin", given=pack + hashlib.sha1(pack).digest())
    run_git(place / "bomb", "update-ref", "refs/heads/main", commit_id)
    reads: list[Use] = [("list_files", {}), ("read_file", {"path": "f01"}), ("search", {"pattern": "x"})]
    return _councils([*reads, _run("print(1)")], {"git": str(place / "bomb")})


def _doubled(place: Path) -> list[Body]:
    """Trees of ten names for one tree below, ten deep: ten thousand million files in a pack of 2 KB."""
    folder = place / "doubled"
    committed(folder, {"a": "1"})
    tree = run_git(folder, "mktree", given=f"100644 blob {blob(folder, b'1')}\ta\n".encode())
    entries = ""
    for _ in range(10):
        entries = "".join(f"040000 tree {tree}\t{name}\n" for name in range(10))
        tree = run_git(folder, "mktree", given=entries.encode())
    committed_tree(folder, entries)
    reads: list[Use] = [("list_files", {}), ("search", {"pattern": "2"}), ("diff", {}), ("git_log", {})]
    return _councils([*reads, _run("print(1)")], {"git": str(folder)})


def _referred(place: Path) -> list[Body]:
    commit = committed(place / "referred", {"a": "1"})
    lines = "".join(f"{commit} refs/heads/b{number:06}\n" for number in range(200_000))
    (place / "referred" / ".git" / "packed-refs").write_text(f"# pack-refs with: peeled fully-peeled sorted \n{lines}")
    workspace = {"git": str(place / "referred"), "ref": "b100000"}
    return _councils([("list_files", {}), _run("print(1)")], workspace, count=4)


def _deep_names(place: Path) -> list[Body]:
    folder = place / "deep"
    committed(folder, {"a": "1"})
    entry = f"100644 blob {blob(folder, b'1')}\ta\n"
    for _ in range(1_000):
        tree = run_git(folder, "mktree", given=entry.encode())
        entry = f"040000 tree {tree}\t{'n' * 250}\n"
    committed_tree(folder, entry)
    return _councils([("list_files", {}), _run("print(1)"), ("search", {"pattern": "1"})], {"git": str(folder)})


_FORKS = """
import os
for _ in range(10_000):
    try:
        os.fork() or os._exit(0)
    except OSError:
        pass
"""
_SPARSE = """
import os
for number in range(250):
    with open(f's{number}', 'wb') as file:
        try:
            file.truncate(1 << 40)
        except OSError:
            file.seek((1 << 20) - 1)
            file.write(b'x')
"""
_LINKS = """
import os
for number in range(100_000):
    try:
        os.link('a', f'l{number}')
    except OSError:
        pass
for number in range(100_000):
    try:
        os.symlink('a', f's{number}')
        os.mkdir(f'd{number}')
    except OSError:
        pass
"""

TEN = (
    HostileWork("chains of 3,600 directories", 1, _chains),
    HostileWork("an archive of 4 GB by export-subst", 2, _substituted(16_000, 4_000)),
    HostileWork("an archive of 30 MB a file by export-subst", 3, _substituted(7_000, 4_000)),
    HostileWork("a listing that is cut", 3, _listed),
    HostileWork("schemas that take for ever", 4, _lies("pattern", "nested", "itself")),
    HostileWork("programs that sleep", 5, _programs("import time\ntime.sleep(60)", count=8)),
    HostileWork("a pattern that takes memory", 6, _searched),
    HostileWork("a large repository", 7, _unpacked),
    HostileWork("messages and parts without number", 8, _lies("asks", "tells", "parts", "structure")),
    HostileWork("files that are written again and again", 9, _programs(_REWRITES, 2, [f"f{n}" for n in range(256)])),
    HostileWork("names that no file system takes", 10, _named),
)
VARIANTS = (
    HostileWork("attributes of every kind", 0, _attributed),
    HostileWork("a pack of deltas that are a bomb", 0, _bomb),
    HostileWork("trees that repeat one tree", 0, _doubled),
    HostileWork("200,000 refs", 0, _referred),
    HostileWork("1,000 levels of long names", 0, _deep_names),
    HostileWork("10,000 processes", 0, _programs(_FORKS, 2)),
    HostileWork("sparse files", 0, _programs(_SPARSE, 2)),
    HostileWork("links without number", 0, _programs(_LINKS, 2)),
    HostileWork("programs that take memory", 0, _programs("x = [bytes(1 << 20) for _ in range(4_000)]", 8)),
    HostileWork("programs that compute", 0, _programs("while True: pass", 8)),
    HostileWork("a program that prints without end", 0, _programs("while True: print('x' * 1_000)", 2)),
    HostileWork("a lie in each field of a tool server", 0, _lies(*LIES.values())),
)
