"""Prompts and completions as values: what the model reads, and what it writes for a given seed.

A completion depends on the server's seed, the model's name, the request's seed, messages and constraint, the behaviour
and the length that the script fixes; never on time or order.
"""

import json
from dataclasses import dataclass, replace

from serve_deployments.simulator.author import Author, pure_behaviour
from serve_deployments.simulator.dice import Dice, digest
from serve_deployments.simulator.errors import bad_request
from serve_deployments.simulator.faults import FaultKind
from serve_deployments.simulator.json_values import generate
from serve_deployments.simulator.patterns import PatternUnsupported, draw_match
from serve_deployments.simulator.reading import Reading
from serve_deployments.simulator.requests import Constraint, Work
from serve_deployments.simulator.schemas import SchemaRefused
from serve_deployments.simulator.script import Script
from serve_deployments.simulator.tokens import split_blocks, tokenize

_ENCODE = json.JSONEncoder(ensure_ascii=False).encode
# Without a bound a real model may ramble on; the simulated one has said what it has to say.
_UNBOUND_REGEX_CHARS = 200


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation as the model reads it. `blocks` are its pieces of 16 tokens."""

    rendered: str
    texts: tuple[str, ...]
    tokens: int
    blocks: list[str]


@dataclass(frozen=True, slots=True)
class Completion:
    """One choice: its place in the answer, its tokens (joined they are the text), and why it ended."""

    index: int
    tokens: list[str]
    finish_reason: str = "stop"
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        """What was written."""
        return "".join(self.tokens)


def render(conversation: tuple[tuple[str, str], ...], *, generation: bool = True) -> Prompt:
    """The conversation in a chat template like ChatML, ready for the assistant's turn unless told otherwise."""
    turns = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in conversation)
    rendered = f"{turns}<|im_start|>assistant\n" if generation else turns
    tokens, blocks = split_blocks(rendered)
    return Prompt(rendered, tuple(text for _, text in conversation), tokens, blocks)


class Model:
    """The simulated model: a name, a seed and a context length."""

    def __init__(self, name: str, seed: int, max_model_len: int) -> None:
        self.name = name
        self.seed = seed
        self.max_model_len = max_model_len

    def complete(self, work: Work, prompts: list[Prompt], script: Script, fault: FaultKind | None) -> list[Completion]:
        """All choices of a request. Refusal (400) when its constraint cannot be met."""
        several = len(prompts) > 1
        return [
            self._choice(work, prompt, place if several else sequence, sequence, script, fault)
            for place, prompt in enumerate(prompts)
            for sequence in range(work.sequences)
        ]

    def _choice(
        self, work: Work, prompt: Prompt, index: int, sequence: int, script: Script, fault: FaultKind | None
    ) -> Completion:
        if fault is FaultKind.EMPTY:
            return Completion(index, [])
        constraint = work.constraint
        asked = "" if constraint is None else f"{constraint.choice}{constraint.regex}{_ENCODE(constraint.schema)}"
        key = digest(self.seed, self.name, work.seed, prompt.rendered, asked, sequence)
        behaviour = pure_behaviour(script.behaviour, key)
        dice = Dice(key, behaviour, script.tokens)
        terse_words = None if script.tokens is None else max(1, script.tokens // 8)
        author = Author(Reading("\n\n".join(prompt.texts), prompt.texts[-1]), behaviour, dice, terse_words)
        room = min(work.max_tokens or self.max_model_len, self.max_model_len - prompt.tokens)
        if constraint is None:
            fixed = room if work.ignore_eos else script.tokens
            tokens = tokenize(author.answer()) if fixed is None else _exactly(author, fixed)
        else:
            text = _constrained(constraint, author, dice)
            if fault is FaultKind.BAD_JSON and constraint.schema is not None:
                text = text[: len(text) * 2 // 3] + " … and so on, as said."
            tokens = tokenize(text)
            if script.tokens is not None and constraint.schema is not None:
                # JSON may end in white space: so a fixed length holds for structured answers too.
                tokens += [" "] * (script.tokens - len(tokens))
        return _ended(Completion(index, tokens), work, room, truncated=fault is FaultKind.TRUNCATE)


def _constrained(constraint: Constraint, author: Author, dice: Dice) -> str:
    if constraint.choice:
        chosen = author.option(("choice",), constraint.choice)
        return dice.pick(constraint.choice) if chosen is None else constraint.choice[chosen]
    try:
        if constraint.regex is not None:
            return draw_match(constraint.regex, dice, length_max=_UNBOUND_REGEX_CHARS, whole=True)
        assert constraint.schema is not None
        return _ENCODE(generate(constraint.schema, dice, author))
    except PatternUnsupported as exc:
        raise bad_request(f"structured_outputs.regex is not simulated: {exc}", "structured_outputs") from exc
    except SchemaRefused as exc:
        raise bad_request(f"The JSON schema is not supported by the simulator: {exc}", "response_format") from exc


def _exactly(author: Author, count: int) -> list[str]:
    sentences = author.prose.filler()
    tokens = tokenize(" ".join(sentences))
    while len(tokens) < count:
        tokens += tokenize("\n\n" + " ".join(sentences))
    return tokens[:count]


def _ended(completion: Completion, work: Work, room: int, *, truncated: bool) -> Completion:
    tokens = completion.tokens
    if truncated:
        return replace(completion, tokens=tokens[: len(tokens) // 2], finish_reason="length")
    if work.stop:
        text = completion.text
        found = [(text.find(stop), stop) for stop in work.stop if stop in text]
        if found:
            place, stop = min(found)
            kept = tokenize(text[: place + (len(stop) if work.keep_stop else 0)])
            if len(kept) <= room:
                return replace(completion, tokens=kept, stop_reason=stop)
    if len(tokens) > room:
        return replace(completion, tokens=tokens[:room], finish_reason="length")
    if work.ignore_eos and len(tokens) == room:
        return replace(completion, finish_reason="length")
    return completion
