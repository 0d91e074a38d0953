"""`python -m benchmarks.engines.gpu URL…`: councils per GPU-minute, beside a bare script that places calls at random.

Each URL is a vLLM replica on a GPU of its own, started as in deploy/compose/gpu.yaml. Both sides ask for the same
strategies, prompts and seeds, in turn, with tasks that no earlier council had. NOT RUN ON A GPU YET: it was tried
against simulators, whose figures say nothing about a GPU.
"""

import argparse
import asyncio
from collections.abc import Sequence
from statistics import median, quantiles

import httpx
from rich.console import Console
from rich.table import Table

from app.deliberation.specification import Specification
from benchmarks.engines.councils import Bare, Figures, Product, Side, bounded, run
from benchmarks.prefix import ROLES

STRIDE = 100_000
"""Between the tasks of two rounds, so that none of them is in a cache."""


def model_of(url: str) -> str:
    """The first model that an engine serves."""
    return str(httpx.get(f"{url}/v1/models", timeout=10).raise_for_status().json()["data"][0]["id"])


def side_of(name: str, urls: Sequence[str], size: int, number: int) -> Side:
    """The product, or the bare script with a placement of its own in each round."""
    return Product(urls, ROLES[:size]) if name == "product" else Bare(urls, model_of(urls[0]), seed=number)


def row(name: str, found: Figures, engines: int) -> list[str]:
    """A side's figures as cells."""
    per_minute = 60 * found.councils / found.elapsed_s / engines
    ttft_ms = [1_000 * seconds for seconds in found.ttft_s] or [float("nan")]
    p95 = quantiles(ttft_ms, n=20)[-1] if len(ttft_ms) > 1 else ttft_ms[0]
    share = f"{found.cached_share:.3f}"
    return [
        name,
        str(found.councils),
        str(found.failed),
        f"{per_minute:.2f}",
        share,
        f"{median(ttft_ms):.0f}",
        f"{p95:.0f}",
        str(found.retries),
    ]


def main() -> None:
    """Read the options, measure in rounds, and print each round."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("urls", nargs="+", metavar="URL")
    options.add_argument("--strategy", default="council")
    options.add_argument("--agents", type=int, default=3, choices=range(2, len(ROLES) + 1))
    options.add_argument("--councils", type=int, default=200)
    options.add_argument("--at-once", type=int, default=50)
    options.add_argument("--max-tokens", type=int, default=1_024)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    urls = [url.rstrip("/").removesuffix("/v1") for url in given.urls]
    table = Table(
        "side", "councils", "failed", "per GPU-minute", "cached share", "TTFT p50 ms", "TTFT p95 ms", "retries",
        title=f"{len(urls)} engines, {given.strategy} of {given.agents}, {given.at_once} at once",
    )  # fmt: skip
    for number in range(given.rounds):
        # The side that begins changes, because engines warm up.
        for place, name in enumerate(("product", "bare script")[:: 1 if number % 2 == 0 else -1]):
            first = STRIDE * (2 * number + place + 1)
            asked = [
                bounded(first + council, given.strategy, given.agents, given.max_tokens)
                for council in range(given.councils)
            ]
            found = asyncio.run(_measured(name, urls, given.agents, number, asked, given.at_once))
            table.add_row(*row(name, found, len(urls)))
    Console(width=max(120, Console().width)).print(table)


async def _measured(
    name: str, urls: Sequence[str], size: int, number: int, asked: list[Specification], at_once: int
) -> Figures:
    return await run(side_of(name, urls, size, number), asked, at_once)


if __name__ == "__main__":
    main()
