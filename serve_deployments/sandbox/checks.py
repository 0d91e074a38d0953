"""Checks: the replica's side of the sandbox. It starts a warden for each program, and reads its reply.

Programs run at most `CHECKS_AT_ONCE` at a time in one replica, each under a warden of its own; whatever becomes of
them, the replica waits for pipes alone.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from app.deliberation.calls import Check
from app.deliberation.errors import SandboxUnavailable
from app.deliberation.outputs import Report
from serve_deployments.sandbox.warden import Order

CHECKS_AT_ONCE = 4
# How long before its deadline a check is over, so that its report is still in time; and what a warden may take longer.
MARGIN_S = 1.0
GRACE_S = 5.0

_REPLY_BYTES_MAX = 4 << 20
_PACKAGES = str(Path(__file__).parents[2])
_BOOT = (
    f"import sys; sys.path.insert(0, {_PACKAGES!r}); from serve_deployments.sandbox.warden import main; "
    "sys.path.pop(0); main()"
)
# Isolated, without packages, in UTF-8; nothing of the replica's environment.
_COMMAND = (sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT)

log = structlog.get_logger(__name__)


class _Reply(BaseModel):
    """What a warden replies: a report, or why there is none."""

    model_config = ConfigDict(frozen=True)

    report: Report | None = None
    unavailable: str | None = None
    landlock_abi: int | None = None


class Sandbox:
    """Runs checks, a few at once; what it can do here is logged once."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._told = False

    async def report(self, check: Check, within_s: float) -> Report:
        """Run a program against its tests and tell the outcome of each, whatever it does, within `within_s` seconds.

        Tests for which there is no time are told as not run. SandboxUnavailable: nothing was run.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s - MARGIN_S
        async with self._slots:
            with TemporaryDirectory(prefix="check-") as directory:
                order = Order(
                    directory=directory,
                    program=check.code,
                    tests=[(test.name, test.code) for test in check.tests],
                    timeout_s=check.timeout_s,
                    memory_mb=check.memory_mb,
                    deadline_s=max(0.0, until_s - loop.time()),
                )
                reply = await _replied(order)
        self._tell(reply)
        if reply.report is None:
            raise SandboxUnavailable(f"the sandbox cannot isolate here: {reply.unavailable}")
        return reply.report

    def _tell(self, reply: _Reply) -> None:
        if self._told:
            return
        self._told = True
        if reply.unavailable is None:
            log.info("sandbox_ready", landlock_abi=reply.landlock_abi, checks_at_once=CHECKS_AT_ONCE)
        else:
            log.error("sandbox_unavailable", reason=reply.unavailable)


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
        await warden.wait()


async def _all_of(stream: asyncio.StreamReader) -> bytes:
    """What comes until the end; no more than a reply may have."""
    reply = bytearray()
    while len(reply) <= _REPLY_BYTES_MAX and (piece := await stream.read(65_536)):
        reply += piece
    return bytes(reply)
