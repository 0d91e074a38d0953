"""The product's wheel, built from a checkout and installed."""

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]

STEP_S = 120.0

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def built_wheel(place: Path, root: Path = ROOT, edited: Mapping[str, Mapping[str, str]] = {}) -> Path:
    """The wheel of a checkout; `edited` has the patterns to replace in some of its files."""
    source = place / "source"
    for name in ("app", "serve_deployments"):
        shutil.copytree(root / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("deliberation_gateway.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, source)
    for name, replacements in edited.items():
        text = (source / name).read_text()
        for pattern, replacement in replacements.items():
            text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
            assert count == 1, f"{name} has {count} times {pattern}"
        (source / name).write_text(text)
    built = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place), str(source)]
    subprocess.run(built, check=True, capture_output=True, timeout=STEP_S)
    shutil.rmtree(source)
    (wheel,) = place.glob("*.whl")
    return wheel


def installed(archive: Path, environment: Path, needed: str = sysconfig.get_path("purelib")) -> Path:
    """The programs of a new environment that holds an archive; its dependencies are those of another environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=STEP_S)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "needed.pth").write_text(f"{needed}\n")
    install = [*PIP, "--python", str(environment / "bin" / "python"), "install", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--no-index", str(archive)], check=True, capture_output=True, timeout=STEP_S)
    return environment / "bin"
