"""The warden: a process of its own for each program, which runs every test in a child and tells what came of it.

It runs in a fresh interpreter without environment and packages, and never executes what it was given. An order is a
line of JSON on standard input, the reply one on standard output; when standard input closes, it ends with its child.
"""

import json
import os
import shutil
import sys
import time
from typing import Any, NamedTuple

from serve_deployments.sandbox import trial
from serve_deployments.sandbox.child import Abandoned, Child, Verdict
from serve_deployments.sandbox.confinement import CannotIsolate, Isolation, Limits

TIMEOUTS_MAX = 3


class Order(NamedTuple):
    """A program, its tests as pairs of name and source, and what one test may use; `deadline_s` bounds all together."""

    directory: str
    program: str
    tests: list[tuple[str, str]]
    timeout_s: float
    memory_mb: int
    deadline_s: float


class Warden:
    """Runs the trials of one program, one after the other, in a directory that is emptied after each."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._until = time.monotonic() + order.deadline_s
        self._limits = Limits(cpu_s=int(order.timeout_s) + 1, memory_mb=order.memory_mb)
        self.isolation = Isolation(order.directory)

    def report(self) -> dict[str, Any]:
        """Every test in the order given, with its outcome. CannotIsolate when none may be run here."""
        fault = self._fault()
        outcomes: list[dict[str, Any]] = []
        timeouts = 0
        for name, test in self._order.tests:
            begun = time.monotonic()
            if fault:
                verdict = Verdict(False, fault)
            elif begun >= self._until:
                verdict = Verdict(False, "not run: the time of the check was over")
            elif timeouts >= TIMEOUTS_MAX:
                verdict = Verdict(False, f"not run: {TIMEOUTS_MAX} tests of this program had run out of time")
            else:
                verdict = self._trial(test)
            timeouts += verdict.timed_out
            duration_ms = round((time.monotonic() - begun) * 1_000)
            outcome = {"name": name, "passed": verdict.passed, "reason": verdict.reason, "duration_ms": duration_ms}
            outcomes.append(outcome)
        return {"fault": fault, "outcomes": outcomes}

    def _fault(self) -> str:
        """Why no test need be run: the program does not load, or it pretends. Empty when there is no such reason."""
        probe = self._trial(trial.IMPOSSIBLE)
        if probe.passed:
            return "the program makes a test pass that cannot"
        return "" if probe.loaded else f"the program does not load: {probe.reason}"

    def _trial(self, test: str) -> Verdict:
        timeout_s = min(self._order.timeout_s, max(0.0, self._until - time.monotonic()))
        try:
            return Child(self.isolation, self._limits, self._order.program, test).verdict(timeout_s)
        finally:
            _empty(self._order.directory)


def _empty(directory: str) -> None:
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def main() -> None:
    """Take one order, and reply."""
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
