"""The least prompt tokens that an engine has to compute, read off the prompts that were sent.

Two floors of deliberations. Both count the rules once in all, the task with its evidence once for each deliberation,
and the instructions of a stage once for each stage. What differs in each call counts for each call: its approach, its
persona and the letter of its own answer. A persona that stands after the rules counts with them.

- `once` counts each text of a peer once for each stage that reads it, in whatever order.
- `in_order` keeps the order in which each prompt shows the texts. What a model computes of a text depends on all that
  stands before it, so a text counts again wherever other texts stand before it.

No floor is rounded to whole blocks. A layout may compute less, if a stage finds texts that an earlier one has read.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from serve_deployments.simulator.writer.tokens import split_blocks

_BEGIN = re.compile(
    r"^(?:(?P<label>[^\n]*\n)(?=<<<peer-text (?P<mark>\w+)>>>\n)(?P<text>.*?\n<<<end-of-peer-text (?P=mark)>>>)"
    r"|# (?P<heading>[^\n:]*))",
    re.MULTILINE | re.DOTALL,
)
_OF_STAGE = frozenset({"Your work", "Your reply", "Form of the reply"})
_GIVEN = ("Evidence ", "# Tests that have to pass")
_PERSONA = "Who you are"
_OF_CALL = frozenset({"Approach", "Your own answer", _PERSONA})

Kind = Literal["rules", "task", "instructions", "text", "call"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a prompt, with its text: equal pieces have the same `key`."""

    kind: Kind
    key: str
    tokens: int
    shown: str


def simulated_tokens(text: str) -> int:
    """The tokens of a text in the simulated model."""
    return split_blocks(text)[0]


def pieces(rendered: str, count: Callable[[str], int] = simulated_tokens) -> Iterator[Piece]:
    """A prompt's pieces in its order; together they are the whole prompt. `count` gives a text's tokens."""
    begins = list(_BEGIN.finditer(rendered))
    if begins and begins[0]["heading"] == _PERSONA:
        # Shared by all prompts, as the rules before it are.
        del begins[0]
    ends = [found.start() for found in begins[1:]] + [len(rendered)]
    rules = rendered[: begins[0].start() if begins else None]
    yield Piece("rules", rules, count(rules), rules)
    for found, end in zip(begins, ends, strict=True):
        shown = rendered[found.start() : end]
        tokens = count(shown)
        match found["heading"], found["label"]:
            case str(heading), _ if heading in _OF_STAGE:
                yield Piece("instructions", heading, tokens, shown)
            case str(heading), _ if heading in _OF_CALL:
                yield Piece("call", heading, tokens, shown)
            case str(heading), _:
                yield Piece("task", heading, tokens, shown)
            case _, label:
                yield Piece("task" if label.startswith(_GIVEN) else "text", found["text"], tokens, shown)


@dataclass
class Floors:
    """The two floors of deliberations on one engine, in tokens by `count`."""

    count: Callable[[str], int] = simulated_tokens
    once: int = 0
    in_order: int = 0
    _seen: set[tuple[object, ...]] = field(default_factory=set[tuple[object, ...]])

    def add(self, deliberation: int, stage: int, rendered: str) -> None:
        """Count the pieces of a prompt that earlier prompts lack."""
        read: tuple[str, ...] = ()
        for piece in pieces(rendered, self.count):
            match piece.kind:
                case "rules":
                    new = ordered = self._first(piece.key)
                case "task":
                    new = ordered = self._first(deliberation, piece.key)
                case "instructions":
                    new = ordered = self._first(deliberation, stage, piece.key)
                case "text":
                    read = (*read, piece.key)
                    new, ordered = self._first(deliberation, stage, piece.key), self._first(deliberation, stage, read)
                case "call":
                    new = ordered = True
            self.once += new * piece.tokens
            self.in_order += ordered * piece.tokens

    def _first(self, *key: object) -> bool:
        known = key in self._seen
        self._seen.add(key)
        return not known
