"""Resolve the packages of `build.py` again and write sdk/package-lock.json and sdk/requirements.lock.

    python sdk/lock.py

Versions are chosen in package.json and requirements.in. The locks name versions and hashes and no place: packages come
from where pip and npm are configured to look.
"""

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import build

_UV = Path(sys.executable).with_name("uv")


def lock_node(folder: Path) -> None:
    """Lock npm's packages in the working folder `folder`."""
    for name in ("package.json", ".npmrc"):
        shutil.copy(build.HERE / name, folder / name)
    npm = [build.NODE, build.NPM, "install", "--package-lock-only", "--ignore-scripts", "--loglevel=error"]
    build.run(*npm, cwd=folder)
    lock = json.loads((folder / "package-lock.json").read_text())
    for package in lock["packages"].values():
        for field in ("funding", "resolved"):
            package.pop(field, None)
    (build.HERE / "package-lock.json").write_text(json.dumps(lock, indent=2, ensure_ascii=False) + "\n")


def lock_python() -> None:
    """Lock the packages of the Python client's environment."""
    options = ["--quiet", "--upgrade", "--universal", "--python-version", "3.11", "--generate-hashes"]
    # Without ruff, which is most of the download and would only format the generated code.
    files = ["--no-annotate", "--no-header", "--no-emit-package", "ruff", "requirements.in", "-o", "requirements.lock"]
    build.run(_UV, "pip", "compile", *options, *files, cwd=build.HERE)


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        lock_node(Path(made))
    lock_python()
