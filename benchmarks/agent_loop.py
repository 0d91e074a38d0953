"""`python -m benchmarks.agent_loop`: the cached share of prompt tokens in an agent's loop of 30 turns.

SIMULATED: conversations, prompts and seeds are the product's; texts and cache (vLLM's blocks of 16 tokens) the
simulator's. The ideal computes each message of the conversation once on an engine, and the work of a stage for each
call.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pydoc_data.topics import topics

from rich.console import Console
from rich.table import Table

from app.deliberation.conversation import CallTurn, ConversationTurn, said_with_calls, task_of
from app.deliberation.specification import Actions, ActionTool
from benchmarks.prefill import simulated_tokens
from benchmarks.prefix import ROLES, Sent, specification, stages
from serve_deployments.simulator.server.engine import PrefixCache

Admit = Callable[[Sent], tuple[int, int]]
"""Has an engine read a prompt; returns its tokens, and those that the engine found in its cache."""

TURNS = 30
RESULT_CHARS = 1_200
MEMBERS = {"single": 1, "vote": 3, "auto": 3, "best_of_n": 3}
_WORK = "\n\n# Your work"
_SEARCH = ActionTool(
    name="search",
    description="Search the documentation.",
    parameters={"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]},
)


def loop(result_chars: int = RESULT_CHARS) -> Iterator[list[ConversationTurn]]:
    """The conversation at each turn: a question, then a call and its result more each time."""
    asked = "\n".join(f'search({{"page": {page}}})' for page in range(TURNS))
    turns = [
        ConversationTurn("system", None, "You answer from the documentation alone."),
        ConversationTurn("user", None, f"Read these pages, one after the other.\n{asked}"),
    ]
    helped = "\n".join(topics.values())
    for page in range(TURNS):
        yield turns
        call = CallTurn(f"call_{page}", "search", json.dumps({"page": page}))
        found = helped[page * result_chars : (page + 1) * result_chars]
        turns = [
            *turns,
            ConversationTurn("assistant", None, said_with_calls("", [call])),
            ConversationTurn("tool", call.id, found),
        ]


def sent_at(turns: Sequence[ConversationTurn], number: int, strategy: str, size: int) -> Iterator[Sent]:
    asked = specification(number, strategy, size, ROLES[:1])
    constraints = asked.constraints.model_copy(update={"actions": Actions(tools=(_SEARCH,), calls_max=1)})
    changed = {"task": task_of(turns), "turns": len(turns), "constraints": constraints}
    for stage in stages(asked.model_copy(update=changed)):
        yield from stage


def simulated() -> Admit:
    """An engine with a cache of its own, which the simulator counts."""
    cache = PrefixCache(1 << 20)
    return lambda sent: (sent.prompt.tokens, cache.admit(sent.prompt.blocks, sent.prompt.tokens, None))


def shares(
    strategy: str,
    size: int,
    admit: Admit,
    count: Callable[[str], int] = simulated_tokens,
    result_chars: int = RESULT_CHARS,
) -> tuple[int, float, float]:
    """The prompt tokens of a loop, their cached share, and the ideal one; `count` gives a text's tokens."""
    known = set[str]()
    prompt_tokens = cached = floor = 0
    for number, turns in enumerate(loop(result_chars)):
        for sent in sent_at(turns, number, strategy, size):
            tokens, found = admit(sent)
            prompt_tokens, cached = prompt_tokens + tokens, cached + found
            said, _, work = sent.prompt.rendered.rpartition(_WORK)
            # A message that grows by another one at its end has the beginning in common.
            new = next(
                (
                    said[len(beginning) :]
                    for beginning in sorted(known, key=len, reverse=True)
                    if said.startswith(beginning)
                ),
                said,
            )
            known.add(said)
            floor += count(new) + count(_WORK + work)
    return prompt_tokens, cached / prompt_tokens, 1 - floor / prompt_tokens


def main() -> None:
    argparse.ArgumentParser(description="The cached share of an agent's loop").parse_args()
    table = Table("strategy, members", "prompt tokens", "cached", "ideal", "cached ÷ ideal", title="SIMULATED")
    for strategy, size in MEMBERS.items():
        tokens, achieved, ideal = shares(strategy, size, simulated())
        table.add_row(
            f"{strategy}, {size}", f"{tokens:,}", f"{achieved:.4f}", f"{ideal:.4f}", f"{achieved / ideal:.4f}"
        )
    Console(width=max(100, Console().width)).print(table)


if __name__ == "__main__":
    main()
