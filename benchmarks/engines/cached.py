"""`python -m benchmarks.engines.cached [URL]`: the share of prompt tokens that one real engine finds in its cache.

URL is a vLLM with prefix caching and `--enable-prompt-tokens-details`. Without it, vLLM starts on the CPU with the tiny
model of `make test-vllm`. Its weights are RANDOM: the answers are noise of a length that no real model has, and the
share depends on that length.
Councils run one after another, each with a task of its own. Retries of invalid answers are not counted.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from app.deliberation.specification import Specification
from benchmarks.engines.councils import Figures, Product, bounded, run
from benchmarks.prefix import ROLES, STRATEGIES_SHOWN
from tests.vllm.server import vllm_server


def measured(url: str, strategy: str, councils: int, max_tokens: int) -> Figures:
    """The figures of councils of one strategy; the first of them finds only what other strategies left."""
    size = STRATEGIES_SHOWN[strategy]
    start = 1_000 * (1 + list(STRATEGIES_SHOWN).index(strategy))
    asked = [bounded(start + number, strategy, size, max_tokens) for number in range(councils)]
    return asyncio.run(_run(url, size, asked))


async def _run(url: str, size: int, asked: list[Specification]) -> Figures:
    return await run(Product([url], ROLES[:size]), asked, at_once=1)


def show(url: str, strategies: list[str], councils: int, max_tokens: int, title: str) -> None:
    """Print a row for each strategy."""
    table = Table("strategy", "agents", "councils", "failed", "prompt tokens", "cached share", "retries", title=title)
    for strategy in strategies:
        found = measured(url, strategy, councils, max_tokens)
        table.add_row(
            strategy,
            str(STRATEGIES_SHOWN[strategy]),
            str(found.councils),
            str(found.failed),
            f"{found.prompt_tokens:,}",
            f"{found.cached_share:.3f}",
            str(found.retries),
        )
    Console(width=110).print(table)


def main() -> None:
    """Read the options and measure."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("url", nargs="?")
    options.add_argument("--councils", type=int, default=5)
    options.add_argument("--max-tokens", type=int, default=1_024)
    options.add_argument(
        "--strategies", nargs="+", choices=STRATEGIES_SHOWN, default=["council", "debate", "vote", "fuse"]
    )
    given = options.parse_args()
    if given.url:
        show(given.url, given.strategies, given.councils, given.max_tokens, given.url)
        return
    with tempfile.TemporaryDirectory() as directory, vllm_server(Path(directory) / "vllm.log") as engine:
        title = "vLLM on the CPU with RANDOM weights: answers are noise"
        show(engine.url, given.strategies, given.councils, given.max_tokens, title)


if __name__ == "__main__":
    main()
