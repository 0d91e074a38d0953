"""`python -m benchmarks.footprint`: the messages, bytes and CPU of a deliberation without viewers.

Over a stack with the simulator at 500 ms a call, in the mean of some deliberations. Messages and bytes are differences
of `GET /status`, at once or `--rest-s` later: starts of calls are kept for ten minutes. CPU is user and system time of
the stack's processes, of calls of 32 and of 128 pieces of text.
"""

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from functools import partial

import httpx
import uvloop
from rich.console import Console
from rich.table import Table

from app.cli.stack.layout import Layout
from app.cli.stack.supervisor import marked
from benchmarks.bench import CALL_MS, TOKENS_PER_CHUNK, closed_loop, stack_of
from benchmarks.cores import cpu_ticks, part_of

COUNCIL = {"task": "Write factorial.", "agents": [{"role": "DEV", "count": 3}]}
STRATEGIES = ("independent", "council")
# Longer than the archive and the announcements follow an end.
SETTLED_S = 2.0
IN_FLIGHT = 20
SIMULATOR = "simulator"
WITHOUT_ENGINE = "all but the simulator"
# By the pieces of a call's text: what is asked, and the part of the deliberations that it is asked for.
PIECES = 32
LOADS: Mapping[int, Mapping[str, tuple[Mapping[str, object], int]]] = {
    PIECES: {
        "independent": ({"strategy": "independent"}, 1),
        "council, two rounds": ({"strategy": "council", "rounds": 2}, 6),
    },
    4 * PIECES: {"independent": ({"strategy": "independent"}, 1)},
}

Sizes = Mapping[str, tuple[int, int]]


async def sizes(client: httpx.AsyncClient) -> Sizes:
    """The messages and bytes of each stream, once they rest."""
    last: Sizes = {}
    while True:
        streams = (await client.get("/status")).raise_for_status().json()["streams"]
        found = {stream["name"]: (stream["messages"], stream["bytes"]) for stream in streams}
        if found == last:
            return found
        last = found
        await asyncio.sleep(SETTLED_S)


async def deliberate(client: httpx.AsyncClient, asked: Mapping[str, object]) -> None:
    answer = await client.post("/deliberations", json={**COUNCIL, **asked}, headers={"Prefer": "wait=60"})
    assert answer.status_code == 200, answer.text


def ticks_by_part(mark: str) -> Counter[str]:
    """The clock ticks of CPU of each part of the stack since its start; those of Ray are named by their command."""
    spent = Counter[str]()
    for process in marked(mark):
        part = part_of(process)
        spent[part] += cpu_ticks(process.pid)
    return spent


async def stored(client: httpx.AsyncClient, count: int, rest_s: int) -> Table:
    table = Table(title=f"Stored for a deliberation of three agents after {rest_s} s, mean of {count}, simulated")
    for column in ("strategy", "stream", "messages", "KiB"):
        table.add_column(column, justify="left" if column in ("strategy", "stream") else "right")
    for strategy in STRATEGIES:
        await deliberate(client, {"strategy": strategy})
        before = await sizes(client)
        for _ in range(count):
            await deliberate(client, {"strategy": strategy})
        await asyncio.sleep(rest_s)
        after = await sizes(client)
        grown = {name: [(n - o) / count for n, o in zip(after[name], before[name], strict=True)] for name in after}
        for name, (messages, size) in grown.items():
            if messages:
                table.add_row(strategy, name, f"{messages:.1f}", f"{size / 1_024:.1f}")
        messages, size = (sum(each[place] for each in grown.values()) for place in (0, 1))
        table.add_row(strategy, "all", f"{messages:.1f}", f"{size / 1_024:.1f}", end_section=True)
    return table


async def spent(stack: Layout, client: httpx.AsyncClient, asked: Mapping[str, object], count: int) -> dict[str, float]:
    """The CPU of each part for one deliberation, in milliseconds."""
    ask = partial(deliberate, client, asked)
    await closed_loop(IN_FLIGHT, count // 4, ask)
    before = ticks_by_part(stack.mark)
    await closed_loop(IN_FLIGHT, count, ask)
    ticks = ticks_by_part(stack.mark) - before
    tick_ms = 1_000 / os.sysconf("SC_CLK_TCK") / count
    found = {part: many * tick_ms for part, many in ticks.most_common()}
    return {**found, WITHOUT_ENGINE: (ticks.total() - ticks[SIMULATOR]) * tick_ms}


async def measure(count: int, timed: int, rest_s: int) -> None:
    console, columns = Console(width=max(110, Console().width)), dict[str, dict[str, float]]()
    for pieces, loads in LOADS.items():
        more = ("--chunk-tokens", str(max(1, TOKENS_PER_CHUNK * PIECES // pieces)))
        async with stack_of(CALL_MS, *more) as stack, httpx.AsyncClient(base_url=stack.url, timeout=70) as client:
            if not columns:
                console.print(await stored(client, count, rest_s))
            for name, (asked, share) in loads.items():
                columns[f"{name}, {pieces} pieces"] = await spent(stack, client, asked, timed // share)
    table = Table(title=f"CPU of a deliberation in ms, {IN_FLIGHT} in flight, nobody watching, simulated")
    table.add_column("part")
    for name in columns:
        table.add_column(name, justify="right")
    for part in dict.fromkeys(part for column in reversed(columns.values()) for part in column):
        table.add_row(part, *(f"{column.get(part, 0):.1f}" for column in columns.values()))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="The messages, bytes and CPU of a deliberation")
    parser.add_argument("--count", type=int, default=10, help="Deliberations whose messages are counted")
    parser.add_argument("--rest-s", type=int, default=0, help="Seconds before the messages are counted")
    parser.add_argument("--timed", type=int, default=400, help="Deliberations whose CPU is counted")
    asked = parser.parse_args()
    uvloop.run(measure(asked.count, asked.timed, asked.rest_s))


if __name__ == "__main__":
    main()
