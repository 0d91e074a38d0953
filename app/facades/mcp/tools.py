"""The tools: a name, schemas of arguments and result, and the routes that each one asks."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from math import ceil
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server import ServerRequestContext
from pydantic import BaseModel, Field, TypeAdapter
from pydantic.json_schema import SkipJsonSchema

from app.api.headers import KEY_PATTERN, WAIT_MAX_S
from app.api.installation import RoleList
from app.api.request_body import parsed_body
from app.api.request_model import (
    RequestModel,
    Whole,
)
from app.api.requests import (
    TASK_CHARS_MAX,
    CancelRequest,
    DeliberationRequest,
)
from app.api.schemas import DeliberationReceipt, DeliberationResult, StrategyList
from app.deliberation.facts import TERMINAL_STATUS
from app.deliberation.specification import TIMEOUT_S_MAX, TOKEN_PATTERN
from app.facades.mcp.resources import RESOURCES_MAX, EmbeddedResource, upload_refusal
from app.facades.mcp.rest import ABANDONED, AskRoute, JsonDocument, RouteAnswer, encoded, path_of
from app.facades.message_content import evidence_of

McpContext = ServerRequestContext[Any, Any]
ToolFunction = Callable[[AskRoute, McpContext, JsonDocument], Awaitable[RouteAnswer]]

SCHEME = "deliberation://"
SUMMARY = "?view=summary"
# Several clients give a call up after 60 seconds.
WAIT_S = 50
CANCEL_TIMEOUT_S = 5.0
RETRY_S = 1.0
_OWN_FIELDS = ("wait_seconds", "idempotency_key", "resources")
_ENDED = frozenset(TERMINAL_STATUS.values())


class NoArguments(RequestModel):
    pass


class CancelArguments(CancelRequest):
    """The deliberation, and why it is cancelled."""

    id: str = Field(pattern=TOKEN_PATTERN, description="Id of the deliberation")


class DeliberationArguments(RequestModel):
    """The deliberation, and how long to wait for its end."""

    id: str = Field(pattern=TOKEN_PATTERN, description="Id of the deliberation")
    wait_seconds: Whole = Field(default=0, ge=0, le=TIMEOUT_S_MAX, description="Wait so long for its end")


class DeliberateArguments(DeliberationRequest):
    """The body of `POST /deliberations` with a task, and how long to wait for the end."""

    conversation: SkipJsonSchema[None] = None  # pyright: ignore[reportIncompatibleVariableOverride] -- frozen
    task: str = Field(min_length=1, max_length=TASK_CHARS_MAX, description="The question or task")  # pyright: ignore[reportIncompatibleVariableOverride]
    wait_seconds: Whole = Field(
        default=WAIT_S,
        ge=0,
        le=TIMEOUT_S_MAX,
        description="Wait so long for the verdict; then the result has the id, with which `get_deliberation` waits on",
    )
    idempotency_key: str | None = Field(
        default=None,
        pattern=KEY_PATTERN,
        description="The same key with the same arguments never starts a second deliberation, and closing the request "
        "does not cancel it",
    )
    resources: list[EmbeddedResource] = Field(
        default=[],
        max_length=RESOURCES_MAX,
        description="Embedded resources: files that become evidence beside that of `evidence`",
    )


def stage_of(document: JsonDocument) -> tuple[float, str]:
    """The progress: a number that grows within and between stages, and its words."""
    progress = document.get("progress")
    if progress is None:
        return 0.0, f"{document['id']} is {document['status']}"
    # Below one: else a stage that has ended and the next stage would report the same number.
    share = progress["calls_finished"] / (progress["calls_total"] + 1)
    calls = f"{progress['calls_finished']} of {progress['calls_total']} calls"
    return progress[
        "stage"
    ] + share, f"stage {progress['stage']}, {progress['purpose']}, round {progress['round']}: {calls}"


async def followed(ask: AskRoute, id: str, wait_s: float, context: McpContext) -> RouteAnswer:
    """The summary once the deliberation has ended, or after `wait_s`, or sooner while the gateway stops.

    Progress is reported whenever a stage opens or a call of it ends.
    """
    loop, path, reported = asyncio.get_running_loop(), path_of(id, SUMMARY), -1.0
    until_s, hold_s, known, answer = loop.time() + wait_s, 0, dict[str, str](), None
    while True:
        asked_at_s = loop.time()
        newer = await ask("GET", path, headers=known, wait_s=hold_s)
        took_s, left_s = loop.time() - asked_at_s, until_s - loop.time()
        if newer.status >= 500 and left_s > 0:
            await asyncio.sleep(RETRY_S)
            continue
        if answer is None or newer.status != 304:
            answer = newer
        stopping = newer.status == 304 and took_s < hold_s - RETRY_S
        if answer.refused or answer.document["status"] in _ENDED or stopping or left_s <= 0:
            return answer
        progress, message = stage_of(answer.document)
        if progress > reported:
            reported = progress
            await context.session.report_progress(progress, message=message)
        known, hold_s = {"If-None-Match": answer.headers["etag"]}, min(ceil(left_s), WAIT_MAX_S)


async def submitted(ask: AskRoute, context: McpContext, arguments: JsonDocument) -> RouteAnswer:
    """The acceptance. No cancellation interrupts it, because only the answer has the id."""
    asked = parsed_body(encoded(arguments), DeliberateArguments)
    body = {name: value for name, value in arguments.items() if name not in _OWN_FIELDS}
    if asked.resources:
        if (refusal := await upload_refusal(ask, asked.resources)) is not None:
            return refusal
        body["evidence"] = [*body.get("evidence", ()), *evidence_of(it.file for it in asked.resources)]
    headers = {} if asked.idempotency_key is None else {"Idempotency-Key": asked.idempotency_key}
    traceparent: object = (context.meta or {}).get("traceparent")
    if isinstance(traceparent, str) and traceparent.isascii() and traceparent.isprintable():
        headers["traceparent"] = traceparent
    with anyio.CancelScope(shield=True):
        answer = await ask("POST", "/deliberations", body=body, headers=headers)
    return answer  # pyright: ignore[reportPossiblyUnboundVariable] -- a shielded scope swallows no cancellation


async def deliberate(ask: AskRoute, context: McpContext, arguments: JsonDocument) -> RouteAnswer:
    """Let a council of LLM agents deliberate on a task, and return its verdict with margin, dissent and cost.

    The agents answer independently, criticise and rank each other's answers. Closing the request cancels the council.
    """
    answer = await submitted(ask, context, arguments)
    # Without the scope `read` the answer is a receipt, and the rest would be refused.
    if answer.refused or "verdict" not in answer.document:
        return answer
    id, wait_s = answer.document["id"], float(arguments.get("wait_seconds", WAIT_S))
    try:
        return await followed(ask, id, wait_s, context)
    except asyncio.CancelledError:
        if arguments.get("idempotency_key") is None:
            with anyio.move_on_after(CANCEL_TIMEOUT_S, shield=True):
                await ask("POST", path_of(id, "/cancel"), body={"reason": ABANDONED, "by": "disconnect"})
        raise


async def get_deliberation(ask: AskRoute, context: McpContext, arguments: JsonDocument) -> RouteAnswer:
    """Read a deliberation: its status, stage, verdict and cost; or wait for its verdict."""
    asked = parsed_body(encoded(arguments), DeliberationArguments)
    return await followed(ask, asked.id, asked.wait_seconds, context)


async def cancel_deliberation(ask: AskRoute, context: McpContext, arguments: JsonDocument) -> RouteAnswer:
    """Cancel a deliberation. One that has ended stays as it is."""
    asked = parsed_body(encoded(arguments), CancelArguments)
    answer = await ask("POST", path_of(asked.id, "/cancel"), body=asked.model_dump(exclude={"id"}))
    if answer.refused or "verdict" not in answer.document:
        return answer
    return await ask("GET", path_of(asked.id, SUMMARY))


async def list_strategies(ask: AskRoute, _: McpContext, arguments: JsonDocument) -> RouteAnswer:
    """List the strategies of deliberation: what each does, what it costs in calls, and its parameters."""
    parsed_body(encoded(arguments), NoArguments)
    return await ask("GET", "/strategies")


async def list_roles(ask: AskRoute, context: McpContext, arguments: JsonDocument) -> RouteAnswer:
    """List the roles that a council's members can have, with their personas and live replicas."""
    parsed_body(encoded(arguments), NoArguments)
    return await ask("GET", "/roles")


def _tool(call: ToolFunction, arguments: type[BaseModel], result: Any, **hints: Any) -> types.Tool:  # noqa: ANN401
    """A tool as clients see it, described by its function's docstring."""
    taken = arguments.model_json_schema()
    taken.pop("examples", None)
    # Before 2026-07-28 the root of a result's schema says that it is an object.
    output_schema = {"type": "object"} | TypeAdapter(result).json_schema(mode="serialization")
    name, description = call.__name__, " ".join((call.__doc__ or "").split())
    annotations = types.ToolAnnotations(open_world_hint=False, **hints)
    return types.Tool(
        name=name, description=description, input_schema=taken, output_schema=output_schema, annotations=annotations
    )


_OUTCOME = DeliberationResult | DeliberationReceipt
_TOOLS = (
    (deliberate, _tool(deliberate, DeliberateArguments, _OUTCOME, destructive_hint=False)),
    (get_deliberation, _tool(get_deliberation, DeliberationArguments, DeliberationResult, read_only_hint=True)),
    (cancel_deliberation, _tool(cancel_deliberation, CancelArguments, _OUTCOME, idempotent_hint=True)),
    (list_strategies, _tool(list_strategies, NoArguments, StrategyList, read_only_hint=True)),
    (list_roles, _tool(list_roles, NoArguments, RoleList, read_only_hint=True)),
)
TOOLS: Mapping[str, types.Tool] = {tool.name: tool for _, tool in _TOOLS}
FUNCTIONS: Mapping[str, ToolFunction] = {tool.name: call for call, tool in _TOOLS}
ARGUMENTS: Mapping[str, type[BaseModel]] = {
    "deliberate": DeliberateArguments,
    "get_deliberation": DeliberationArguments,
    "cancel_deliberation": CancelArguments,
    "list_strategies": NoArguments,
    "list_roles": NoArguments,
}


def result_of(answer: RouteAnswer, *, verdict_wanted: bool = False) -> types.CallToolResult:
    """The route's document as text, byte for byte, and as structured content; a problem document alone as text.

    With `verdict_wanted` an end without a verdict is the tool's failure.
    """
    content: list[types.ContentBlock] = [types.TextContent(text=answer.content.decode())]
    if answer.refused:
        return types.CallToolResult(content=content, is_error=True)
    document = answer.document
    if "links" in document:
        id = document["id"]
        content.append(types.ResourceLink(name=f"transcript of {id}", uri=f"{SCHEME}{id}/transcript"))
    failed = verdict_wanted and document.get("status") in _ENDED and document.get("verdict") is None
    return types.CallToolResult(content=content, structured_content=document, is_error=failed)


def refused(answer: RouteAnswer, **named: str) -> MCPError:
    """A refusal's error: the message has each fault, and the data are the problem document and `named`."""
    problem = answer.document
    faults = [f"{fault['pointer']}: {fault['detail'].rstrip('.')}. {fault['remedy']}" for fault in problem["errors"]]
    code = types.INTERNAL_ERROR if answer.status >= 500 else types.INVALID_PARAMS
    return MCPError(code, " ".join(faults) or problem["detail"], {**problem, **named})


def checked(answer: RouteAnswer, **named: str) -> JsonDocument:
    """The document of an answer; raises the MCPError of `refused`."""
    if answer.refused:
        raise refused(answer, **named)
    return answer.document
