"""Environments of their own, beside the product's, for servers that pin other versions of the same packages."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment at `path`, and what stands in it."""

    path: Path

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    def create(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", self.path], check=True)

    def pip(self, *arguments: str | Path) -> None:
        subprocess.run([self.python, "-m", "pip", "--disable-pip-version-check", "-qq", *arguments], check=True)

    def write(self, module: str, target: Path, *packages: str) -> None:
        """Run a module of the checkout that writes `target`, with the folders `packages` on its path as well."""
        environment = {
            "PYTHONPATH": os.pathsep.join((str(ROOT), *packages)),
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        command = [self.python, "-W", "ignore", "-m", module, target]
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **environment})

    def once(self, name: str, made_of: bytes, make: Callable[[], None]) -> None:
        """Run `make` unless the stamp `name` says that it has run to its end with the same `made_of`."""
        stamp = self.stamp(name)
        digest = hashlib.sha256(made_of).hexdigest()
        if stamp.is_file() and stamp.read_text() == digest:
            return
        print(f"making the {name} in {self.path}", flush=True)
        stamp.unlink(missing_ok=True)
        make()
        stamp.write_text(digest)

    def stamp(self, name: str) -> Path:
        return self.path / f".{name}.stamp"
