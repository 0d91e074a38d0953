"""`python -m benchmarks.gpu_limit [--model 8B] [--card H100]`: deliberations a second that one GPU can serve at most.

A roofline: figures of the model and the card, prompts of the product, texts SIMULATED; nothing runs on a GPU.

    rate    = 1 / (prefill + max(weights + cache, written))        latency = prefill + weights · C + cache
    prefill = 2 · parameters · computed tokens / F                 written = 2 · parameters · written tokens / F
    weights = decode steps · weight bytes / (B · C)                cache   = cached tokens read · cache bytes / B

F is the usable share of the card's dense BF16 rate, B its memory bandwidth, C the deliberations at once. A stage takes
as many decode steps as its longest answer has tokens. In each step, each call reads the cache of its prompt and of what
it has written. With shared-prefix decode, off in vLLM by default, a stage's common beginning is read once a step.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from rich.console import Console
from rich.table import Table

from benchmarks.prefill import Floors, pieces
from benchmarks.prefix import ROLES, SIZES, Sent, specification, stages
from serve_deployments.simulator.server.engine import PrefixCache
from serve_deployments.simulator.writer.tokens import BLOCK_TOKENS, split_blocks

SAMPLE = 20
"""Deliberations in each mean."""


@dataclass(frozen=True, slots=True)
class Model:
    """A dense model in BF16. `cache_bytes` are those of keys and values for each token, in all layers."""

    parameters: float
    layers: int
    kv_heads: int
    head_size: int

    @property
    def weight_bytes(self) -> float:
        return 2 * self.parameters

    @property
    def cache_bytes(self) -> int:
        return 2 * 2 * self.layers * self.kv_heads * self.head_size


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU by its vendor's data sheet: dense BF16 operations a second, bytes a second of its memory, and its bytes."""

    flops: float
    bandwidth: float
    memory: float


# Llama 3.1 8B and Qwen3 32B, by their configurations.
MODELS = {"8B": Model(8.03e9, 32, 8, 128), "32B": Model(32.8e9, 64, 8, 128)}
CARDS = {
    "A100": Card(312e12, 2.039e12, 80e9),
    "H100": Card(989e12, 3.35e12, 80e9),
    "H200": Card(989e12, 4.8e12, 141e9),
}


@dataclass(slots=True)
class Load:
    """The means of a deliberation, in tokens. `held` are the cached tokens of its largest stage."""

    sent: float = 0
    computed: float = 0
    written: float = 0
    steps: float = 0
    read: float = 0
    read_shared: float = 0
    held: float = 0

    def add(self, stage: Sequence[Sent], part: float) -> None:
        """Add a stage to the mean with the weight `part`; `load_of` adds the computed tokens."""
        whole = (each.prompt.blocks[: each.prompt.tokens // BLOCK_TOKENS] for each in stage)
        shared = BLOCK_TOKENS * sum(1 for _ in takewhile(lambda place: len(set(place)) == 1, zip(*whole, strict=False)))
        steps = max(each.completion_tokens for each in stage)
        self.steps += part * steps
        self.read_shared += part * shared * steps
        for each in stage:
            prompt, written = each.prompt.tokens, each.completion_tokens
            own = written * written / 2
            self.sent += part * prompt
            self.written += part * written
            self.read += part * (written * prompt + own)
            self.read_shared += part * (written * (prompt - shared) + own)
        held = shared + sum(each.prompt.tokens - shared + each.completion_tokens for each in stage)
        self.held = max(self.held, held)


def with_instructions_first(asked: Sequence[Sequence[Sent]]) -> list[list[Sent]]:
    """The prompts of a deliberation in another layout: all instructions after the rules, their headings in place."""
    split = [[list(pieces(each.prompt.rendered)) for each in stage] for stage in asked]
    shown = (piece.shown for stage in split for prompt in stage for piece in prompt if piece.kind == "instructions")
    instructions = "".join(dict.fromkeys(shown))

    def moved(each: Sent) -> Sent:
        rules, *rest = pieces(each.prompt.rendered)
        headings = (
            piece.shown.partition("\n")[0] + "\n" if piece.kind == "instructions" else piece.shown for piece in rest
        )
        rendered = rules.shown + instructions + "".join(headings)
        tokens, blocks = split_blocks(rendered)
        return replace(each, prompt=replace(each.prompt, rendered=rendered, tokens=tokens, blocks=blocks))

    return [[moved(each) for each in stage] for stage in asked]


def load_of(
    strategy: str, size: int, task_tokens: int, *, one_role: bool = False, instructions_first: bool = False
) -> tuple[Load, Floors]:
    """The mean load of deliberations one after another, and their floors in all; agents have a role each, or one."""
    load, floors, cache = Load(), Floors(), PrefixCache()
    for number in range(SAMPLE):
        asked = specification(number, strategy, size, ROLES[: 1 if one_role else size], task_tokens)
        sent = list(stages(asked))
        for place, stage in enumerate(sent):
            for each in stage:
                floors.add(number, place, each.prompt.rendered)
        for stage in with_instructions_first(sent) if instructions_first else sent:
            load.add(stage, 1 / SAMPLE)
            for each in stage:
                hits = cache.admit(each.prompt.blocks, each.prompt.tokens, None)
                load.computed += (each.prompt.tokens - hits) / SAMPLE
    return load, floors


@dataclass(frozen=True, slots=True)
class Limit:
    """The least seconds of a deliberation's parts on one GPU."""

    prefill: float
    weights: float
    cache: float
    written: float
    at_once: int

    @property
    def rate(self) -> float:
        return 1 / (self.prefill + max(self.weights + self.cache, self.written))

    @property
    def latency(self) -> float:
        return self.prefill + self.weights * self.at_once + self.cache


def limit(load: Load, computed: float, read: float, model: Model, card: Card, at_once: int, usable: float) -> Limit:
    """The limit where so many tokens are computed and so many cached ones read."""
    per_token = 2 * model.parameters / (card.flops * usable)
    return Limit(
        prefill=per_token * computed,
        weights=load.steps * model.weight_bytes / (card.bandwidth * at_once),
        cache=read * model.cache_bytes / card.bandwidth,
        written=per_token * load.written,
        at_once=at_once,
    )


def rows(load: Load, floors: Floors, layout: str) -> Iterator[tuple[str, float, float]]:
    """By case: the computed tokens, and the cached tokens that are read."""
    yield "no prefix cache", load.sent, load.read
    yield layout, load.computed, load.read
    yield "floor, texts in order", floors.in_order / SAMPLE, load.read
    yield "floor, each text once", floors.once / SAMPLE, load.read
    yield f"{layout}, shared-prefix decode", load.computed, load.read_shared


def main() -> None:
    """Read the options, and print the limit by case."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", choices=MODELS, default="8B")
    options.add_argument("--card", choices=CARDS, default="H100")
    options.add_argument("--strategy", choices=SIZES, default="council")
    options.add_argument("--agents", type=int, choices=range(1, len(ROLES) + 1))
    options.add_argument("--one-role", action="store_true", help="all agents have the same role")
    options.add_argument("--instructions-first", action="store_true", help="another layout, see docs/decisions/0074")
    options.add_argument("--task-tokens", type=int, default=2_000)
    options.add_argument("--at-once", type=int, default=50, help="C, the deliberations at once")
    options.add_argument("--usable", type=float, default=0.5, help="the usable share of the card's operations")
    given = options.parse_args()
    model, card = MODELS[given.model], CARDS[given.card]
    size = given.agents or SIZES[given.strategy]
    load, floors = load_of(
        given.strategy, size, given.task_tokens, one_role=given.one_role, instructions_first=given.instructions_first
    )
    layout = "instructions first" if given.instructions_first else "the product's prompts"
    table = Table(
        "case", "computed", "cached share", "prefill ms", "weights ms", "cache ms", "a second", "alone, s",
        title=f"{given.strategy} of {size}, task of {given.task_tokens:,} tokens, {given.model} on one {given.card}, "
        f"C = {given.at_once}: {load.sent:,.0f} prompt tokens, {load.written:,.0f} written in {load.steps:,.0f} steps",
    )  # fmt: skip
    for name, computed, read in rows(load, floors, layout):
        found = limit(load, computed, read, model, card, given.at_once, given.usable)
        share = 1 - computed / load.sent
        parts = (1_000 * seconds for seconds in (found.prefill, found.weights, found.cache))
        cells = (f"{computed:,.0f}", f"{share:.3f}", *(f"{part:,.0f}" for part in parts))
        table.add_row(name, *cells, f"{found.rate:.2f}", f"{found.latency:.1f}")
    Console(width=max(140, Console().width)).print(table)
    held, room = given.at_once * load.held * model.cache_bytes, 0.9 * card.memory - model.weight_bytes
    print(f"The caches of {given.at_once} take {held / 1e9:.1f} GB of the {room / 1e9:.1f} GB beside the weights.")


if __name__ == "__main__":
    main()
