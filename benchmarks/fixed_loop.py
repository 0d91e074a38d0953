"""A yardstick of CPU on a shared machine: the CPU of a fixed loop of Python, sampled while something else runs.

`python -m benchmarks.fixed_loop` samples until SIGTERM, and prints the median in milliseconds.
"""

import argparse
import asyncio
import signal
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import FrameType

TURNS = 12_000
PAUSE_S = 0.15


class _Holder:
    __slots__ = ("by_name", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.by_name: dict[str, int] = {}

    def get(self, name: str) -> int:
        self.by_name[name] = self.number
        return self.by_name.get(name, 0)


def loop_once() -> int:
    total = 0
    for number in range(TURNS):
        total += _Holder(number).get("name")
        ", ".join(["number", str(number)])
    return total


class LoopTime:
    """The median of the loop's CPU in milliseconds, once `sampling` has ended."""

    ms = 0.0


@asynccontextmanager
async def sampling() -> AsyncGenerator[LoopTime]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.fixed_loop", stdout=asyncio.subprocess.PIPE
    )
    sampled = LoopTime()
    try:
        yield sampled
    finally:
        child.send_signal(signal.SIGTERM)
        output, _ = await child.communicate()
    sampled.ms = float(output)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    samples: list[float] = []

    def end(_signal: int, _frame: FrameType | None) -> None:
        print(statistics.median(samples) * 1_000)
        sys.exit()

    loop_once()
    began_s = time.process_time()
    loop_once()
    samples.append(time.process_time() - began_s)
    signal.signal(signal.SIGTERM, end)
    while True:
        time.sleep(PAUSE_S)
        began_s = time.process_time()
        loop_once()
        samples.append(time.process_time() - began_s)


if __name__ == "__main__":
    main()
