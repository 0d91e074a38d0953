"""`python -m benchmarks.short`: the figures of `make bench` with tokens streamed, in one line, within a minute.

For two checkouts in turn, when the machine is shared. The floor is that of `make bench`; the engine is simulated.
"""

import argparse
import os
import time
from typing import NamedTuple

import uvloop

from benchmarks.bench import CALL_MS, Floor, Product, Sample, closed_loop, stack_of

WARM_UP = 100
SUBMITTED, UNCOUNTED = 900, 200


class _Load(NamedTuple):
    at_once: int
    of_product: int
    of_floor: int


LOADS = _Load(1, 16, 6), _Load(50, 250, 150), _Load(200, 700, 500)


async def main() -> None:
    """Start a stack and print its figures."""
    os.environ["STREAM_DELTAS"] = "true"
    async with stack_of(CALL_MS) as stack:
        floor, product = Floor(stack.engine_urls[0]), Product(stack.url)
        await closed_loop(20, WARM_UP, product.once)
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


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    uvloop.run(main())
