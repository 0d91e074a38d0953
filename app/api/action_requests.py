"""The part of a body that asks for an action: tools of the client, and the conversation that they belong to."""

import json
from functools import cached_property
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from app.api.problems import refused
from app.api.request_model import RequestModel, Whole
from app.deliberation.answer_schema import SchemaRefused, rebuilt_parameters
from app.deliberation.conversation import CallTurn, ConversationTurn, said_with_calls
from app.deliberation.specification import Actions, ArgumentComparison
from app.deliberation.tools import TOOL_PATTERN

ACTION_TOOLS_MAX = 128
ACTION_CALLS_MAX = 16
ACTIONS_CHARS_MAX = 131_072
ACTIONS_NODES_MAX = 2_048
CALL_ID_PATTERN = r"^[^\s<>|\\/\[\]]*$"
SCHEMA_KEYWORDS = (
    "Use type, properties, required, additionalProperties, items, enum, const, anyOf, $ref to $defs, and bounds of "
    "numbers and lists."
)

AgreementMin = Annotated[float | None, Field(gt=0, le=1, exclude_if=lambda share: share is None)]


def _as_own(tool: object) -> object:
    """A tool in OpenAI's form as ours. Its extensions are `x-agreement_min`, and `x-compare` of its parameters."""
    if not isinstance(tool, dict) or not isinstance(cast("dict[str, Any]", tool).get("function"), dict):
        return cast("object", tool)
    outer = cast("dict[str, Any]", tool)
    known = {name: value for name, value in outer["function"].items() if name != "strict" and value is not None}
    parameters: Any = known.get("parameters", {})
    compared = cast("dict[str, Any]", parameters).get("x-compare") if isinstance(parameters, dict) else None
    added = {"comparisons": compared, "agreement_min": outer.get("x-agreement_min")}
    return known | {name: value for name, value in added.items() if value is not None}


class ActionToolRequest(RequestModel):
    """A tool that the client has. An answer may call it, and the client carries the call out."""

    name: str = Field(pattern=TOOL_PATTERN)
    description: str = Field(default="", max_length=16_384)
    parameters: dict[str, Any] = Field(default={}, description="JSON Schema of its arguments, which are an object")
    comparisons: dict[str, ArgumentComparison] = Field(
        default={},
        max_length=64,
        exclude_if=lambda comparisons: not comparisons,
        description="How arguments are compared where not exactly. text: by words; path: as normal paths; ignore: not "
        "at all",
    )
    agreement_min: AgreementMin = Field(default=None, description="Share of all members that must want a call of it")

    @field_validator("comparisons")
    @classmethod
    def _its_own(cls, compared: dict[str, ArgumentComparison], info: ValidationInfo) -> dict[str, ArgumentComparison]:
        known = info.data.get("parameters", {"properties": compared}).get("properties", {})
        if unknown := next((name for name in compared if name not in known), None):
            raise refused("unknown_argument", f"The tool has no argument {unknown[:64]!r}", "Remove it.")
        return compared


class ActionsRequest(RequestModel):
    """Answers that act: each one replies with a text, or calls tools of the client. Not with `execute` or `fuse`."""

    tools: list[Annotated[ActionToolRequest, BeforeValidator(_as_own)]] = Field(
        min_length=1, max_length=ACTION_TOOLS_MAX, description="In this form, or in that of OpenAI's chat completions"
    )
    must_call: bool = Field(default=False, description="No answer is a reply")
    calls_max: Whole = Field(default=ACTION_CALLS_MAX, ge=1, le=ACTION_CALLS_MAX, description="Calls of one action")

    @field_validator("tools")
    @classmethod
    def _rebuilt(cls, tools: list[ActionToolRequest]) -> list[ActionToolRequest]:
        """The tools with rebuilt schemas, within one bound: what a schema repeats by references costs time."""
        names = [tool.name for tool in tools]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise refused("repeated_name", f"Two tools are called {repeated}", "Rename one of them.")
        made, nodes_left = list[ActionToolRequest](), ACTIONS_NODES_MAX
        for tool in tools:
            if nodes_left < 0:
                detail = f"The schemas of the tools have more than {ACTIONS_NODES_MAX:,} nodes in all"
                raise refused("too_long", detail, "Give fewer or smaller tools; each use of a $ref counts.")
            try:
                parameters, nodes = rebuilt_parameters(tool.parameters)
            except SchemaRefused as error:
                detail = f"The parameters of {tool.name}: {error}"
                raise refused("unsupported_schema", detail, error.remedy or SCHEMA_KEYWORDS) from error
            nodes_left -= nodes
            made.append(tool.model_copy(update={"parameters": parameters}))
        chars = sum(len(json.dumps(tool.parameters)) + len(tool.description) for tool in made)
        if chars > ACTIONS_CHARS_MAX:
            detail = f"The tools have {chars:,} characters in all"
            raise refused("too_long", detail, f"Give tools of at most {ACTIONS_CHARS_MAX:,}.")
        return made

    @property
    def specified(self) -> Actions:
        """These actions in a specification."""
        return Actions(**self.model_dump())


class CallRequest(RequestModel):
    """A call of a tool in a conversation."""

    id: str = Field(max_length=128, pattern=CALL_ID_PATTERN)
    name: str = Field(pattern=TOOL_PATTERN)
    arguments: dict[str, Any] = {}


class TurnRequest(RequestModel):
    """One message of a conversation, or what a call of a tool returned."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    name: str | None = Field(
        default=None,
        validate_default=True,
        max_length=128,
        pattern=CALL_ID_PATTERN,
        exclude_if=lambda name: name is None,
        description="Of the speaker; of a tool's message the id of its call",
    )
    text: str = ""
    calls: list[CallRequest] = Field(
        default=[], max_length=128, exclude_if=lambda calls: not calls, description="Those of an assistant's message"
    )

    @field_validator("name")
    @classmethod
    def _names_its_call(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is None and info.data.get("role") == "tool":
            raise refused("missing", "The message of a tool names no call", "Give the id of the call.")
        return name

    @field_validator("calls")
    @classmethod
    def _of_an_assistant(cls, calls: list[CallRequest], info: ValidationInfo) -> list[CallRequest]:
        if calls and info.data.get("role") != "assistant":
            raise refused("conflict", "Only an assistant calls tools", "Leave calls out.")
        return calls

    @cached_property
    def turn(self) -> ConversationTurn:
        calls = [CallTurn(call.id, call.name, json.dumps(call.arguments)) for call in self.calls]
        return ConversationTurn(self.role, self.name, said_with_calls(self.text, calls))
