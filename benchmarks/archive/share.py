"""`python -m benchmarks.archive.share`: what the archive takes of the throughput of the stack.

The stack of `make bench`, with the engine at 500 ms a call, gets 200 deliberations at once, which need all CPU. Rounds
alternate between an archive that copies and one that SIGSTOP holds, which `up` bears for ten seconds. The ratio of
the two rates varies by a tenth from run to run. The share of the machine's CPU varies less.
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


def machine_cpu_s() -> float:
    """The seconds that all processes of the machine have computed."""
    with open("/proc/stat") as counters:
        user, nice, system = map(int, counters.readline().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


async def measure(rounds: int, total: int) -> None:
    """Print the rounds, the ratio of the medians, and the archive's share of the CPU."""
    before = processes_of("app.archive")
    rates: dict[bool, list[float]] = {True: [], False: []}
    shares = list[float]()
    async with stack_of(CALL_MS) as stack:
        (archive,) = set(processes_of("app.archive")) - set(before)
        product = Product(stack.url)
        for _ in range(rounds):
            for copies in (True, False):
                # Both begin with the same warm connections.
                await closed_loop(IN_FLIGHT, IN_FLIGHT, product.once)
                os.kill(archive, signal.SIGCONT if copies else signal.SIGSTOP)
                began_s, machine_began_s = cpu_s(archive), machine_cpu_s()
                sample = await closed_loop(IN_FLIGHT, total, product.once)
                rates[copies].append(sample.per_second)
                took_s, machine_took_s = cpu_s(archive) - began_s, machine_cpu_s() - machine_began_s
                each = f"{1_000 * took_s / total:.2f} of {1_000 * machine_took_s / total:.1f} ms CPU each"
                print(f"{'copies ' if copies else 'stopped'} {sample.per_second:6.1f} a second, {each}", flush=True)
                if copies:
                    shares.append(took_s / machine_took_s)
                os.kill(archive, signal.SIGCONT)
                await product.archived()
        await product.close()
    print(f"rates, copying over stopped {statistics.median(rates[True]) / statistics.median(rates[False]):.3f}")
    print(f"share of the machine's CPU  {statistics.median(shares):.3f}")


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deliberations", type=int, default=300, help="in each round, of less than ten seconds")
    given = parser.parse_args()
    asyncio.run(measure(given.rounds, given.deliberations))


if __name__ == "__main__":
    main()
