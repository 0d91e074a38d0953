"""The zygote: a fresh, confined interpreter that forks two processes for each test, the program's and the test's.

It has loaded no module that reaches sockets or machine code, runs no foreign code, and never reads a test. Its
descriptors are arranged by the warden (`child`). Commands are lines on CONTROL, events are lines on STATUS.
"""

import _thread
import os
from collections.abc import Callable
from itertools import pairwise

from serve_deployments.sandbox.program import serve
from serve_deployments.sandbox.protocol import (
    BROKEN,
    CONTROL,
    ENDED,
    EXITS,
    NOTES,
    ORDER,
    PROCESSES,
    READY,
    STATUS,
    TESTS,
    VERDICT,
)
from serve_deployments.sandbox.trial import run

THREAD_STACK_BYTES = 2 << 20

_LINE_BYTES = 64
_DESCRIPTORS_MAX = 1_024


def main(program: str) -> None:
    """Run a trial for each line of CONTROL, which names a test by its place and length in TESTS."""
    _thread.stack_size(THREAD_STACK_BYTES)
    os.environ.clear()
    os.close(ORDER)
    _say(READY)
    while line := os.read(CONTROL, _LINE_BYTES):
        place, length = map(int, line.split())
        _trial(program, place, length)


def _trial(program: str, place: int, length: int) -> None:
    """One test: its two processes stay zombies until the warden, which ends them, confirms it."""
    asked, ask = os.pipe()
    answered, answer = os.pipe()
    of_program = os.fork()
    if of_program == 0:
        _end_with(lambda: serve(program, asked, answer, NOTES), (asked, answer, NOTES))
    of_test = os.fork()
    if of_test == 0:
        _end_with(lambda: run(_read(place, length), answered, ask, VERDICT), (answered, ask, TESTS, VERDICT))
    for end in (asked, ask, answered, answer):
        os.close(end)
    _say(PROCESSES, of_program, of_test)
    os.waitid(os.P_PID, of_test, os.WEXITED | os.WNOWAIT)
    _say(ENDED)
    os.read(CONTROL, _LINE_BYTES)
    _say(EXITS, *(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in (of_program, of_test)))


def _end_with(act: Callable[[], None], ends: tuple[int, ...]) -> None:
    """Run this new process's task with these descriptors alone, and end the process."""
    try:
        for below, above in pairwise((2, *sorted(ends), _DESCRIPTORS_MAX)):
            os.closerange(below + 1, above)
        act()
        os._exit(0)
    finally:
        os._exit(BROKEN)


def _read(place: int, length: int) -> str:
    text = os.pread(TESTS, length, place).decode("utf-8", "surrogatepass")
    os.close(TESTS)
    return text


def _say(*words: object) -> None:
    os.write(STATUS, " ".join(map(str, words)).encode() + b"\n")
