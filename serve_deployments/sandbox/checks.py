"""The replica's side of the sandbox: it starts a warden for each program, and reads its reply.

Programs take turns, and so do tenants: of the programs on a node one tenant's are at most half. A program that ran out
of time goes behind all that wait. A slot is free again once the program's directory is removed.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from app.bounded_child import ChildExceeded, ChildLimits, module_command, run_child
from app.deliberation.calls import Check
from app.deliberation.errors import SandboxUnavailable
from app.deliberation.outputs import TRIED_MAX, CheckOutcome, SandboxReport
from serve_deployments.node_directory.directory import NodeDirectory
from serve_deployments.node_directory.slots import AT_ONCE, NodeSlots
from serve_deployments.sandbox.warden import Order

# A check ends this long before its deadline, so that its report is in time; a warden may take GRACE_S longer than
# ordered.
MARGIN_S = 1.0
GRACE_S = 5.0
# After this many tests of one writer ran out of time with a program, the writer's other tests are not run.
TIMEOUTS_MAX = 3
RUN_MEMORY_MB = 512

_REPLY_BYTES_MAX = 4 << 20
_COMMAND = module_command("serve_deployments.sandbox.warden")
# Beyond the program's own: the warden with its order and reply, and the zygote.
_OWN_MEMORY_BYTES = 512 << 20
_FILE_BYTES_MAX = 64 << 20
# The warden, the zygote, and the process of a test.
_PROCESSES_MAX = 3

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


class _NoTurn(Exception):
    """None of the slots was free in time."""


class Sandbox:
    """Runs checks, a few at once. The first reply is logged: it says whether this machine can isolate."""

    def __init__(self, node: NodeDirectory) -> None:
        self._node = node
        self._slots = NodeSlots(node, "programs", AT_ONCE)
        # A slot is held until its directory is removed, also when its program's use is cancelled.
        self._clearing = set[asyncio.Task[None]]()
        self._logged = False

    @asynccontextmanager
    async def _turn_of(self, tenant: str, until_s: float) -> AsyncGenerator[Path]:
        """A slot, and the empty directory of a program. Raises _NoTurn, and SandboxUnavailable without a directory."""
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout_at(until_s):
                    await stack.enter_async_context(self._slots.slot(tenant))
                directory = await stack.enter_async_context(self._node.scratch())
            except TimeoutError:
                raise _NoTurn from None
            except OSError as error:
                raise SandboxUnavailable(f"no directory for a program: {error.strerror or error}") from error
            try:
                yield directory
            finally:
                clearing = asyncio.get_running_loop().create_task(stack.pop_all().aclose())
                self._clearing.add(clearing)
                clearing.add_done_callback(self._clearing.discard)
                await asyncio.shield(clearing)

    async def report(self, check: Check, tenant: str, within_s: float) -> SandboxReport:
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
            turn = await self._turn(check, pending, tenant, until_s, first=not brought)
            tried += [attempt for attempt in turn.tried if attempt not in tried]
            brought |= dict(zip(pending, turn.outcomes, strict=False))
            timeouts.update(writers[place] for place in pending[: len(turn.outcomes)] if brought[place].timed_out)
            left = [place for place in pending if place not in brought]
            pending = [place for place in left if timeouts[writers[place]] < TIMEOUTS_MAX]
            if turn.fault or not turn.outcomes or not pending:
                break
        return _reported(check, turn.fault, brought, frozenset(pending), tried)

    async def _turn(self, check: Check, places: Sequence[int], tenant: str, until_s: float, first: bool) -> _Turn:
        """One turn, which has no outcome when none of the slots was free in time."""
        try:
            async with self._turn_of(tenant, until_s) as directory:
                order = Order(
                    directory=str(directory),
                    program=check.code,
                    tests=[check.tests[place].data for place in places],
                    timeout_s=check.timeout_s,
                    memory_mb=check.memory_mb,
                    probe=first,
                )
                return await self._ordered(order, until_s)
        except _NoTurn:
            return _Turn()

    async def run(
        self, program: str, tenant: str, within_s: float, prepare: Callable[[Path], Awaitable[None]]
    ) -> ProgramOutput:
        """Run a program once as a script, in a directory that it may read and write, and that `prepare` fills before.

        Raises SandboxUnavailable when nothing was run, and what `prepare` raises.
        """
        until_s = asyncio.get_running_loop().time() + within_s - MARGIN_S
        try:
            async with self._turn_of(tenant, until_s) as directory:
                await prepare(directory)
                timeout_s = max(0.1, until_s - MARGIN_S - asyncio.get_running_loop().time())
                test = {"stdin": "", "stdout": None}
                order = Order(str(directory), program, [test], timeout_s, RUN_MEMORY_MB, probe=False)
                turn = await self._ordered(order, until_s)
        except _NoTurn:
            return ProgramOutput("", "not run: its time was over before its turn")
        if not turn.outcomes:
            return ProgramOutput("", "not run: its time was over")
        # Paths as the program's author knows them, and no directory of this node.
        return ProgramOutput(turn.outcomes[0].printed.replace(f"{directory}/", ""), turn.outcomes[0].reason)

    async def _ordered(self, order: Order, until_s: float) -> _Turn:
        left_s = max(0.0, until_s - asyncio.get_running_loop().time())
        reply = await _replied(order._replace(deadline_s=left_s))
        self._log_first(reply)
        if reply.report is None:
            raise SandboxUnavailable(f"the sandbox cannot isolate here: {reply.unavailable}")
        return reply.report

    def _log_first(self, reply: _Reply) -> None:
        if self._logged:
            return
        self._logged = True
        if reply.unavailable is None:
            log.info("sandbox_ready", landlock_abi=reply.landlock_abi, checks_at_once=AT_ONCE)
        else:
            log.error("sandbox_unavailable", reason=reply.unavailable)


def _reported(
    check: Check, fault: str, brought: dict[int, _TestResult], late: frozenset[int], tried: list[str]
) -> SandboxReport:
    outcomes: list[CheckOutcome] = []
    for place, test in enumerate(check.tests):
        result = brought.get(place)
        if result is not None:
            passed, reason, duration_ms = result.passed, result.reason, result.duration_ms
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
    limits = ChildLimits(
        memory_bytes=(order.memory_mb << 20) + _OWN_MEMORY_BYTES,
        file_bytes=_FILE_BYTES_MAX,
        processes=_PROCESSES_MAX,
        cpu_s=int(order.deadline_s + GRACE_S) + 1,
    )
    sent = json.dumps(order._asdict()).encode() + b"\n"
    try:
        output = await run_child(
            _COMMAND,
            limits=limits,
            within_s=order.deadline_s + GRACE_S,
            bytes_max=_REPLY_BYTES_MAX,
            sent=sent,
            # The warden ends with its replica.
            stays_open=True,
        )
        return _Reply.model_validate_json(output.data)
    except (ChildExceeded, OSError, ValidationError) as broken:
        reason = str(broken) if isinstance(broken, ChildExceeded) else type(broken).__name__
        raise SandboxUnavailable(f"the sandbox broke off: {reason}") from broken
