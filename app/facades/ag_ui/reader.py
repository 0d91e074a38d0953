"""The input of a run, and the deliberation that it asks for. AG-UI ignores input that it does not know."""

from typing import Annotated, Any, Literal, cast

from pydantic import Field, PlainValidator, ValidationInfo, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticKnownError

from app.api.action_requests import (
    ACTION_TOOLS_MAX,
    CALL_ID_PATTERN,
)
from app.api.problems import ValidationFailed, body_fault
from app.api.request_model import (
    RequestModel,
)
from app.api.requests import (
    DeliberationRequest,
)
from app.api.schemas import FieldProblem
from app.deliberation.conversation import CallTurn, ConversationTurn, said_with_calls
from app.facades import openai_requests as openai
from app.facades.message_content import FilePart, MessageContent, at, evidence_of, given_file, joined, placed

# The name of this façade's part of what an acceptance repeats, and the metadata by which a thread's runs are found.
ASKED, THREAD = "ag_ui", "ag_ui.thread"
OPTIONS = "/forwardedProps/deliberation"
# Of the messages with another role agents read nothing.
READ_ROLES = ("user", "assistant", "system", "developer", "tool")
_Id = Annotated[str, Field(min_length=1, max_length=512)]
_SAID = [{"id": "message-1", "role": "user", "content": "Merge two sorted lists."}]
_PROPS = {"deliberation": {"strategy": "council", "num_agents": 3}}
_EXAMPLES: list[Any] = [{"threadId": "thread-1", "runId": "run-1", "messages": _SAID, "forwardedProps": _PROPS}]
_PARTS: Any = {"type": "array", "items": {"type": "object"}}
_CONTENT: Any = {"anyOf": [{"type": "string"}, _PARTS, {"type": "null"}]}


def _content(content: object, info: ValidationInfo) -> MessageContent:
    """The texts and files of a message. AG-UI fails no run for a part that agents cannot read: those are named.

    Null and an empty part are no text. A number is none either, and is refused.
    """
    if info.data.get("role") not in READ_ROLES or content is None:
        return MessageContent()
    if isinstance(content, str):
        return MessageContent(content)
    if not isinstance(content, list):
        raise PydanticKnownError("string_type")
    return joined(filter(None, (_piece(n, part) for n, part in enumerate(cast("list[object]", content)))))


def _piece(index: int, part: object) -> str | FilePart:
    if isinstance(part, str) or part is None:
        return part or ""
    known = cast("dict[str, object]", part) if isinstance(part, dict) else {"type": type(part).__name__}
    kind = known.get("type")
    match known:
        case {"text": str(text)}:
            return text
        case {"type": "image" | "document", "source": {"type": "data", "value": str(data)}}:
            name, declared = _string(known.get("metadata"), "filename"), _string(known.get("source"), "mimeType")
        case {"type": "binary", "data": str(data)}:
            name, declared = _string(known, "filename"), _string(known, "mimeType")
        case _:
            return f"[{kind if isinstance(kind, str) else 'nothing'} left out]" if known and kind != "text" else ""
    is_picture = kind == "image" or (declared or "").startswith("image/")
    return at(given_file(f"Part {index}", data, name=name, media_type=declared, is_picture=is_picture), index)


def _string(fields: object, name: str) -> str | None:
    value = cast("dict[str, object]", fields).get(name) if isinstance(fields, dict) else None
    return value if isinstance(value, str) else None


class AgUiModel(RequestModel, extra="ignore", alias_generator=to_camel): ...


class AgUiFunction(AgUiModel):
    name: str = Field(max_length=64)
    arguments: str = ""


class AgUiToolCall(AgUiModel):
    """A call of a front end's tool, which an earlier run has decided on."""

    id: str = Field(max_length=128, pattern=CALL_ID_PATTERN)
    function: AgUiFunction


class AgUiTool(AgUiModel):
    """A tool of the front end."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = Field(default=None, description="JSON Schema of its arguments")


class AgUiMessage(AgUiModel):
    """A message of the thread; agents read the texts of five roles, without those of earlier runs' members."""

    id: _Id
    role: Literal["user", "assistant", "system", "developer", "tool", "activity", "reasoning"]
    content: Annotated[MessageContent, PlainValidator(_content), WithJsonSchema(_CONTENT)] = Field(
        default_factory=MessageContent
    )
    subagent_run_id: str | None = None
    tool_calls: list[AgUiToolCall] = Field(default=[], max_length=openai.TURN_CALLS_MAX)
    tool_call_id: str | None = Field(default=None, max_length=128, pattern=CALL_ID_PATTERN)

    @property
    def turn(self) -> ConversationTurn:
        calls = [CallTurn(call.id, call.function.name, call.function.arguments) for call in self.tool_calls]
        name = self.tool_call_id if self.role == "tool" else None
        return ConversationTurn(self.role, name, said_with_calls(self.content.text, calls))

    @property
    def is_read(self) -> bool:
        """Whether agents read it. A result of a call that the thread does not name is none of the front end's."""
        is_known = self.role != "tool" or self.tool_call_id is not None
        told = self.role == "tool" or bool(self.turn.text.strip())
        return self.role in READ_ROLES and self.subagent_run_id is None and is_known and told


class ForwardedProps(AgUiModel):
    """The application's own values: two are read."""

    background: bool = Field(default=False, description="The run goes on when its client leaves")
    deliberation: dict[str, Any] = Field(default={}, description="Fields of `POST /deliberations`")


class RunAgentInput(AgUiModel, json_schema_extra={"examples": _EXAMPLES}):
    """The input of a run. The same `threadId` and `runId` never start a second deliberation."""

    thread_id: _Id
    run_id: _Id
    messages: list[AgUiMessage] = Field(max_length=1_024)
    context: list[dict[str, str]] = Field(default=[], max_length=32, description="Evidence for every agent")
    forwarded_props: ForwardedProps = ForwardedProps()
    state: dict[str, Any] | None = Field(default=None, description="Given back with the field `deliberation`")
    tools: list[AgUiTool] = Field(
        default=[],
        max_length=ACTION_TOOLS_MAX,
        description="Of the front end: the council decides on a call, and the front end carries it out",
    )
    resume: Annotated[openai.NoItems, openai.Unsupported("No council waits for an answer")] = None

    @property
    def said(self) -> list[AgUiMessage]:
        return [message for message in self.messages if message.is_read]

    @property
    def files(self) -> list[FilePart]:
        read = {id(message) for message in self.said}
        contents = enumerate(self.messages)
        return placed({f"/messages/{n}/content": m.content for n, m in contents if id(m) in read})

    def deliberation(self, registry: openai.Registry) -> DeliberationRequest:
        """The deliberation that is asked for; raises ValidationFailed with pointers into the input."""
        options, reason = (
            self.forwarded_props.deliberation,
            "It comes from `messages`, `context` or `tools`, or is not supported",
        )
        taken = options.keys() & {"task", "conversation", "evidence", "webhook", "actions"}
        faults = [body_fault(f"{OPTIONS}/{name}", "conflict", reason, "Leave it out.") for name in taken]
        if not self.said:
            faults.append(body_fault("/messages", "missing", "No message has text", "Add one of a user."))
        if faults:
            raise ValidationFailed(faults)
        files = [*evidence_of(self.files)]
        texts = filter(None, ("\n\n".join(context.values()).strip() for context in self.context))
        known = [{"id": f"context-{n}", "title": f"Context {n}", "text": text} for n, text in enumerate(texts, 1)]
        said = openai.said([message.turn for message in self.said])
        metadata: Any = options.get("metadata") or {}
        if isinstance(metadata, dict):
            metadata = cast("dict[str, Any]", metadata) | {THREAD: self.thread_id}
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools]
        actions = {"actions": {"tools": tools}} if tools else {}
        body = {**options, **actions, **said, "evidence": [*known, *files], "metadata": metadata}
        return openai.checked(body, registry, self.in_the_input)

    def in_the_input(self, fault: FieldProblem) -> FieldProblem:
        """A fault of the deliberation at its place in this input."""
        _, name, *rest = fault.pointer.split("/")
        if name == "actions":
            return fault.model_copy(update={"pointer": fault.pointer.removeprefix("/actions") or "/tools"})
        of_context = rest and rest[0].isdecimal() and int(rest[0]) < len(self.context)
        evidence = "/context" if of_context or not self.files else "/messages"
        place = {"task": "/messages", "conversation": "/messages", "evidence": evidence}.get(
            name, OPTIONS + fault.pointer
        )
        return fault.model_copy(update={"pointer": place})
