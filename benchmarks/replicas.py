"""`python -m benchmarks.replicas`: one load on one to four gateways and coordinators of one log.

Each row is a stack of its own with the simulated engine at 500 ms a call; clients come to its gateways in turn. All
share the machine's cores, so that the rows show what another process costs. What it gains needs a core for each.
"""

import argparse
import os
from collections import Counter
from contextlib import AsyncExitStack
from itertools import cycle
from typing import NamedTuple

import uvloop
from rich.console import Console
from rich.table import Table

from app.cli.stack.layout import Layout
from benchmarks.bench import CALL_MS, Product, Sample, closed_loop, stack_of
from benchmarks.footprint import SIMULATOR, ticks_by_part
from benchmarks.overload import beside

ROWS = ((1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (4, 4))
COORDINATOR = "Coordinator"
PARTS = ("gateway", COORDINATOR, "nats")


class Cost(NamedTuple):
    """Latencies of completed deliberations, the number of others, and the CPU of one by part, in milliseconds."""

    sample: Sample
    lost: int
    cpu_ms: dict[str, float]


def spent(layouts: list[Layout]) -> Counter[str]:
    """The clock ticks of each part so far; the replicas of a part count together."""
    found = Counter[str]()
    for layout in layouts:
        for part, ticks in ticks_by_part(layout.mark).items():
            found[COORDINATOR if COORDINATOR in part else part] += ticks
    return found


async def measure(gateways: int, coordinators: int, in_flight: int, count: int) -> Cost:
    os.environ["COORDINATOR_REPLICAS"] = str(coordinators)
    async with AsyncExitStack() as cleanup:
        stack = await cleanup.enter_async_context(stack_of(CALL_MS))
        layouts = await beside(stack, gateways, cleanup)
        products = [Product(layout.url) for layout in layouts]
        turn, completed = cycle(products), Counter[bool]()

        async def ask() -> None:
            completed[await next(turn).completes()] += 1

        await closed_loop(in_flight, count // 4, ask)
        before = spent(layouts)
        sample = await closed_loop(in_flight, count, ask)
        ticks = spent(layouts) - before
        for product in products:
            await product.close()
    tick_ms = 1_000 / os.sysconf("SC_CLK_TCK") / count
    cpu_ms = {part: ticks[part] * tick_ms for part in PARTS}
    return Cost(sample, completed[False], {**cpu_ms, "all": (ticks.total() - ticks[SIMULATOR]) * tick_ms})


async def main(in_flight: int, count: int) -> None:
    table = Table(title=f"{in_flight} in flight, {count} deliberations; CPU of a deliberation in ms, simulated engine")
    columns = "gateways", "coordinators", "each second", "p50, ms", "lost"
    for column in (*columns, "CPU of gateways", "coordinators", "nats-server", "all but the simulator"):
        table.add_column(column, justify="right")
    for gateways, coordinators in ROWS:
        found = await measure(gateways, coordinators, in_flight, count)
        rates = f"{found.sample.per_second:.0f}", f"{found.sample.p50_ms:.0f}", str(found.lost)
        table.add_row(str(gateways), str(coordinators), *rates, *(f"{each:.1f}" for each in found.cpu_ms.values()))
    console = Console(width=max(130, Console().width))
    console.print(table)
    console.print(f"{os.cpu_count()} cores. Load over the last minute: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--in-flight", type=int, default=100, help="Deliberations in flight, over all gateways")
    options.add_argument("--count", type=int, default=1_600, help="Deliberations of each row")
    asked = options.parse_args()
    uvloop.run(main(asked.in_flight, asked.count))
