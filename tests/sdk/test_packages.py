"""The packages that `sdk/build.py` installs are pinned by hash, from any registry."""

import json
import re

import pytest

from sdk import build

pytestmark = pytest.mark.sdk


def test_npm_packages_are_pinned_by_hash_without_a_registry() -> None:
    packages = json.loads((build.HERE / "package-lock.json").read_text())["packages"]
    pinned = {name: package for name, package in packages.items() if name}
    assert len(pinned) > 100
    assert [name for name, package in pinned.items() if not package["integrity"].startswith("sha512-")] == []
    assert [name for name, package in packages.items() if {"resolved", "funding"} & package.keys()] == []


def test_the_lock_matches_the_requirements() -> None:
    required = json.loads((build.HERE / "package.json").read_text())["devDependencies"]
    locked = json.loads((build.HERE / "package-lock.json").read_text())["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in required} == required


def test_python_packages_are_pinned_by_hash() -> None:
    lines = (build.HERE / "requirements.lock").read_text().splitlines()
    packages = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert len(packages) > 10
    assert [line for line in packages if not re.fullmatch(r"[\w.-]+==[\w.]+ (; .+ )?\\", line)] == []
    assert sum("--hash=sha256:" in line for line in lines) >= len(packages)
