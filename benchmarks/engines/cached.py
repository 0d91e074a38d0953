"""`python -m benchmarks.engines.cached [URL]`: the share of prompt tokens that one real engine finds in its cache.

URL is a vLLM with prefix caching and `--enable-prompt-tokens-details`. Without it, vLLM starts on the CPU. With
`--weights random` it serves the tiny model of `make test-vllm`: the answers are noise of a length that no real model
has, and the share depends on that length. With `--weights real` it serves Gemma 3 270M, a base model
(`python -m tests.vllm.real_model`): real ends of texts and real lengths, but **weak, and no measure of quality**.
Every council has a task of its own, and evidence of its own with `--evidence-tokens`. Only councils that end count;
retries of invalid answers do not.
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

WEIGHTS = {
    "random": "vLLM on the CPU with RANDOM weights: answers are noise",
    "real": "vLLM on the CPU with Gemma 3 270M, a weak base model: protocol, order and cost, never quality",
}
COLUMNS = (
    "strategy", "agents", "evidence", "councils", "failed", "tokens each", "cached share", "answer tokens", "retries"
)  # fmt: skip


def measured(url: str, strategy: str, evidence_tokens: int, given: argparse.Namespace) -> Figures:
    """The figures of councils of one strategy; the first of them finds only what other strategies left."""
    size = STRATEGIES_SHOWN[strategy]
    start = 1_000 * (1 + list(STRATEGIES_SHOWN).index(strategy)) + 10_000 * evidence_tokens + given.first
    asked = [
        bounded(start + number, strategy, size, given.max_tokens, evidence_tokens) for number in range(given.councils)
    ]
    return asyncio.run(_run(url, size, asked, given.at_once))


async def _run(url: str, size: int, asked: list[Specification], at_once: int) -> Figures:
    return await run(Product([url], ROLES[:size]), asked, at_once)


def show(url: str, given: argparse.Namespace, title: str) -> None:
    """Print a row for each strategy and length of evidence."""
    table = Table(*COLUMNS, title=title)
    for strategy in given.strategies:
        for evidence_tokens in given.evidence_tokens:
            found = measured(url, strategy, evidence_tokens, given)
            table.add_row(
                strategy,
                str(STRATEGIES_SHOWN[strategy]),
                f"{evidence_tokens:,}",
                str(found.councils),
                str(found.failed),
                f"{found.prompt_tokens / max(1, found.councils):,.0f}",
                f"{found.cached_share:.3f}",
                f"{found.answer_tokens:.0f}",
                str(found.retries),
            )
    Console(width=max(120, Console().width)).print(table)


def main() -> None:
    """Read the options and measure."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("url", nargs="?")
    options.add_argument("--weights", choices=WEIGHTS, default="random")
    options.add_argument("--councils", type=int, default=5)
    options.add_argument("--first", type=int, default=0, help="The first council's number, 0 to 999")
    options.add_argument("--at-once", type=int, default=1)
    options.add_argument("--max-tokens", type=int, default=1_024)
    options.add_argument("--evidence-tokens", type=int, nargs="+", default=[0])
    options.add_argument(
        "--strategies", nargs="+", choices=STRATEGIES_SHOWN, default=["council", "debate", "vote", "fuse"]
    )
    given = options.parse_args()
    if given.url:
        show(given.url, given, given.url)
        return
    real = given.weights == "real"
    with tempfile.TemporaryDirectory() as directory, vllm_server(Path(directory) / "vllm.log", real=real) as engine:
        show(engine.url, given, WEIGHTS[given.weights])


if __name__ == "__main__":
    main()
