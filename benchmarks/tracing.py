"""`python -m benchmarks.tracing`: what traces cost, as throughput and CPU of stacks with and without them.

Stacks of the same kind run at once, and rounds of the same load in turn, so that a busy machine slows all of them. The
engine is the simulator at 50 ms a call. The collector runs in the process of the load, and reads every span.
"""

import argparse
import os
import statistics
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial

import httpx
import uvloop
from rich.console import Console
from rich.table import Table

from app.deliberation.roles import AgentRunner
from benchmarks.bench import ADAPTERS, QUICK_CALL_MS, closed_loop, stack_of
from benchmarks.footprint import SIMULATOR, deliberate, ticks_by_part
from tests.otlp import collector

IN_FLIGHT = 50
STRATEGY = "independent"
RATIO = "parentbased_traceidratio"


def _variables(share: float, endpoint: str) -> Mapping[str, str]:
    if not share:
        return {}
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_TRACES_SAMPLER": RATIO,
        "OTEL_TRACES_SAMPLER_ARG": str(share),
    }


async def measure(shares: list[float], rounds: int, count: int, agents: AgentRunner) -> None:
    per_second: dict[float, list[float]] = {share: [] for share in shares}
    cpu_ms: dict[float, list[float]] = {share: [] for share in shares}
    tick_ms = 1_000 / os.sysconf("SC_CLK_TCK") / count
    async with AsyncExitStack() as running:
        spans = running.enter_context(collector())
        stacks: dict[float, tuple[str, Callable[[], Awaitable[None]]]] = {}
        for share in shares:
            variables = _variables(share, spans.endpoint)
            os.environ.update(variables)
            stack = await running.enter_async_context(stack_of(QUICK_CALL_MS, agents=agents))
            for name in variables:
                del os.environ[name]
            client = await running.enter_async_context(httpx.AsyncClient(base_url=stack.url, timeout=70))
            stacks[share] = stack.mark, partial(deliberate, client, {"strategy": STRATEGY})
            await closed_loop(IN_FLIGHT, count // 2, stacks[share][1])
        for number in range(rounds):
            for share in shares if number % 2 else reversed(shares):
                mark, ask = stacks[share]
                before = ticks_by_part(mark)
                sample = await closed_loop(IN_FLIGHT, count, ask)
                spent = ticks_by_part(mark) - before
                per_second[share].append(sample.per_second)
                cpu_ms[share].append((spent.total() - spent[SIMULATOR]) * tick_ms)
    table = Table(title=f"{STRATEGY}, three agents, {IN_FLIGHT} in flight, {rounds} rounds of {count}, agents={agents}")
    for column in (
        "share of deliberations traced",
        "deliberations/s",
        "of the untraced",
        "CPU ms each",
        "of the untraced",
    ):
        table.add_column(column, justify="right")
    for share in shares:
        cells: list[str] = []
        for figures in (per_second, cpu_ms):
            pairs = zip(figures[share], figures[shares[0]], strict=True)
            cells += [f"{statistics.median(figures[share]):.1f}", f"{statistics.median(n / o for n, o in pairs):.3f}"]
        table.add_row(f"{share:.0%}", *cells)
    Console(width=max(110, Console().width)).print(table)
    print(f"spans received: {len(spans.spans)}, without their parent: {len(spans.orphans())}")


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of traces")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.1, 1.0], help="Shares; the first is 0")
    parser.add_argument("--rounds", type=int, default=10, help="Rounds of each stack")
    parser.add_argument("--count", type=int, default=200, help="Deliberations of a round")
    parser.add_argument("--agents", choices=ADAPTERS, default="nats", help="What runs the agents")
    asked = parser.parse_args()
    uvloop.run(measure(asked.shares, asked.rounds, asked.count, asked.agents))


if __name__ == "__main__":
    main()
