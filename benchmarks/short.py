"""`python -m benchmarks.short`: the figures of `make bench` with tokens streamed, in a few lines, within two minutes.

For two checkouts in turn, when the machine is shared. The floor is that of `make bench`; the engine is simulated. CPU
is that of the product's processes for a deliberation; in loops of `benchmarks.fixed_loop`, sampled meanwhile, it can be
compared among machines. `--agents nats` measures without Ray.
Two options print other lines instead, of rates in turn. `--watched`: while every tenth deliberation has a viewer of its
texts, over the rate without viewers. `--faults`: while a tenth of the engine's replies is faulty, over that without.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections import Counter, defaultdict
from functools import partial
from itertools import count
from typing import NamedTuple, get_args

import httpx
import uvloop

from app.deliberation.roles import AgentRunner
from benchmarks.bench import CALL_MS, Floor, Product, Sample, closed_loop, stack_of
from benchmarks.fixed_loop import sampling
from benchmarks.footprint import SIMULATOR, ticks_by_part

WARM_UP = 100
SUBMITTED, UNCOUNTED = 900, 200


WATCHED_EVERY, ROUNDS = 10, 3
# The archive follows an end for as long.
FOLLOWED_S = 1.5
# None with Retry-After, which paces the engine itself.
FAULTS = ("error:0.03", "broken-stream:0.03", "bad-json:0.04")


class _Load(NamedTuple):
    at_once: int
    of_product: int
    of_floor: int


LOADS = _Load(1, 16, 6), _Load(50, 250, 150), _Load(200, 700, 500)


async def main(agents: AgentRunner, *, watched: bool, faults: bool) -> None:
    """Start a stack and print its figures."""
    os.environ["STREAM_DELTAS"] = "true"
    async with stack_of(CALL_MS, agents=agents) as stack:
        floor, product = Floor(stack.engine_urls[0], streamed=True), Product(stack.url)
        await closed_loop(20, WARM_UP, product.once)
        if watched or faults:
            for load in LOADS[1:]:
                if watched:
                    print(await share_with_viewers(product, load))
                if faults:
                    print(await share_with_faults(product, stack.engine_urls[0], load))
            await floor.close()
            await product.close()
            return
        told, costs = list[str](), list[str]()
        for load in LOADS:
            least = await closed_loop(load.at_once, load.of_floor, floor.once)
            before = ticks_by_part(stack.mark)
            async with sampling() as loop:
                found = await closed_loop(load.at_once, load.of_product, product.once)
            await asyncio.sleep(FOLLOWED_S)
            spent = ticks_by_part(stack.mark) - before
            costs.append(f"{load.at_once} in flight: {cost_of(spent, load.of_product, loop.ms)}")
            rate, latency = found.per_second / least.per_second, found.p50_ms / least.p50_ms
            told.append(f"{load.at_once} in flight: rate {rate:.2f} and p50 {latency:.3f} of the floor")
        print(f"CPU of a deliberation, {os.cpu_count()} cores:", *costs, sep="\n  ")
        submits = Sample(SUBMITTED - UNCOUNTED)

        async def submit_and_poll() -> None:
            began_s = time.perf_counter()
            id = await product.submit()
            submits.latencies_s.append(time.perf_counter() - began_s)
            await product.ended(id)

        polled = await closed_loop(LOADS[-1].at_once, SUBMITTED, submit_and_poll)
        del submits.latencies_s[:UNCOUNTED]
        told.append(f"submit p50 {submits.p50_ms:.0f}, p99 {submits.p99_ms:.0f} ms at {polled.per_second:.0f}/s")
        print("; ".join(told))
        await floor.close()
        await product.close()


def cost_of(ticks: Counter[str], deliberations: int, loop_ms: float) -> str:
    """The CPU of a deliberation in milliseconds, in loops, and by part."""
    ms = {part: 1_000 * many / os.sysconf("SC_CLK_TCK") / deliberations for part, many in ticks.items()}
    total = sum(ms.values()) - ms.get(SIMULATOR, 0)
    by_part = defaultdict[str, float](float)
    for process, spent in ms.items():
        by_part[part_of(process)] += spent
    largest = sorted(by_part.items(), key=lambda part: -part[1])
    parts = (f"{part} {spent:.1f}" for part, spent in largest if part != SIMULATOR and spent >= 0.05)
    return f"{total:.1f} ms, {total / loop_ms:.2f} loops of {loop_ms:.2f} ms: {', '.join(parts)}"


def part_of(process: str) -> str:
    if process.startswith("ray::ServeReplica"):
        return "coordinator" if "Coordinator" in process else "agents"
    return "Ray" if process in ("ray", "deployer") or process.startswith("ray::") else process


async def share_with_viewers(product: Product, load: _Load) -> str:
    """The rates with and without a viewer of every tenth deliberation, and their ratio."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    numbers, pieces = count(), 0

    async def submit_and_poll(*, watching: bool) -> None:
        nonlocal pieces
        id = await product.submit()
        async with asyncio.TaskGroup() as group:
            group.create_task(product.ended(id))
            if watching and next(numbers) % WATCHED_EVERY == 0:
                pieces += await product.watch(id)

    for watching in (False, True) * ROUNDS:
        one = partial(submit_and_poll, watching=watching)
        rates[watching].append((await closed_loop(load.at_once, load.of_product, one)).per_second)
    assert pieces, "no viewer saw a piece of text"
    return f"{load.at_once} in flight, a viewer of every tenth: {shares(rates)}"


async def share_with_faults(product: Product, engine_url: str, load: _Load) -> str:
    """The rates with and without faults of the engine, and their ratio."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    async with httpx.AsyncClient(base_url=engine_url) as engine:
        for faulty in (False, True) * ROUNDS:
            script = {"faults": FAULTS if faulty else ()}
            (await engine.post("/simulator/script", json=script)).raise_for_status()
            rates[faulty].append((await closed_loop(load.at_once, load.of_product, product.once)).per_second)
    return f"{load.at_once} in flight, a tenth of the replies faulty: {shares(rates)}"


def shares(rates: dict[bool, list[float]]) -> str:
    without, changed = (", ".join(f"{rate:.0f}" for rate in each) for each in rates.values())
    share = statistics.median(b / a for a, b in zip(*rates.values(), strict=True))
    return f"{changed}/s, and {without}/s without, {share:.2f}"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--watched", action="store_true", help="Only compare rates with and without viewers")
    options.add_argument(
        "--faults", action="store_true", help="Only compare rates with and without faults of the engine"
    )
    options.add_argument("--agents", choices=get_args(AgentRunner), default="ray", help="Where the agents run")
    asked = options.parse_args()
    uvloop.run(main(asked.agents, watched=asked.watched, faults=asked.faults))
