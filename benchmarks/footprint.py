"""`python -m benchmarks.footprint`: the messages, bytes and CPU of a deliberation without viewers.

Over a stack with the simulator at 500 ms and 32 pieces a call, in the mean of some deliberations. Messages and bytes
are differences of `GET /cluster`. CPU is user and system time of the stack's processes.
"""

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import httpx
import uvloop
from rich.console import Console
from rich.table import Table

from app.cli.stack.supervisor import marked
from benchmarks.bench import CALL_MS, closed_loop, stack_of

COUNCIL = {"task": "Write factorial.", "agents": [{"role": "DEV", "count": 3}]}
STRATEGIES = ("independent", "council")
# Longer than the archive and the announcements follow an end.
SETTLED_S = 2.0
IN_FLIGHT = 20
SIMULATOR = "simulator"

Sizes = Mapping[str, tuple[int, int]]


async def sizes(client: httpx.AsyncClient) -> Sizes:
    """The messages and bytes of each stream, once they rest."""
    last: Sizes = {}
    while True:
        streams = (await client.get("/cluster")).raise_for_status().json()["streams"]
        found = {stream["name"]: (stream["messages"], stream["bytes"]) for stream in streams}
        if found == last:
            return found
        last = found
        await asyncio.sleep(SETTLED_S)


async def deliberate(client: httpx.AsyncClient, strategy: str) -> None:
    body = {**COUNCIL, "strategy": strategy}
    answer = await client.post("/deliberations", json=body, headers={"Prefer": "wait=60"})
    assert answer.status_code == 200, answer.text


def cpu_ticks(mark: str) -> Counter[str]:
    """The clock ticks of CPU of each part of the stack since its start; those of Ray are named by their command."""
    spent = Counter[str]()
    for process in marked(mark):
        try:
            ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        part = process.command.split()[0] if process.command.startswith("ray::") else process.child
        spent[part] += int(ticks[11]) + int(ticks[12])
    return spent


async def measure(count: int, timed: int) -> None:
    table = Table(title=f"Stored for a deliberation of three agents, mean of {count}, simulated")
    for column in ("strategy", "stream", "messages", "KiB"):
        table.add_column(column, justify="left" if column in ("strategy", "stream") else "right")
    async with stack_of(CALL_MS) as stack, httpx.AsyncClient(base_url=stack.url, timeout=70) as client:
        for strategy in STRATEGIES:
            await deliberate(client, strategy)
            before = await sizes(client)
            for _ in range(count):
                await deliberate(client, strategy)
            after = await sizes(client)
            grown = {name: [(n - o) / count for n, o in zip(after[name], before[name], strict=True)] for name in after}
            for name, (messages, stored) in grown.items():
                if messages:
                    table.add_row(strategy, name, f"{messages:.1f}", f"{stored / 1_024:.1f}")
            messages, stored = (sum(each[place] for each in grown.values()) for place in (0, 1))
            table.add_row(strategy, "all", f"{messages:.1f}", f"{stored / 1_024:.1f}", end_section=True)
        ask = partial(deliberate, client, STRATEGIES[0])
        await closed_loop(IN_FLIGHT, timed // 4, ask)
        before = cpu_ticks(stack.mark)
        await closed_loop(IN_FLIGHT, timed, ask)
        spent = cpu_ticks(stack.mark) - before
    of_cpu = Table(title=f"CPU of a deliberation `{STRATEGIES[0]}`, mean of {timed}, {IN_FLIGHT} in flight, simulated")
    of_cpu.add_column("part")
    of_cpu.add_column("ms", justify="right")
    tick_ms = 1_000 / os.sysconf("SC_CLK_TCK") / timed
    for part, ticks in spent.most_common():
        of_cpu.add_row(part, f"{ticks * tick_ms:.1f}")
    of_cpu.add_row("all but the simulator", f"{(spent.total() - spent[SIMULATOR]) * tick_ms:.1f}")
    for each in (table, of_cpu):
        Console(width=100).print(each)


def main() -> None:
    parser = argparse.ArgumentParser(description="The messages, bytes and CPU of a deliberation")
    parser.add_argument("--count", type=int, default=10, help="Deliberations whose messages are counted")
    parser.add_argument("--timed", type=int, default=400, help="Deliberations whose CPU is counted")
    asked = parser.parse_args()
    uvloop.run(measure(asked.count, asked.timed))


if __name__ == "__main__":
    main()
