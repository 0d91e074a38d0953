"""Take each guard away on a copy of the tree, run the test that must notice, and show what did not.

Exits with 1 when a test passes without its guard, when a test fails with all guards, and when the source lacks a
guard's text. The checkout is never touched. Words choose the guards whose name or file has one of them.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.table import Table

from tests.mutants.guard import Guard
from tests.mutants.guards import GUARDS

ROOT = Path(__file__).parents[2]
PARALLEL = 2
TIMEOUT_S = 120
PASSED, FAILED, BROKEN = 0, 1, 3


def copied(to: Path) -> None:
    """The tree as it stands, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, to / name)


@contextmanager
def without(guard: Guard, tree: Path) -> Generator[None]:
    """The tree without a guard, for a while. Raises LookupError when the guard is not where it should be, once."""
    file = tree / guard.file
    text = file.read_text()
    if text.count(guard.guarded) != 1:
        raise LookupError(f"it stands {text.count(guard.guarded)} times in {guard.file}")
    file.write_text(text.replace(guard.guarded, guard.without))
    try:
        yield
    finally:
        file.write_text(text)


def tested(tree: Path, test: str) -> int | None:
    """The exit status of a test in a tree, BROKEN when it was not the test that failed; None when it does not end."""
    options = ("-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:schemathesis")
    command = [sys.executable, "-m", "pytest", *options, test]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    if ran.returncode == FAILED and b" failed" not in ran.stdout.rstrip().rpartition(b"\n")[2]:
        return BROKEN
    return ran.returncode


def judged(guard: Guard, tree: Path) -> str:
    """What became of the test: `killed` is what should be."""
    try:
        with without(guard, tree):
            status = tested(tree, guard.test)
    except LookupError as error:
        return f"NOT APPLIED: {error}"
    if status == PASSED:
        return "SURVIVED"
    return "killed" if status in (FAILED, None) else f"NOT RUN: pytest exits with {status}"


def on_copies(trees: Sequence[Path], work: "Sequence[Guard | str]") -> list[str]:
    """The findings for guards (taken away) and tests (with all guards), in order, each on a copy of its own."""
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def finding(item: Guard | str) -> str:
        tree = free.get()
        try:
            if isinstance(item, Guard):
                return judged(item, tree)
            return "passed" if tested(tree, item) == PASSED else "FAILS WITH ALL GUARDS"
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        return list(pool.map(finding, work))


def chosen(words: Sequence[str]) -> Sequence[Guard]:
    """The guards whose name or file has one of the words; all of them without words."""
    return [guard for guard in GUARDS if not words or any(word in f"{guard.name} {guard.file}" for word in words)]


def main() -> int:
    """Try those that are asked for; returns the exit status."""
    options = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    options.add_argument("words", nargs="*", metavar="WORD", help="a part of names or files; default: all guards")
    options.add_argument("--list", action="store_true", help="print the guards, and try none")
    asked = options.parse_args()
    guards = chosen(asked.words)
    if not guards:
        options.error(f"no guard's name or file has any of: {' '.join(asked.words)}")
    if asked.list:
        print(*(f"{guard.file}: {guard.name}" for guard in guards), sep="\n")
        return 0
    return try_all(guards)


def try_all(guards: Sequence[Guard]) -> int:
    tests = sorted({guard.test for guard in guards})
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [Path(folder) / str(number) for number in range(PARALLEL)]
        for tree in trees:
            copied(tree)
        findings = on_copies(trees, [*tests, *guards])
    whole, taken = dict(zip(tests, findings, strict=False)), findings[len(tests) :]
    table = Table("guard", "test", "without it")
    for guard, finding in zip(guards, taken, strict=True):
        table.add_row(guard.name, guard.test.rpartition("::")[2], finding)
    console = Console(width=200)
    console.print(table)
    failing = [test for test, finding in whole.items() if finding != "passed"]
    for test in failing:
        console.print(f"{test}: {whole[test]}")
    return int(bool(failing) or any(finding != "killed" for finding in taken))


if __name__ == "__main__":
    sys.exit(main())
