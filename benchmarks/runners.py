"""`python -m benchmarks.runners`: start, memory and CPU of a stack, by what runs its agents, in turn.

Each round starts one stack of each kind, with the simulator at 500 ms a call. Memory is the proportional set size of
the processes, CPU that of a deliberation, both without the simulator and `up`. CPU in loops of `benchmarks.fixed_loop`,
which are sampled meanwhile, can be compared among machines. A column has the medians of the rounds.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections import defaultdict
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from app.cli.stack.supervisor import marked
from app.deliberation.roles import AgentRunner
from benchmarks.bench import ADAPTERS, CALL_MS, Product, closed_loop, stack_of
from benchmarks.fixed_loop import sampling
from benchmarks.footprint import IN_FLIGHT, SETTLED_S, SIMULATOR, ticks_by_part


def proportional_mib(mark: str) -> float:
    """The memory of the stack's processes; what several of them share counts once."""
    rollups = (
        Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
        for process in marked(mark)
        if process.child != SIMULATOR
    )
    return sum(int(rollup.partition("\nPss:")[2].split()[0]) for rollup in rollups) / 1_024


async def measured(runner: AgentRunner, count: int) -> dict[str, float]:
    """The figures of one stack; the memory is that after the deliberations."""
    began_s = time.monotonic()
    async with stack_of(CALL_MS, agents=runner) as stack:
        start_s = time.monotonic() - began_s
        product = Product(stack.url)

        async def deliberate() -> None:
            await product.ended(await product.submit())

        await closed_loop(IN_FLIGHT, count // 4, deliberate)
        before = ticks_by_part(stack.mark)
        async with sampling() as loop:
            await closed_loop(IN_FLIGHT, count, deliberate)
            await asyncio.sleep(SETTLED_S)
        spent = ticks_by_part(stack.mark) - before
        memory_mib = proportional_mib(stack.mark)
        await product.close()
    cpu_ms = (spent.total() - spent[SIMULATOR]) * 1_000 / os.sysconf("SC_CLK_TCK") / count
    return {
        "ready after, s": start_s,
        "processes' memory, MiB": memory_mib,
        "CPU of a deliberation, ms": cpu_ms,
        "the same in loops": cpu_ms / loop.ms,
    }


async def measure(rounds: int, count: int) -> None:
    figures: dict[str, dict[AgentRunner, list[float]]] = defaultdict(lambda: {runner: [] for runner in ADAPTERS})
    for _ in range(rounds):
        for runner in ADAPTERS:
            for name, value in (await measured(runner, count)).items():
                figures[name][runner].append(value)
    table = Table("", *(f"--agents {runner}" for runner in ADAPTERS))
    for name, by_runner in figures.items():
        # Three significant digits, without an exponent.
        table.add_row(name, *(f"{float(f'{statistics.median(values):.3g}'):,g}" for values in by_runner.values()))
    Console(width=max(110, Console().width)).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="Stacks of each kind")
    parser.add_argument("--count", type=int, default=240, help="Deliberations of three agents whose CPU is counted")
    asked = parser.parse_args()
    uvloop.run(measure(asked.rounds, asked.count))


if __name__ == "__main__":
    main()
