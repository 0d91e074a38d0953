"""The replica's side of the sandbox: it starts a warden for each program, and reads its reply.

Programs take turns: one that ran out of time goes behind all that wait.
"""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from app.deliberation.calls import Check
from app.deliberation.errors import SandboxUnavailable
from app.deliberation.outputs import TRIED_MAX, CheckOutcome, SandboxReport
from serve_deployments.sandbox.warden import Order

CHECKS_AT_ONCE = 4
# A check ends this long before its deadline, so that its report is in time; a warden may take GRACE_S longer than
# ordered.
MARGIN_S = 1.0
GRACE_S = 5.0
# After this many tests of one writer ran out of time with a program, the writer's other tests are not run.
TIMEOUTS_MAX = 3
RUN_MEMORY_MB = 512

_REPLY_BYTES_MAX = 4 << 20
_PACKAGES = str(Path(__file__).parents[2])
_BOOT = (
    f"import sys; sys.path.insert(0, {_PACKAGES!r}); from serve_deployments.sandbox.warden import main; "
    "sys.path.pop(0); main()"
)
# Isolated, without packages, in UTF-8; nothing of the replica's environment.
_COMMAND = (sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT)

log = structlog.get_logger(__name__)


class _TestResult(BaseModel):
    model_config = ConfigDict(frozen=True)

    passed: bool
    reason: str
    duration_ms: int
    timed_out: bool
    printed: str = ""


class _Turn(BaseModel):
    model_config = ConfigDict(frozen=True)

    fault: str = ""
    outcomes: tuple[_TestResult, ...] = ()
    tried: tuple[str, ...] = ()


class _Reply(BaseModel):
    model_config = ConfigDict(frozen=True)

    report: _Turn | None = None
    unavailable: str | None = None
    landlock_abi: int | None = None


class ProgramOutput(NamedTuple):
    """The output of a program, and the reason for an early end; the reason is empty after a regular end."""

    text: str
    reason: str


class Sandbox:
    """Runs checks, a few at once. The first reply is logged: it says whether this machine can isolate."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._logged = False

    async def report(self, check: Check, within_s: float) -> SandboxReport:
        """Run a program against its tests; returns the outcome of each within `within_s` seconds, some as not run.

        Raises SandboxUnavailable when nothing was run.
        """
        until_s = asyncio.get_running_loop().time() + within_s - MARGIN_S
        writers = check.writers if len(check.writers) == len(check.tests) else (0,) * len(check.tests)
        timeouts: Counter[int] = Counter()
        brought: dict[int, _TestResult] = {}
        tried: list[str] = []
        pending = list(range(len(check.tests)))
        while True:
            turn = await self._turn(check, pending, until_s, first=not brought)
            tried += [each for each in turn.tried if each not in tried]
            brought |= dict(zip(pending, turn.outcomes, strict=False))
            timeouts.update(writers[place] for place in pending[: len(turn.outcomes)] if brought[place].timed_out)
            left = [place for place in pending if place not in brought]
            pending = [place for place in left if timeouts[writers[place]] < TIMEOUTS_MAX]
            if turn.fault or not turn.outcomes or not pending:
                break
        return _reported(check, turn.fault, brought, frozenset(pending), tried)

    async def _turn(self, check: Check, places: Sequence[int], until_s: float, first: bool) -> _Turn:
        with TemporaryDirectory(prefix="check-") as directory:
            order = Order(
                directory=directory,
                program=check.code,
                tests=[check.tests[place].data for place in places],
                timeout_s=check.timeout_s,
                memory_mb=check.memory_mb,
                probe=first,
            )
            return await self._ordered(order, until_s)

    async def run(self, program: str, directory: str, within_s: float) -> ProgramOutput:
        """Run a program once as a script, in a directory that it may read and write; the directory is empty then.

        Raises SandboxUnavailable when nothing was run.
        """
        until_s = asyncio.get_running_loop().time() + within_s - MARGIN_S
        timeout_s = max(0.1, within_s - 2 * MARGIN_S)
        order = Order(directory, program, [{"stdin": "", "stdout": None}], timeout_s, RUN_MEMORY_MB, probe=False)
        turn = await self._ordered(order, until_s)
        if not turn.outcomes:
            return ProgramOutput("", "not run: its time was over before its turn")
        return ProgramOutput(turn.outcomes[0].printed, turn.outcomes[0].reason)

    async def _ordered(self, order: Order, until_s: float) -> _Turn:
        """One turn, which has no outcome when none of the slots was free in time."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(until_s):
                await self._slots.acquire()
        except TimeoutError:
            return _Turn()
        try:
            reply = await _replied(order._replace(deadline_s=max(0.0, until_s - loop.time())))
        finally:
            self._slots.release()
        self._log_first(reply)
        if reply.report is None:
            raise SandboxUnavailable(f"the sandbox cannot isolate here: {reply.unavailable}")
        return reply.report

    def _log_first(self, reply: _Reply) -> None:
        if self._logged:
            return
        self._logged = True
        if reply.unavailable is None:
            log.info("sandbox_ready", landlock_abi=reply.landlock_abi, checks_at_once=CHECKS_AT_ONCE)
        else:
            log.error("sandbox_unavailable", reason=reply.unavailable)


def _reported(
    check: Check, fault: str, brought: dict[int, _TestResult], late: frozenset[int], tried: list[str]
) -> SandboxReport:
    outcomes: list[CheckOutcome] = []
    for place, test in enumerate(check.tests):
        found = brought.get(place)
        if found is not None:
            passed, reason, duration_ms = found.passed, found.reason, found.duration_ms
        else:
            over = f"{TIMEOUTS_MAX} tests by the same writer had run out of time"
            reason = fault or f"not run: {'the time of the check was over' if place in late else over}"
            passed, duration_ms = False, 0
        outcomes.append(CheckOutcome(name=test.name, passed=passed, reason=reason, duration_ms=duration_ms))
    return SandboxReport(
        fault=fault,
        outcomes=tuple(outcomes),
        not_run=frozenset() if fault else frozenset(range(len(check.tests))) - brought.keys(),
        tried=tuple(tried[:TRIED_MAX]),
    )


async def _replied(order: Order) -> _Reply:
    warden = await asyncio.create_subprocess_exec(
        *_COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd="/",
        env={},
        start_new_session=True,
    )
    assert warden.stdin is not None and warden.stdout is not None, "they are pipes"
    try:
        async with asyncio.timeout(order.deadline_s + GRACE_S):
            warden.stdin.write(json.dumps(order._asdict()).encode() + b"\n")
            await warden.stdin.drain()
            return _Reply.model_validate_json(await _all_of(warden.stdout))
    except (TimeoutError, ConnectionError, ValidationError) as broken:
        raise SandboxUnavailable(f"the sandbox broke off: {type(broken).__name__}") from broken
    finally:
        with suppress(ProcessLookupError):
            # The warden, and its child with it.
            os.killpg(warden.pid, signal.SIGKILL)
        warden.stdin.close()
        # `wait` would never return while some output is unread.
        await warden.communicate()


async def _all_of(stream: asyncio.StreamReader) -> bytes:
    reply = bytearray()
    while len(reply) <= _REPLY_BYTES_MAX and (piece := await stream.read(65_536)):
        reply += piece
    return bytes(reply)
