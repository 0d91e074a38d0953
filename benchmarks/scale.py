"""`python -m benchmarks.scale [COUNT]`: the memory of each process with many deliberations in flight.

Over a stack with the simulator at 60 s a call. A coordinator holds every deliberation; how many of them have begun is
what its limit allows, and is printed. The difference of the two columns is what the deliberations cost.
"""

import argparse
import asyncio
import os
from collections import Counter
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from app.cli.stack.supervisor import marked
from benchmarks.bench import Product, Sample, closed_loop, stack_of
from benchmarks.cores import part_of

CALL_MS = 60_000
SUBMITTED_AT_ONCE = 50
# One coordinator holds them all, and none meets its deadline.
SETTINGS = {"QUEUE_DEPTH_MAX": "1000000", "COORDINATOR_SLOTS": "10000", "DELIBERATION_TIMEOUT": "3600"}
# Longer than the archive follows the log.
SETTLED_S = 3.0


def resident_kb(mark: str) -> Counter[str]:
    """The resident memory of each part of the stack; those of Ray are named by their command."""
    found = Counter[str]()
    for process in marked(mark):
        part = part_of(process)
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        found[part] += int(status.partition("VmRSS:")[2].split()[0])
    return found


async def submitted(product: Product, count: int, held: int) -> Sample:
    """The latencies of `count` submissions, once coordinators hold `held` deliberations."""

    async def submit() -> None:
        await product.submit()

    sample = await closed_loop(SUBMITTED_AT_ONCE, count, submit)
    await product.until_running(held)
    await asyncio.sleep(SETTLED_S)
    return sample


async def measure(count: int) -> None:
    os.environ.update(SETTINGS)
    async with stack_of(CALL_MS) as stack:
        product = Product(stack.url)
        await submitted(product, 1, 1)
        before = resident_kb(stack.mark)
        sample = await submitted(product, count - 1, count)
        after = resident_kb(stack.mark)
        begun = await product.begun()
        await product.close()
    table = Table(
        "process", "MB before", "MB with them", "KB each", title=f"{count:,} in flight, of which {begun} begun"
    )
    for part, kb in after.most_common():
        table.add_row(part, f"{before[part] / 1_000:.0f}", f"{kb / 1_000:.0f}", f"{(kb - before[part]) / count:.1f}")
    console = Console(width=max(100, Console().width))
    console.print(table)
    console.print(f"{sample.per_second:.0f} submissions/s, {SUBMITTED_AT_ONCE} at once, p99 {sample.p99_ms:.0f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=10_000, help="Deliberations in flight, at most 10,000")
    uvloop.run(measure(parser.parse_args().count))
