"""The warden: a process per program, which has a zygote run every test and reports the outcomes.

It runs in a fresh interpreter without environment and packages, and never executes the program itself. An order is a
line of JSON on standard input, the reply is one on standard output. The warden and its zygote end when standard input
closes.
"""

import json
import os
import sys
import time
from typing import Any, NamedTuple

from serve_deployments.sandbox.child import Abandoned, TrialOutcome, Zygote
from serve_deployments.sandbox.confinement import CannotIsolate, Isolation, ResourceLimits

# A test that no program passes.
_IMPOSSIBLE = "assert False"


class Order(NamedTuple):
    """A program, its tests as pairs of name and source, and the limits of one test; `deadline_s` bounds all together.

    With `probe`, no earlier turn has tested whether the program loads.
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
        fault = ""
        begun = time.monotonic()
        # A program without tests is loaded too.
        tests = [test for _, test in self._order.tests]
        zygote = Zygote(self.isolation, self._limits, self._order.program, tests or [_IMPOSSIBLE])
        for place in range(len(tests) or 1):
            started = time.monotonic()
            verdict = self._trial(zygote, place)
            if verdict is None:
                break
            if self._order.probe and place == 0 and not verdict.loaded:
                fault = f"the program does not load: {verdict.reason}"
                break
            now = time.monotonic()
            duration_ms = round((now - started) * 1_000)
            outcome = {"passed": verdict.passed, "reason": verdict.reason, "duration_ms": duration_ms}
            outcomes.append(outcome | {"void": verdict.void, "timed_out": verdict.timed_out})
            if verdict.timed_out or now - begun >= self._order.timeout_s:
                break
        zygote.close()
        return {"fault": fault, "outcomes": outcomes[: len(tests)], "tried": zygote.tried}

    def _trial(self, zygote: Zygote, place: int) -> TrialOutcome | None:
        """Run one test; None when the deadline came before the test's own time-out."""
        timeout_s = min(self._order.timeout_s, self._until - time.monotonic())
        if timeout_s <= 0:
            return None
        try:
            verdict = zygote.run(place, timeout_s)
        finally:
            _empty(self._order.directory)
        return None if verdict.timed_out and timeout_s < self._order.timeout_s else verdict


def _empty(directory: str) -> None:
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            _empty(entry.path)
            os.rmdir(entry.path)
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
        _empty(order.directory)
        os.rmdir(order.directory)
        return
    sys.stdout.write(json.dumps(reply))
    sys.stdout.flush()
