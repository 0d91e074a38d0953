"""The warden: a process per program, which runs every test in a child and reports the outcomes.

It runs in a fresh interpreter without environment and packages, and never executes the program itself. An order is a
line of JSON on standard input, the reply is one on standard output; when standard input closes, it ends with its child.
"""

import json
import os
import shutil
import sys
import time
from typing import Any, NamedTuple

from serve_deployments.sandbox import trial
from serve_deployments.sandbox.child import Abandoned, SandboxChild, TrialOutcome
from serve_deployments.sandbox.confinement import CannotIsolate, Isolation, ResourceLimits


class Order(NamedTuple):
    """A program, its tests as pairs of name and source, and the limits of one test; `deadline_s` bounds all together.

    `probe` asks for a first look at the program, which an earlier turn has not had.
    """

    directory: str
    program: str
    tests: list[tuple[str, str]]
    timeout_s: float
    memory_mb: int
    deadline_s: float
    probe: bool = True


class Warden:
    """Runs the trials of one program one by one, in a directory that it empties after each."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._until = time.monotonic() + order.deadline_s
        self._limits = ResourceLimits(cpu_s=int(order.timeout_s) + 1, memory_mb=order.memory_mb)
        self.isolation = Isolation(order.directory)

    def report(self) -> dict[str, Any]:
        """The outcomes of the first tests, as many as one turn has time for. Raises CannotIsolate when none may run.

        A turn ends with a test that runs out of time, and when it has taken as long as one test may. A test that the
        deadline cut off is left out: its outcome is unknown.
        """
        outcomes: list[dict[str, Any]] = []
        begun = time.monotonic()
        fault, known = self._fault() if self._order.probe else ("", True)
        tests = self._order.tests if known and not fault else []
        for _, test in tests:
            started = time.monotonic()
            verdict = self._trial(test)
            if verdict is None:
                break
            now = time.monotonic()
            duration_ms = round((now - started) * 1_000)
            outcome = {"passed": verdict.passed, "reason": verdict.reason, "duration_ms": duration_ms}
            outcomes.append(outcome | {"void": verdict.void, "timed_out": verdict.timed_out})
            if verdict.timed_out or now - begun >= self._order.timeout_s:
                break
        return {"fault": fault, "outcomes": outcomes}

    def _fault(self) -> tuple[str, bool]:
        """(fault, known): why no test is run, because the program does not load or pretends; empty without a fault.

        `known` is False when the deadline came first.
        """
        probe = self._trial(trial.IMPOSSIBLE)
        if probe is None:
            return "", False
        if probe.passed:
            return "the program makes a test pass that cannot", True
        return "" if probe.loaded else f"the program does not load: {probe.reason}", True

    def _trial(self, test: str) -> TrialOutcome | None:
        """Run one test; None when the deadline came before the test's own time-out."""
        timeout_s = min(self._order.timeout_s, self._until - time.monotonic())
        if timeout_s <= 0:
            return None
        try:
            verdict = SandboxChild(self.isolation, self._limits, self._order.program, test).verdict(timeout_s)
        finally:
            _empty(self._order.directory)
        return None if verdict.timed_out and timeout_s < self._order.timeout_s else verdict


def _empty(directory: str) -> None:
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def main() -> None:
    """Read one order, and write the reply."""
    order = Order(**json.loads(sys.stdin.buffer.readline()))
    try:
        warden = Warden(order)
        reply = {"report": warden.report(), "landlock_abi": warden.isolation.landlock_abi}
    except CannotIsolate as missing:
        reply = {"unavailable": str(missing)}
    except Abandoned:
        shutil.rmtree(order.directory)
        return
    sys.stdout.write(json.dumps(reply))
    sys.stdout.flush()
