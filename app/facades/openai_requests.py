"""The common part of both readers of OpenAI's APIs: models, conversations, unsupported fields, options.

Every field of OpenAI's references is supported, ignored if that is harmless, or refused if ignoring it would change the
answer's meaning. Unknown fields are refused, as by OpenAI.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast

from annotated_types import GroupedMetadata
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import CoreSchema

from app.api.action_requests import (
    ACTION_TOOLS_MAX,
    AgreementMin,
)
from app.api.problems import ValidationFailed, body_fault, body_problems, refused
from app.api.refusals import HttpError
from app.api.request_model import (
    MaybeWhole,
    RequestModel,
)
from app.api.requests import (
    AGENTS_MAX,
    DEFAULT_ROLE,
    DEFAULT_STRATEGY,
    EVIDENCE_MAX,
    TASK_CHARS_MAX,
    AgentRequest,
    BudgetRequest,
    DeliberationRequest,
    Metadata,
    Requirement,
    Rubric,
)
from app.api.schemas import FieldProblem
from app.api.suggestions import did_you_mean
from app.deliberation.answer_schema import replaced_keywords
from app.deliberation.conversation import ConversationTurn
from app.deliberation.specification import TIMEOUT_S_MAX, OnDeadline, OnDisagreement, Priority, Token
from app.facades.outcomes import deliberation_headers

NO_TOOLS = "This kind of tool is not supported"
NO_SAMPLING = "This sampling parameter is not supported"
# Engines refuse 0, which OpenAI takes.
TOP_P_MIN = 0.001
NO_LOGPROBS = "Log probabilities are not supported"

TURN_CALLS_MAX = 128
# The installation's `strategies` and `roles`, each by name.
Registry = Mapping[str, Mapping[str, Any]]

IgnoredField = Annotated[Any, Field(description="Accepted and ignored")]


# The values that request nothing, for fields that are otherwise unsupported.
NoItems = Annotated[list[Any], Field(max_length=0)] | None
# Generators of clients fail on a type of null alone.
Nothing = Annotated[dict[str, Any], Field(max_length=0)] | None
Zero = Annotated[float, Field(ge=0, le=0)] | None


@dataclass(frozen=True, slots=True)
class Unsupported(GroupedMetadata):
    """An unsupported field; its type has the values that request nothing, null among them."""

    why: str

    def __iter__(self) -> Iterator[object]:
        yield WrapValidator(self._checked)
        yield Field(description=f"{self.why}; accepted only with values that request nothing")

    def _checked(self, value: object, harmless: ValidatorFunctionWrapHandler) -> object:
        try:
            return harmless(value)
        except ValidationError:
            raise refused("unsupported_parameter", self.why, "Leave it out.") from None


class OrText:
    """Says that a list may also be given as one text."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(schema)]}


class JsonSchemaFormat(RequestModel):
    """A named JSON Schema. Answers satisfy it with and without `strict`."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = Field(default=None, max_length=2_000, description="Accepted and ignored")
    json_schema: dict[str, Any] | None = Field(
        default=None, alias="schema", description="Of an object, in a subset of JSON Schema; any object if absent"
    )
    strict: bool | None = Field(default=None, description="Accepted and ignored")


class DeliberationOptions(RequestModel):
    """Fields of a deliberation that OpenAI's fields lack, with the bounds of `POST /deliberations`."""

    num_agents: MaybeWhole = Field(default=None, ge=1, le=AGENTS_MAX, description="Default 3")
    agents: list[AgentRequest] | None = Field(
        default=None, min_length=1, max_length=AGENTS_MAX, description="A mixed council; the model names its strategy"
    )
    rounds: MaybeWhole = Field(default=None, ge=0, le=5, description="Default 1")
    parameters: dict[str, Any] | None = Field(default=None, max_length=32, description="Parameters of the strategy")
    quorum: MaybeWhole = Field(default=None, ge=1, le=AGENTS_MAX)
    budget: BudgetRequest | None = None
    rubric: Rubric | None = None
    requirements: list[Requirement] | None = Field(default=None, max_length=32)
    timeout_seconds: MaybeWhole = Field(default=None, ge=1, description=f"At most {TIMEOUT_S_MAX} apply")
    on_deadline: OnDeadline | None = Field(default=None, description="Default best")
    agreement_min: AgreementMin = None
    on_disagreement: OnDisagreement | None = Field(default=None, description="Default best")
    priority: Priority | None = Field(default=None, description="Default interactive")
    cluster: Token | None = Field(default=None, description="Label of the clusters that may do it")


def _no_zero(limit: int | None) -> int | None:
    if limit == 0:
        raise refused("invalid_value", "No answer has 0 tokens", "Give 1 or more, or leave it out.")
    return limit


TokenLimit = Annotated[MaybeWhole, AfterValidator(_no_zero)]


ChoiceMode = Literal["auto", "none", "required"]
WrittenChoice = ChoiceMode | dict[str, Any] | None


class ToolChoice(RequestModel):
    """Whether an answer calls tools, and which; any of them where `names` is empty."""

    mode: ChoiceMode = "auto"
    names: tuple[str, ...] = ()

    @property
    def as_written(self) -> str | dict[str, Any]:
        """The choice in the form of Responses."""
        functions = [{"type": "function", "name": name} for name in self.names]
        if self.mode == "required" and len(functions) == 1:
            return functions[0]
        return {"type": "allowed_tools", "mode": self.mode, "tools": functions} if functions else self.mode


def _chosen(choice: Any) -> object:  # noqa: ANN401 -- JSON
    """A choice in the forms of both of OpenAI's APIs."""
    match choice:
        case str():
            return {"mode": choice}
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return {"mode": "required", "names": (name,)}
        case {"type": "allowed_tools", "allowed_tools": {"mode": str(), "tools": list()} as allowed}:
            return _chosen({"type": "allowed_tools", **cast("dict[str, object]", allowed)})
        case {"type": "allowed_tools", "mode": str(mode), "tools": list()}:
            return {"mode": mode, "names": tuple(_names(choice["tools"]))}
        case None | ToolChoice():
            return choice
        case _:
            raise refused("unsupported_parameter", NO_TOOLS, "Give auto, none, required or a function.")


def _names(tools: Iterable[object]) -> Iterator[str]:
    for tool in tools:
        match tool:
            case {"function": {"name": str(name)}} | {"name": str(name)}:
                yield name
            case _:
                raise refused("unsupported_parameter", NO_TOOLS, "Name functions alone.")


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    """A function in the form of chat completions, which Responses write without a level."""
    if tool.get("type") != "function":
        raise refused("unsupported_parameter", NO_TOOLS, "Give functions alone.")
    if isinstance(tool.get("function"), dict):
        return tool
    inner = {name: value for name, value in tool.items() if name in ("name", "description", "parameters", "strict")}
    shares = {name: value for name, value in tool.items() if name.startswith("x-")}
    return {"type": "function", "function": inner, **shares}


class CouncilRequest(RequestModel):
    """The fields that requests of all OpenAI's APIs have in common. Null is the same as absent in every field.

    `PLACES` has the request's pointer to each of ours that differs.
    """

    PLACES: ClassVar[Mapping[str, str]]

    model: str = Field(max_length=256, description="`<strategy>/<ROLE>` or one of both; `GET /v1/models` lists them")
    temperature: float | None = Field(
        default=None, ge=0, le=2, description="The first agent's temperature; the others vary"
    )
    top_p: float | None = Field(default=None, ge=0, le=1, description=f"At least {TOP_P_MIN} applies")
    metadata: Metadata | None = None
    user: str | None = Field(default=None, max_length=512, description="Stored as metadata")
    safety_identifier: str | None = Field(default=None, max_length=512, description="Stored as metadata")

    deliberation: DeliberationOptions | None = Field(default=None, description="Extension: how to deliberate")

    parallel_tool_calls: bool | None = Field(default=None, description="False: at most one call; several if absent")
    prompt_cache_options: IgnoredField = None
    prompt_cache_retention: IgnoredField = None
    service_tier: IgnoredField = None

    frequency_penalty: Annotated[Zero, Unsupported(NO_SAMPLING)] = None
    moderation: Annotated[Nothing, Unsupported("Moderation is not supported")] = None
    presence_penalty: Annotated[Zero, Unsupported(NO_SAMPLING)] = None
    tool_choice: Annotated[ToolChoice | None, BeforeValidator(_chosen, json_schema_input_type=WrittenChoice)] = Field(
        default=None, description="auto (if absent), none, required, a function by its name, or `allowed_tools`"
    )
    tools: list[Annotated[dict[str, Any], AfterValidator(_function)]] | None = Field(
        default=None,
        max_length=ACTION_TOOLS_MAX,
        description="Functions of the client: the council decides on a call, and the client carries it out. "
        "`x-agreement_min` beside a function is the share of members that must want it",
    )
    top_logprobs: Annotated[Zero, Unsupported(NO_LOGPROBS)] = None

    @property
    def actions(self) -> dict[str, Any] | None:
        """The actions of the deliberation; None where an answer is a text."""
        choice = self.tool_choice or ToolChoice()
        allowed = [
            tool for tool in self.tools or () if not choice.names or tool["function"].get("name") in choice.names
        ]
        if not allowed or choice.mode == "none":
            return None
        calls_max = {} if self.parallel_tool_calls is not False else {"calls_max": 1}
        return {"tools": allowed, "must_call": choice.mode == "required", **calls_max}

    @model_validator(mode="after")
    def _chooses_a_tool(self) -> Self:
        choice = self.tool_choice or ToolChoice()
        known = {tool["function"].get("name") for tool in self.tools or ()}
        if choice.mode == "required" and not known:
            raise ValidationFailed([body_fault("/tool_choice", "invalid_value", "There is no tool", "Give tools.")])
        if unknown := [name for name in choice.names if name not in known]:
            detail = f"No tool is called {unknown[0]!r}"
            raise ValidationFailed([body_fault("/tool_choice", "invalid_value", detail, "Name one of the tools.")])
        return self

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        raise NotImplementedError


class ModelNotFound(HttpError):
    code = "model_not_found"

    def __init__(self, detail: str, meant: str) -> None:
        super().__init__(detail)
        remedy = f"{meant}Name it <strategy>/<ROLE>, or one of the two alone; GET /v1/models lists them."
        self.errors = (body_fault("/model", self.code, detail, remedy),)


def model_parts(model: str, registry: Registry) -> tuple[str, str]:
    """The strategy and the role in a model's name, which may lack one of them; raises ModelNotFound."""
    first, slash, second = model.partition("/")
    if slash:
        strategy, role = first, second.upper()
    elif first in registry["strategies"]:
        strategy, role = first, DEFAULT_ROLE
    else:
        strategy, role = DEFAULT_STRATEGY, first.upper()
    if strategy not in registry["strategies"] or role not in registry["roles"]:
        known = [*model_names(registry), *registry["strategies"], *registry["roles"]]
        raise ModelNotFound(f"No model is named {model[:256]!r}.", did_you_mean(model, known))
    return strategy, role


def model_names(registry: Registry) -> list[str]:
    return [f"{strategy}/{role}" for strategy in registry["strategies"] for role in registry["roles"]]


_Body = TypeVar("_Body", bound=CouncilRequest)


def bounded(request: _Body, bounds: Mapping[str, int]) -> tuple[_Body, list[str]]:
    """The request with limits beyond ours replaced by ours, and each change, as `max_tokens=32768`.

    Clients set a limit for the largest model that they know, and a negative limit or seed for none.
    """
    limits = {name: getattr(request, name) or 0 for name in bounds}
    changed: dict[str, Any] = {name: bound for name, bound in bounds.items() if limits[name] > bound}
    changed |= {name: None for name in bounds if limits[name] < 0}
    if request.top_p is not None and request.top_p < TOP_P_MIN:
        changed["top_p"] = TOP_P_MIN
    changes = [f"{name}={value or 'default'}" for name, value in changed.items()]
    options: DeliberationOptions | None = getattr(request, "deliberation", None)
    if options is not None and (options.timeout_seconds or 0) > TIMEOUT_S_MAX:
        changed["deliberation"] = options.model_copy(update={"timeout_seconds": TIMEOUT_S_MAX})
        changes.append(f"deliberation.timeout_seconds={TIMEOUT_S_MAX}")
    return request.model_copy(update=changed), changes


def answer_headers(deliberation_id: str, changes: Sequence[str], schema: dict[str, Any] | None) -> dict[str, str]:
    """The headers of an answer, with changes of the request and of its valid schema, as `schema.format=description`."""
    replaced = dict[str, str]() if schema is None else replaced_keywords(schema)
    adjusted = ", ".join([*changes, *(f"schema.{keyword}={now}" for keyword, now in replaced.items())])
    return deliberation_headers(deliberation_id) | ({"X-Adjusted": adjusted} if adjusted else {})


# Clients recognize this error by its code or by these exact words.
_TOO_LONG = {
    "code": "context_length_exceeded",
    "detail": f"This model's maximum context length is {TASK_CHARS_MAX} characters",
    "remedy": "Shorten the conversation.",
}
# The limit of a deliberation's evidence, which the files of a conversation are.
_TOO_MANY_FILES = {"detail": "The conversation has too many files", "remedy": f"Give at most {EVIDENCE_MAX}."}
# The options that are `constraints` of a deliberation's request.
CONSTRAINTS = ("rubric", "requirements", "timeout_seconds", "on_deadline", "agreement_min", "on_disagreement")


def checked(
    body: Mapping[str, Any], registry: Registry, mapped: Callable[[FieldProblem], FieldProblem]
) -> DeliberationRequest:
    """The deliberation with this body; raises ValidationFailed with faults as `mapped` to a façade's own fields."""
    try:
        return DeliberationRequest.model_validate(body, context=dict(registry))
    except ValidationError as invalid:
        faults = body_problems(invalid, DeliberationRequest).errors
    except ValidationFailed as failed:
        faults = failed.errors
    raise ValidationFailed([mapped(fault) for fault in faults])


def deliberation_of(
    asked: CouncilRequest,
    registry: Registry,
    turns: Sequence[ConversationTurn],
    *,
    evidence: Iterable[Mapping[str, str]] = (),
    max_tokens: int | None,
    **fields: int | None,
) -> DeliberationRequest:
    """The deliberation that is asked for; raises ModelNotFound, and ValidationFailed with pointers into the request.

    `fields` are ours that only one of the APIs has.
    """
    strategy, role = model_parts(asked.model, registry)
    options = {} if asked.deliberation is None else asked.deliberation.model_dump(exclude_none=True)
    constraints = {name: options.pop(name) for name in CONSTRAINTS if name in options}
    users = {"user": asked.user, "safety_identifier": asked.safety_identifier}
    # A model without a role leaves the roles to `agents`.
    names_role = "agents" not in options or asked.model != strategy
    body = options | {
        **said(turns),
        "evidence": [*evidence],
        "role": role if names_role else None,
        "strategy": strategy,
        "constraints": {**constraints, "answer_schema": asked.answer_schema},
        "actions": asked.actions,
        "sampling": {"temperature": asked.temperature, "top_p": asked.top_p, "max_tokens": max_tokens},
        "metadata": {name: user for name, user in users.items() if user is not None} | (asked.metadata or {}),
        **{name: field for name, field in fields.items() if field is not None},
    }
    return checked(body, registry, partial(in_the_request, type(asked)))


def said(turns: Sequence[ConversationTurn]) -> dict[str, object]:
    """What the deliberation is about, as its request has it: a lone message is a task."""
    if len(turns) == 1:
        return {"task": turns[0].text}
    present = ({name: value for name, value in turn._asdict().items() if value is not None} for turn in turns)
    return {"conversation": [*present]}


_REWORDED: Mapping[tuple[str, str], Mapping[str, str]] = {
    **dict.fromkeys((("/task", "string_too_long"), ("/conversation", "string_too_long")), _TOO_LONG),
    ("/task", "context_exceeded"): {"code": _TOO_LONG["code"]},
    ("/evidence", "context_exceeded"): {"code": _TOO_LONG["code"]},
    ("/evidence", "too_long"): _TOO_MANY_FILES,
}


def in_the_request(body: type[CouncilRequest], fault: FieldProblem) -> FieldProblem:
    """A fault of a deliberation at its place in a request of this type."""
    if fault.pointer.startswith("/actions"):
        return fault.model_copy(update={"pointer": fault.pointer.removeprefix("/actions") or "/tools"})
    if fault.pointer == "/strategy":
        return fault.model_copy(update={"pointer": "/model"})
    for ours, theirs in body.PLACES.items():
        if fault.pointer.startswith(ours):
            return fault.model_copy(update={"pointer": theirs, **_REWORDED.get((ours, fault.code), {})})
    if fault.pointer == "/role":
        return fault.model_copy(update={"pointer": "/model", "remedy": "Name the strategy alone."})
    pointer = fault.pointer.removeprefix("/constraints")
    name = pointer.removeprefix("/").partition("/")[0]
    of_options = name in ("seed", *DeliberationOptions.model_fields) and name not in body.model_fields
    return fault.model_copy(update={"pointer": f"/deliberation{pointer}"}) if of_options else fault
