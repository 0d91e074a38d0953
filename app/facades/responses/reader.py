"""The request of a response, and the deliberation that it asks for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from app.api.action_requests import (
    CALL_ID_PATTERN,
)
from app.api.problems import ValidationFailed, body_fault, refused
from app.api.request_model import (
    MaybeWhole,
    RequestModel,
)
from app.api.requests import (
    FILE_ID_PREFIX,
    INLINE_CHARS_MAX,
    SEED_MAX,
)
from app.deliberation.actions import arguments_json
from app.deliberation.conversation import CallTurn, ConversationTurn, said_with_calls, turns_of
from app.deliberation.facts import Action
from app.deliberation.fold import State
from app.facades import openai_requests as openai
from app.facades.message_content import FilePart, MessageContent, OpenAIContent, evidence_of, mark_of, placed
from app.facades.openai_requests import Unsupported
from app.facades.outcomes import NoVerdict, actions

ITEMS_MAX = 1_024
_Included = Annotated[list[Literal["reasoning.encrypted_content"]], Field(max_length=1)]
KINDS = ("input_text", "output_text", "text")
# The fields of a function that a response always has. Arguments satisfy their schema with and without `strict`.
_TOLD = {"description": None, "parameters": None, "strict": True}
# The turn of a conversation that has the instructions; those of an earlier response are not carried over.
INSTRUCTIONS = ("system", "instructions")
# The name of this façade's part of what an acceptance repeats.
ASKED = "responses"
# The acceptance keeps the fields that a response repeats, because no other fact has them.
REPEATED = frozenset(
    {"background", "store", "previous_response_id", "max_output_tokens", "text", "reasoning", "truncation"}
    | {"safety_identifier", "prompt_cache_key", "tools", "tool_choice", "parallel_tool_calls"}
)


class InputItem(RequestModel, extra="ignore"):
    """A message, a call of a function, what the call returned, or a reference to an item of an earlier response.

    Reasoning, and uses of the council's own tools, are ignored.
    """

    type: Literal["message", "item_reference", "reasoning", "mcp_call", "function_call", "function_call_output"] = (
        "message"
    )
    id: str | None = Field(default=None, max_length=128, description="Of the item that is referred to")
    role: Literal["system", "developer", "user", "assistant"] | None = Field(default=None, description="Of a message")
    content: Annotated[MessageContent, OpenAIContent(*KINDS)] = Field(default_factory=MessageContent)
    call_id: str | None = Field(
        default=None, max_length=128, pattern=CALL_ID_PATTERN, description="Of a call, and of what it returned"
    )
    name: str | None = Field(default=None, max_length=64, description="Of the function")
    arguments: str = Field(default="", description="Of the call, as JSON")
    output: Annotated[MessageContent, OpenAIContent(*KINDS)] = Field(
        default_factory=MessageContent, description="What the call returned"
    )

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.type in ("function_call", "function_call_output") and self.call_id is None:
            raise refused("missing", "The item names no call", "Give call_id.")
        if self.type == "function_call" and self.name is None:
            raise refused("missing", "The call names no function", "Give name.")
        if self.type == "message" and self.role is None and not self.refers:
            raise refused("missing", "The message has no role", "Give system, developer, user or assistant.")
        if self.type == "item_reference" and self.id is None:
            raise refused("missing", "The reference has no id", "Give the id of a message of an earlier response.")
        return self

    @property
    def refers(self) -> bool:
        """Whether it stands for the item with its id; the type of a reference may lack."""
        alone = self.type == "message" and self.role is None and not self.content.text
        return self.id is not None and (alone or self.type == "item_reference")

    @property
    def turn(self) -> ConversationTurn | None:
        """The turn of the conversation that it is; None for what is ignored."""
        match self.type:
            case "message" if self.role is not None:
                return ConversationTurn(self.role, None, self.content.text)
            case "function_call":
                called = CallTurn(self.call_id or "", self.name or "", self.arguments)
                return ConversationTurn("assistant", None, said_with_calls("", [called]))
            case "function_call_output":
                return ConversationTurn("tool", self.call_id, self.output.text)
            case _:
                return None


def _listed(written: object) -> object:
    return [{"role": "user", "content": written}] if isinstance(written, str) else written


class TextFormat(openai.JsonSchemaFormat):
    """The form of the answer: a text, any JSON object, or with `json_schema` an object that satisfies the schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = Field(default="", pattern=r"^[A-Za-z0-9_-]{0,64}$")

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        if self.type == "json_schema" and not self.name:
            raise refused("invalid_value", "The type json_schema needs a name", "Give name and schema.")
        return self

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        return None if self.type == "text" else self.json_schema or {"type": "object"}


class ResponseText(RequestModel):
    """The form of the answer."""

    format: TextFormat | None = None
    verbosity: openai.IgnoredField = None


class ResponseReasoning(RequestModel):
    """The part of the work that a response shows."""

    summary: Literal["auto", "concise", "detailed"] | None = Field(
        default=None, description="`auto` and `detailed`: every member's work; else a line for each stage"
    )
    effort: openai.IgnoredField = None
    generate_summary: openai.IgnoredField = None
    context: openai.IgnoredField = None
    mode: openai.IgnoredField = None


class ResponseOptions(openai.DeliberationOptions):
    """Fields of a deliberation that OpenAI's fields lack, with the bounds of `POST /deliberations`."""

    seed: MaybeWhole = Field(default=None, ge=0, le=SEED_MAX)


_EXAMPLES: list[Any] = [
    {"model": "council/DEV", "input": "Merge two sorted lists.", "instructions": "Answer in Python."},
    {"model": "council", "input": "Merge two sorted lists.", "background": True},
]


class CreateResponseRequest(openai.CouncilRequest, json_schema_extra={"examples": _EXAMPLES}):
    """The body of `POST /v1/responses`. Null is the same as absent in every field."""

    PLACES = {
        "/task": "/input",
        "/conversation": "/input",
        "/evidence": "/input",
        "/constraints/answer_schema": "/text/format/schema",
    }

    input: Annotated[list[InputItem], openai.OrText(), BeforeValidator(_listed)] = Field(
        min_length=1, max_length=ITEMS_MAX
    )
    instructions: str | None = Field(default=None, description="Requirements on the answer, above what the input says")
    previous_response_id: str | None = Field(
        default=None, max_length=128, description="An ended response: its input and its answer come before the input"
    )
    stream: bool | None = Field(default=None, description="Answer with the events of the response as they come")
    background: bool | None = Field(default=None, description="Answer at once; nothing but a request cancels it")
    store: bool | None = Field(
        default=None, description="Repeated only: a response is kept as long as any deliberation, also with false"
    )
    max_output_tokens: openai.TokenLimit = Field(default=None, description="Limit of each agent's completion")
    text: ResponseText | None = None
    reasoning: ResponseReasoning | None = None
    truncation: Literal["auto", "disabled"] | None = Field(default=None, description="No input is ever truncated")
    prompt_cache_key: str | None = Field(default=None, max_length=512, description="Repeated only")
    deliberation: ResponseOptions | None = Field(default=None, description="Extension: how to deliberate")  # pyright: ignore[reportIncompatibleVariableOverride] -- frozen

    background_options: openai.IgnoredField = None
    max_tool_calls: openai.IgnoredField = None
    stream_options: openai.IgnoredField = None

    access_programs: Annotated[openai.Nothing, Unsupported("There are no access programs")] = None
    context_management: Annotated[openai.NoItems, Unsupported("No context is compacted")] = None
    conversation: Annotated[openai.Nothing, Unsupported("There are no conversations; use previous_response_id")] = None
    image: Annotated[openai.Nothing, Unsupported("Only text is supported")] = None
    include: Annotated[_Included | None, Unsupported("Nothing else can be included")] = None
    prompt: Annotated[openai.Nothing, Unsupported("Prompt templates are not supported")] = None

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if not any(item.turn is not None or item.refers for item in self.input):
            raise ValidationFailed([body_fault("/input", "missing", "It has no message", "Add one of a user.")])
        return self

    @property
    def files(self) -> list[FilePart]:
        said = {f"/input/{n}/content": item.content for n, item in enumerate(self.input)}
        return placed(said | {f"/input/{n}/output": item.output for n, item in enumerate(self.input)})

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        return None if self.text is None or self.text.format is None else self.text.format.answer_schema

    @property
    def repeated(self) -> dict[str, Any]:
        """The fields that a response repeats; functions without the level that chat completions have."""
        told = self.model_dump(mode="json", by_alias=True, include=set(REPEATED), exclude_unset=True, exclude_none=True)
        if "tools" in told:
            told["tools"] = [{"type": "function", **_TOLD, **tool["function"]} for tool in told["tools"]]
        if self.tool_choice is not None:
            told["tool_choice"] = self.tool_choice.as_written
        return told


def conversation_in(state: State) -> tuple[str | None, Sequence[ConversationTurn]]:
    """The instructions and the messages that a task was written from; a task of another façade is one message."""
    turns = turns_of(state.specification.task, state.specification.turns)
    instructions = next((turn.text for turn in turns if turn[:2] == INSTRUCTIONS), None)
    return instructions, [turn for turn in turns if turn[:2] != INSTRUCTIONS]


def _before(previous: State) -> Sequence[ConversationTurn]:
    """The conversation of an earlier response with its answer; raises ValidationFailed where there is no answer."""
    try:
        said = [] if previous.end is None else [turn_said(action) for action in actions(previous)]
    except NoVerdict:
        said = []
    if not said:
        detail, remedy = f"It is {previous.status} and has no answer", "Await its end, or name another."
        raise ValidationFailed([body_fault("/previous_response_id", "no_verdict", detail, remedy)])
    specified = previous.specification
    if specified.task_file is not None and len(specified.task) <= INLINE_CHARS_MAX:
        detail, remedy = "The text of its conversation is not stored any more", "Send the whole conversation."
        raise ValidationFailed([body_fault("/previous_response_id", "previous_response_not_found", detail, remedy)])
    return [*conversation_in(previous)[1], *said]


def turn_said(action: Action) -> ConversationTurn:
    """An answer as a turn of the conversation that goes on from it."""
    calls = [CallTurn(call.id or "", call.name, arguments_json(call)) for call in action.calls]
    return ConversationTurn("assistant", None, said_with_calls(action.reply or "", calls))


def turn_of(state: State, item_id: str) -> ConversationTurn | None:
    """The message or the call of a response that has an id; None for its reasoning and its own tools.

    Raises LookupError.
    """
    kind, _, rest = item_id.partition("_")
    if kind not in ("msg", "fc"):
        return None
    place = rest.removeprefix(f"{state.deliberation_id}_")
    if place.startswith("input_"):
        return conversation_in(state)[1][int(place.removeprefix("input_"))]
    choice, _, number = place.partition("_")
    try:
        action = actions(state)[int(choice)]
        return turn_said(action if not number else Action(calls=(action.calls[int(number)],)))
    except NoVerdict as error:
        raise LookupError from error


def turns_asked(
    request: CreateResponseRequest,
    previous: State | None,
    referred: Mapping[str, ConversationTurn | None] = MappingProxyType({}),
) -> Sequence[ConversationTurn]:
    """The instructions, the conversation of `previous` and the input; raises ValidationFailed.

    `referred` has the messages that the input refers to, by their ids.
    """
    instructions = [] if not request.instructions else [ConversationTurn(*INSTRUCTIONS, request.instructions)]
    said: list[ConversationTurn] = []
    for item in request.input:
        turn = referred.get(item.id or "") if item.refers else item.turn
        said += [] if turn is None else [turn]
    return [*instructions, *(() if previous is None else _before(previous)), *said]


def evidence_asked(
    request: CreateResponseRequest, turns: Sequence[ConversationTurn], earlier: Iterable[State]
) -> Iterator[dict[str, str]]:
    """The files of the input, and those of earlier responses that the conversation names."""
    parts = request.files
    yield from evidence_of(parts)
    told = {part.evidence_id for part in parts}
    for evidence in (evidence for state in earlier for evidence in state.specification.evidence):
        if evidence.file is None or evidence.id in told or not any(mark_of(evidence.id) in turn.text for turn in turns):
            continue
        told.add(evidence.id)
        yield {"id": evidence.id, "title": evidence.title, "file": f"{FILE_ID_PREFIX}{evidence.file.sha256}"}
