"""Prompts and completions as values, which depend on settings, script and request; never on time or order."""

import json
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

from serve_deployments.simulator.lacks import Lack
from serve_deployments.simulator.script import FaultKind, Script
from serve_deployments.simulator.server.exchange import bad_request
from serve_deployments.simulator.server.requests import ANY_OBJECT, CompletionRequest, Conversation, output_form
from serve_deployments.simulator.writer.chance import digest
from serve_deployments.simulator.writer.outputs import OutputWriter
from serve_deployments.simulator.writer.prompt import PromptReader
from serve_deployments.simulator.writer.schema_values import SchemaUnsupported
from serve_deployments.simulator.writer.tokens import split_blocks, tokenize
from serve_deployments.simulator.writer.tool_calls import OfferedTool, listed_tools, next_call

SchedulingPolicy = Literal["fcfs", "priority"]

_BEFORE = tokenize("Here is the answer that you asked for:\n\n```json\n")
_AFTER = tokenize("\n```\n\nIt follows the schema.")
_ENCODE = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class SimulatorSettings:
    """The settings that are fixed for a simulator's life; `running_max` bounds the sequences that run at once."""

    model: str = "simulated-council-8b"
    seed: int = 0
    max_model_len: int = 32_768
    running_max: int | None = None
    scheduling_policy: SchedulingPolicy = "priority"
    controls: bool = True
    script: Script = field(default_factory=Script)


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    rendered: str
    texts: tuple[str, ...]
    tokens: int
    blocks: list[str]


@dataclass(frozen=True, slots=True)
class CompletionChoice:
    index: int
    tokens: list[str]
    finish_reason: str = "stop"
    # The name of the tool that it calls; its tokens are the arguments then.
    tool: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.tokens)


@dataclass(frozen=True, slots=True)
class Generation:
    request: CompletionRequest
    prompt: RenderedPrompt
    choices: list[CompletionChoice]
    due_times_s: list[list[float]]
    script: Script
    fault: FaultKind | None


def render(conversation: Conversation, *, generation: bool = True) -> RenderedPrompt:
    turns = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in conversation)
    rendered = f"{turns}<|im_start|>assistant\n" if generation else turns
    tokens, blocks = split_blocks(rendered)
    return RenderedPrompt(rendered, tuple(text for _, text in conversation), tokens, blocks)


def complete(
    settings: SimulatorSettings,
    request: CompletionRequest,
    prompt: RenderedPrompt,
    script: Script,
    fault: FaultKind | None,
) -> list[CompletionChoice]:
    form = None if Lack.RESPONSE_FORMAT in script.lacks else output_form(request)
    if fault is None and (called := _called(request, prompt, script, form)) is not None:
        return called
    choices: list[CompletionChoice] = []
    room = settings.max_model_len - prompt.tokens
    room = room if request.limit is None else min(request.limit, room)
    for sequence in range(request.sequences):
        tokens: list[str] = []
        if fault is not FaultKind.EMPTY:
            drawn_from, place = request.seed_of(sequence)
            key = digest(settings.seed, settings.model, drawn_from, prompt.rendered, form, place)
            fixed = room if request.ignore_eos and form is None else script.tokens
            # A schema at the end of the prompt is followed too; a model that nothing binds adds words of its own.
            asked = PromptReader(prompt.texts).schema if form is None or form == ANY_OBJECT else None
            tokens = _tokens(_writer(prompt, script, key), asked or form, fixed, fault)
            if asked is not None and form is None:
                tokens = [*_BEFORE, *tokens, *_AFTER]
        choices.append(_ended(CompletionChoice(sequence, tokens), request, room, fault))
    return choices


def _called(
    request: CompletionRequest, prompt: RenderedPrompt, script: Script, form: dict[str, Any] | None
) -> list[CompletionChoice] | None:
    """The tool call of a completion, also as an object where the form asks for one; None without tools.

    Without a further call the object names none.
    """
    asked = form is not None and any("tool" in branch.get("properties", ()) for branch in form.get("anyOf", ()))
    if not request.tools and not asked:
        return None
    offered = [OfferedTool(tool.function.name, tool.function.parameters) for tool in request.tools or ()]
    scripted = [(scripted_call.name, scripted_call.arguments) for scripted_call in script.tool_calls]
    call = next_call(offered or listed_tools(prompt.texts), prompt.texts, scripted, script.tool_uses)
    if asked:
        text = '{"tool":null}' if call is None else call.as_object
        return [CompletionChoice(sequence, tokenize(text)) for sequence in range(request.sequences)]
    if call is None:
        return None
    tokens = tokenize(call.arguments)
    return [CompletionChoice(sequence, tokens, "tool_calls", call.name) for sequence in range(request.sequences)]


def _writer(prompt: RenderedPrompt, script: Script, key: bytes) -> OutputWriter:
    chance = Random(digest(key, script.behaviour, script.tokens))
    words_max = None if script.tokens is None else max(1, script.tokens // 8)
    return OutputWriter(PromptReader(prompt.texts), script.behaviour, chance, words_max)


def _tokens(writer: OutputWriter, form: dict[str, Any] | None, fixed: int | None, fault: FaultKind | None) -> list[str]:
    if form is None and fixed is None:
        return tokenize(writer.text())
    if form is None:
        # The filler has more than 100 tokens.
        return tokenize(f"{writer.filler()}\n\n" * ((fixed or 0) // 100 + 1))[:fixed]
    try:
        text = _ENCODE(writer.document(form))
    except SchemaUnsupported as exc:
        raise bad_request(f"The JSON schema is not supported by the simulator: {exc}", "response_format") from exc
    if fault is FaultKind.BAD_JSON:
        text = text[: len(text) * 2 // 3] + " … and so on, as said."
    tokens = tokenize(text)
    # JSON may end in white space, so a fixed length holds for structured answers too.
    return tokens + [" "] * ((fixed or 0) - len(tokens))


def _ended(
    choice: CompletionChoice, request: CompletionRequest, room: int, fault: FaultKind | None
) -> CompletionChoice:
    tokens = choice.tokens
    if fault is FaultKind.TRUNCATE:
        return replace(choice, tokens=tokens[: len(tokens) // 2], finish_reason="length")
    if len(tokens) > room or (request.ignore_eos and len(tokens) == room):
        return replace(choice, tokens=tokens[:room], finish_reason="length")
    return choice
