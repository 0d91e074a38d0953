"""Run the tests that a change can reach, nearest first, for four minutes; name those that are left out.

The change is everything since this branch left the base (`--base`, else main), with what is not committed.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.affected.reach import Repository
from tests.import_graph import ROOT

LIMIT_S = 240
# What begins in time may take this long: a stack that starts, tests, and stops.
ENDS_WITHIN_S = 45
# To collect all files takes a minute; a batch is collected within seconds.
BATCH = 48
# Tests that need more than `make install` have these markers.
TARGETS = {
    "vllm": "make test-vllm",
    "weights": "make test-weights",
    "engines": "make test-engines",
    "containers": "make test-containers",
    "browser": "make test-browser",
    "sdk": "make test-sdk",
    "walk": "make walk",
    "long": "make attack",
}


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.affected", description=__doc__)
    options.add_argument("--base", default="main")
    options.add_argument("--list", action="store_true", help="name the test files, and run none")
    asked = options.parse_args()
    until = time.time() + LIMIT_S - ENDS_WITHIN_S
    changed, gone = changed_since(asked.base)
    reached = Repository(ROOT, gone).reached(changed)
    folders = Counter("/".join(path.split("/")[:2]) for path in reached)
    print(f"{len(changed)} changed files reach {len(reached)} files of tests:")
    print(*(f"  {count} in {folder}" for folder, count in folders.items()), sep="\n", flush=True)
    if asked.list:
        print(*(f"{distance:4} {path}" for path, distance in reached.items()), sep="\n")
        return
    markers = {path: markers_in((ROOT / path).read_text()) for path in reached}
    left, failed = run([path for path, (of_file, _) in markers.items() if not of_file], until)
    if left:
        print(f"\nLeft out, in whole or in part, after {LIMIT_S} s:\n  .venv/bin/pytest -n 2 {' '.join(left)}")
    for marker, target in TARGETS.items():
        if files := [path for path, (of_file, of_tests) in markers.items() if marker in of_file | of_tests]:
            print(f"\nLeft out, run by `{target}`:", *files, sep="\n  ")
    print("\nNever run here: make mutants, make chaos, make fuzz, make bench.")
    sys.exit(failed)


def markers_in(text: str) -> tuple[set[str], set[str]]:
    """Those of TARGETS that mark all tests of a file, and those that mark single tests."""
    of_file = {
        word for line in re.findall(r"^pytestmark = .*", text, re.MULTILINE) for word in re.findall(r"\w+", line)
    }
    return TARGETS.keys() & of_file, {marker for marker in TARGETS if f"pytest.mark.{marker}" in text}


def changed_since(base: str) -> tuple[list[str], list[str]]:
    """The paths that differ from where this branch left the base, new files included; and those that are gone."""
    fork = _git("merge-base", base, "HEAD")[0]
    changed = sorted({*_git("diff", "--name-only", fork), *_git("ls-files", "--others", "--exclude-standard")})
    return changed, [path for path in changed if not (ROOT / path).exists()]


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def run(files: Sequence[str], until: float) -> tuple[list[str], bool]:
    """Run test files in batches; returns those that are left at a time of the epoch, and whether a test failed."""
    failed, left = False, list[str]()
    with tempfile.TemporaryDirectory() as folder:
        for place in range(0, len(files), BATCH):
            batch = files[place : place + BATCH]
            if time.time() > until:
                return [*left, *files[place:]], failed
            unfinished, order = Path(folder, "unfinished"), Path(folder, "order")
            unfinished.touch()
            order.write_text("\n".join(batch))
            command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder"]
            command += ["-p", "tests.affected.deadline", f"--until={until}", f"--left-to={unfinished}"]
            ready = " and ".join(f"not {marker}" for marker in TARGETS)
            code = subprocess.run([*command, f"--order={order}", "-m", ready, *batch], cwd=ROOT, check=False).returncode
            skipped = unfinished.read_text().splitlines()
            left += [path for path in batch if path in skipped]
            unfinished.unlink()
            # 5: no test was selected, as in files whose tests all have one of the markers.
            failed |= code not in (0, 5)
    return left, failed


if __name__ == "__main__":
    main()
