"""`python -m benchmarks.engines.backlog`: interactive councils alone and behind a backlog of batch ones, on a stack.

The stack is that of `deliberate up --simulate`, with an engine of few sequences and long calls, so that cores idle. The
same interactive councils, four at a time, run first alone. Then the backlog is submitted. Once all of it is accepted
and the engine has been full for a while, they run again. Both run in one stack and one run.

Each council's time is split by its facts: the wait for its first stage, and along the calls that end their stages last,
the way to the engine, the engine, and the way to the next stage. The cores' load is that of the whole machine.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.bench import stack_of

TASK = "Write a function that merges two sorted lists, and say how you would test it. Case {number}."
AT_ONCE = 4
SUBMITTED_AT_ONCE = 16
SETTLE_CALLS = 3
BATCH = MappingProxyType({"priority": "batch", "constraints": {"timeout_seconds": 3_600}})
PARTS = ("begin", "to the engine", "engine", "to the next stage", "to the client")


@dataclass
class Round:
    """Interactive councils: their seconds, the seconds of each part, refusals, and the share of busy cores."""

    seconds: list[float] = field(default_factory=list[float])
    parts: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])
    refused: int = 0
    busy: float = 0.0

    @property
    def p95_s(self) -> float:
        """The 95th percentile of a council's seconds."""
        return statistics.quantiles(self.seconds, n=20)[-1]


def busy_s() -> tuple[float, float]:
    """The seconds in which cores worked, and all seconds of all cores, since the machine's start."""
    ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    hertz = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - idle) / hertz, sum(ticks) / hertz


def parts_of(events: list[dict[str, Any]], answered_s: float) -> tuple[float, ...]:
    """The seconds of a council by `PARTS`."""
    at = [(event["type"], event, datetime.fromisoformat(event["ts"]).timestamp()) for event in events]
    accepted_s = at[0][2]
    started = {event["call_id"]: ts for kind, event, ts in at if kind == "call.started"}
    begin = to_engine = engine = onward = 0.0
    opened_s = last_s = 0.0
    last = ""
    for kind, event, ts in at:
        if kind == "stage.opened":
            begin, onward = (begin, onward + ts - last_s) if last_s else (ts - accepted_s, onward)
            opened_s = ts
        elif kind == "call.finished":
            last_s, last = ts, event["call_id"]
        elif kind == "stage.closed" and last in started:
            to_engine += started[last] - opened_s
            engine += last_s - started[last]
    return begin, to_engine, engine, onward + at[-1][2] - last_s, answered_s - at[-1][2]


class Gateway:
    """The stack's HTTP interface."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=120)

    async def submit(self, number: int, more: Mapping[str, object] = MappingProxyType({})) -> httpx.Response:
        """Post a council of three; `more` are further fields of the request."""
        body = {"task": TASK.format(number=number), "strategy": "council", "num_agents": 3, "seed": number, **more}
        return await self._client.post("/deliberations", json=body)

    async def interactive(self, number: int, found: Round) -> None:
        """Run one interactive council to its end."""
        began_s = time.time()
        while (response := await self.submit(number)).status_code == 429:
            found.refused += 1
            await asyncio.sleep(1)
        response.raise_for_status()
        place = f"/deliberations/{response.json()['id']}"
        headers, ended = {"Prefer": "wait=60"}, None
        while ended is None:
            response = await self._client.get(place, headers=headers)
            headers["If-None-Match"] = response.headers["ETag"]
            ended = response.json() if response.status_code == 200 and response.json()["ended_at"] else None
        ended_s = time.time()
        if ended["status"] != "completed":
            raise SystemExit(f"{place} ended as {ended['status']}")
        found.seconds.append(ended_s - began_s)
        found.parts.append(parts_of(await self._events(place), ended_s))

    async def _events(self, place: str) -> list[dict[str, Any]]:
        events, page = list[dict[str, Any]](), {"next": "0", "ended": False}
        while not page["ended"]:
            given = {"after": page["next"], "limit": 1_000}
            answer = await self._client.get(f"{place}/events", params=given, headers={"Accept": "application/json"})
            page = answer.raise_for_status().json()
            events += page["items"]
        return events

    async def round(self, councils: int) -> Round:
        """Run so many interactive councils, four at a time."""
        found, numbers, before = Round(), iter(range(councils)), busy_s()

        async def worker() -> None:
            for number in numbers:
                await self.interactive(number, found)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(worker())
        after = busy_s()
        found.busy = (after[0] - before[0]) / (after[1] - before[1])
        return found

    async def fill(self, backlog: int) -> float:
        """Submit so many batch councils; returns the seconds that this took."""
        numbers, began_s = iter(range(backlog)), time.monotonic()

        async def worker() -> None:
            for number in numbers:
                (await self.submit(1_000 + number, BATCH)).raise_for_status()

        async with asyncio.TaskGroup() as group:
            for _ in range(SUBMITTED_AT_ONCE):
                group.create_task(worker())
        return time.monotonic() - began_s

    async def depth(self) -> int:
        """Deliberations that are accepted and unfinished."""
        return (await self._client.get("/cluster")).json()["queue"]["depth"]


async def main(councils: int, backlog: int, call_ms: int, max_running: int) -> None:
    """Measure, and print the figures."""
    varied = ("--jitter", "0.3", "--chunk-tokens", "64", "--max-running", str(max_running))
    async with stack_of(call_ms, *varied) as stack:
        gateway = Gateway(stack.url)
        await gateway.round(AT_ONCE)
        alone = await gateway.round(councils)
        filled_s = await gateway.fill(backlog)
        await asyncio.sleep(SETTLE_CALLS * call_ms / 1_000)
        behind = await gateway.round(councils)
        left = await gateway.depth()
    title = f"SIMULATED engine: {max_running} calls of {call_ms} ms at once; {backlog:,} batch councils submitted in "
    title += f"{filled_s:.0f} s, {left:,} of them left at the end"
    table = Table("", "alone", "behind the backlog", "ratio", title=title)
    rows = {
        "p50, s": [statistics.median(each.seconds) for each in (alone, behind)],
        "p95, s": [each.p95_s for each in (alone, behind)],
        "requests refused": [each.refused for each in (alone, behind)],
        "cores busy, %": [100 * each.busy for each in (alone, behind)],
    }
    means = ([statistics.mean(part) for part in zip(*each.parts, strict=True)] for each in (alone, behind))
    rows |= {f"{name}, mean s": list(pair) for name, pair in zip(PARTS, zip(*means, strict=True), strict=True)}
    for name, (before, now) in rows.items():
        table.add_row(name, f"{before:.2f}", f"{now:.2f}", f"{now / before:.2f}" if before else "")
    Console(width=110).print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--councils", type=int, default=48)
    parser.add_argument("--backlog", type=int, default=1_000)
    parser.add_argument("--call-ms", type=int, default=2_000)
    parser.add_argument("--max-running", type=int, default=32)
    uvloop.run(main(**vars(parser.parse_args())))
