"""Resolve the packages that `build.py` installs, and write sdk/package-lock.json and the locks of its environments.

    python sdk/lock.py

package.json and the files `.in` choose the versions. The locks hold versions and hashes but no URLs: pip and npm use
their configured registries.
"""

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import build

_UV = Path(sys.executable).with_name("uv")


def lock_node(folder: Path) -> None:
    """Lock npm's packages; `folder` is a scratch directory."""
    for name in ("package.json", ".npmrc"):
        shutil.copy(build.HERE / name, folder / name)
    npm = [build.NODE, build.NPM, "install", "--package-lock-only", "--ignore-scripts", "--loglevel=error"]
    build.run(*npm, cwd=folder)
    lock = json.loads((folder / "package-lock.json").read_text())
    for package in lock["packages"].values():
        for name in ("funding", "resolved"):
            package.pop(name, None)
    (build.HERE / "package-lock.json").write_text(json.dumps(lock, indent=2, ensure_ascii=False) + "\n")


def lock_python() -> None:
    """Lock the packages of the Python environments."""
    options = ["--quiet", "--upgrade", "--universal", "--python-version", "3.11", "--generate-hashes"]
    # Without ruff the generated code is not formatted, and the download is much smaller.
    options += ["--no-annotate", "--no-header", "--no-emit-package", "ruff"]
    for lock in build.ENVIRONMENTS.values():
        # The leaderboard's data and checker need none of its forty dependencies.
        alone = ["--no-deps"] if lock == "bfcl.lock" else []
        build.run(_UV, "pip", "compile", *options, *alone, Path(lock).with_suffix(".in"), "-o", lock, cwd=build.HERE)


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        lock_node(Path(made))
    lock_python()
