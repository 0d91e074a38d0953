"""`python -m benchmarks.short`: the figures of `make bench` with tokens streamed, in one line, within a minute.

For two checkouts in turn, when the machine is shared. The floor is that of `make bench`; the engine is simulated.
Two options print other lines instead, of rates in turn. `--watched`: while every tenth deliberation has a viewer of its
texts, over the rate without viewers. `--faults`: while a tenth of the engine's replies is faulty, over that without.
"""

import argparse
import asyncio
import os
import statistics
import time
from functools import partial
from itertools import count
from typing import NamedTuple

import httpx
import uvloop

from benchmarks.bench import CALL_MS, Floor, Product, Sample, closed_loop, stack_of

WARM_UP = 100
SUBMITTED, UNCOUNTED = 900, 200


WATCHED_EVERY, ROUNDS = 10, 3
# None with Retry-After, which paces the engine itself.
FAULTS = ("error:0.03", "broken-stream:0.03", "bad-json:0.04")


class _Load(NamedTuple):
    at_once: int
    of_product: int
    of_floor: int


LOADS = _Load(1, 16, 6), _Load(50, 250, 150), _Load(200, 700, 500)


async def main(*, watched: bool, faults: bool) -> None:
    """Start a stack and print its figures."""
    os.environ["STREAM_DELTAS"] = "true"
    async with stack_of(CALL_MS) as stack:
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
        told: list[str] = []
        for load in LOADS:
            least = await closed_loop(load.at_once, load.of_floor, floor.once)
            found = await closed_loop(load.at_once, load.of_product, product.once)
            rate, latency = found.per_second / least.per_second, found.p50_ms / least.p50_ms
            told.append(f"{load.at_once} in flight: rate {rate:.2f} and p50 {latency:.3f} of the floor")
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
    asked = options.parse_args()
    uvloop.run(main(watched=asked.watched, faults=asked.faults))
