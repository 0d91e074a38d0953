"""`python -m benchmarks.log_size`: messages and bytes that a deliberation without viewers leaves in the log's streams.

Over a stack with the simulator at 500 ms and 32 pieces a call. The figures are differences of `GET /cluster`, in the
mean of some deliberations.
"""

import argparse
import asyncio
from collections.abc import Mapping

import httpx
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.bench import CALL_MS, stack_of

COUNCIL = {"task": "Write factorial.", "agents": [{"role": "DEV", "count": 3}]}
STRATEGIES = ("independent", "council")
# Longer than the archive and the announcements follow an end.
SETTLED_S = 2.0

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


async def measure(count: int) -> None:
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
    Console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="What deliberations leave in the log")
    parser.add_argument("--count", type=int, default=10)
    uvloop.run(measure(parser.parse_args().count))


if __name__ == "__main__":
    main()
