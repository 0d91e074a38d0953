"""The warden: a process per program, which has a zygote run it for every test, and judges and reports the outcomes.

A fresh interpreter without environment and packages, which never executes the program itself. An order is a line of
JSON on standard input, the reply one on standard output. The warden and its zygote end when standard input closes.
"""

import json
import sys
import time
from typing import Any, NamedTuple

from serve_deployments.node_directory.removal import empty, remove
from serve_deployments.sandbox.child import Abandoned, Zygote
from serve_deployments.sandbox.confinement import CannotIsolate, Isolation, ResourceLimits
from serve_deployments.sandbox.verdict import ProgramRun, failure
from serve_deployments.sandbox.zygote import CALL, SCRIPT

PRINTED_BYTES_MAX = 64 << 10
# A test that no program passes: it loads a program that has no tests.
_IMPOSSIBLE: dict[str, Any] = {"call": "", "arguments": [], "expected": None}


class Order(NamedTuple):
    """A program, its tests, and the limits of one test; `deadline_s` bounds all together.

    With `probe`, no earlier turn has tested whether the program loads. A test whose `stdout` is None passes whatever is
    printed, and its outcome has that text.
    """

    directory: str
    program: str
    tests: list[dict[str, Any]]
    timeout_s: float
    memory_mb: int
    deadline_s: float = 0.0
    probe: bool = True


class Warden:
    """Runs one program against its tests one by one, in a directory that it empties before each further one."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._until = time.monotonic() + order.deadline_s
        # No process may raise a limit above that of the warden, which is its deadline and a grace.
        cpu_s = int(min(order.timeout_s, order.deadline_s)) + 1
        self._limits = ResourceLimits(cpu_s=cpu_s, memory_mb=order.memory_mb)
        self.isolation = Isolation(order.directory)

    def report(self) -> dict[str, Any]:
        """The outcomes of the first tests, as many as one turn has time for. Raises CannotIsolate when none may run.

        A turn ends with a test that runs out of time, and when it has taken as long as one test may. A test that the
        deadline cut off is left out: its outcome is unknown.
        """
        outcomes: list[dict[str, Any]] = []
        fault = ""
        begun = time.monotonic()
        tests = self._order.tests or [_IMPOSSIBLE]
        # A script may fail as a module, and the other way around.
        alike = len({"call" in test for test in tests}) == 1
        zygote = Zygote(self.isolation, self._limits, self._order.program)
        for place, test in enumerate(tests):
            if place:
                empty(self._order.directory)
            started = time.monotonic()
            run = self._run(zygote, test)
            if run is None:
                break
            reason = failure(test, run)
            if self._order.probe and place == 0 and alike and not run.loaded:
                fault = f"the program does not load: {reason}"
                break
            now = time.monotonic()
            timed_out = _timed_out(run)
            duration_ms = round((now - started) * 1_000)
            outcome = {"passed": not reason, "reason": reason, "duration_ms": duration_ms, "timed_out": timed_out}
            if test.get("stdout", "") is None:
                outcome["printed"] = run.printed[:PRINTED_BYTES_MAX].decode("utf-8", "replace")
            outcomes.append(outcome)
            if timed_out or now - begun >= self._order.timeout_s:
                break
        zygote.close()
        return {"fault": fault, "outcomes": outcomes[: len(self._order.tests)], "tried": zygote.tried}

    def _run(self, zygote: Zygote, test: dict[str, Any]) -> ProgramRun | None:
        timeout_s = min(self._order.timeout_s, self._until - time.monotonic())
        if timeout_s <= 0:
            return None
        command = CALL if "call" in test else SCRIPT
        stdin = json.dumps([test["call"], test["arguments"]]) if "call" in test else test["stdin"]
        run = zygote.run(command, stdin.encode("utf-8", "replace"), timeout_s)
        return None if _timed_out(run) and timeout_s < self._order.timeout_s else run


def _timed_out(run: ProgramRun) -> bool:
    return run.exceeded.startswith("ran longer")


def main() -> None:
    order = Order(**json.loads(sys.stdin.buffer.readline()))
    try:
        warden = Warden(order)
        reply = {"report": warden.report(), "landlock_abi": warden.isolation.landlock.abi}
    except CannotIsolate as missing:
        reply = {"unavailable": str(missing)}
    except Abandoned:
        remove(order.directory)
        return
    sys.stdout.write(json.dumps(reply))
    sys.stdout.flush()
