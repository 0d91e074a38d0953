"""`python -m benchmarks.archive.share`: the throughput of the stack while the archive copies, and while it is stopped.

The stack of `make bench`, with the engine at 500 ms a call, gets 200 deliberations at once. Rounds alternate between an
archive that copies and one that SIGSTOP holds, and catches up before the next round.
"""

import argparse
import asyncio
import os
import signal
import statistics

from benchmarks.archive.reading import cpu_s
from benchmarks.bench import CALL_MS, Product, closed_loop, stack_of

IN_FLIGHT = 200


def processes_of(module: str) -> list[int]:
    """The ids of the processes that run a module."""
    found = list[int]()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as command:
                if command.read().split(b"\0")[1:3] == [b"-m", module.encode()]:
                    found.append(int(name))
        except OSError:
            continue
    return found


async def measure(rounds: int, total: int) -> None:
    """Print the rounds, and the ratio of the medians."""
    before = processes_of("app.archive")
    rates: dict[bool, list[float]] = {True: [], False: []}
    async with stack_of(CALL_MS) as stack:
        (archive,) = set(processes_of("app.archive")) - set(before)
        product = Product(stack.url)
        await closed_loop(IN_FLIGHT, total, product.once)
        for _ in range(rounds):
            for copies in (True, False):
                os.kill(archive, signal.SIGCONT if copies else signal.SIGSTOP)
                began_s = cpu_s(archive)
                sample = await closed_loop(IN_FLIGHT, total, product.once)
                rates[copies].append(sample.per_second)
                took = f"{1_000 * (cpu_s(archive) - began_s) / total:.2f} ms CPU of the archive each"
                print(
                    f"archive {'copies ' if copies else 'stopped'} {sample.per_second:6.1f} a second, {took}",
                    flush=True,
                )
            os.kill(archive, signal.SIGCONT)
            await caught_up(archive)
        await product.close()
    print(f"copying over stopped {statistics.median(rates[True]) / statistics.median(rates[False]):.3f}")


async def caught_up(archive: int) -> None:
    """Wait until the archive has been idle for a second."""
    before_s = -1.0
    while (now_s := cpu_s(archive)) - before_s > 0.05:
        before_s = now_s
        await asyncio.sleep(1)


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deliberations", type=int, default=1_000, help="in each round")
    given = parser.parse_args()
    asyncio.run(measure(given.rounds, given.deliberations))


if __name__ == "__main__":
    main()
