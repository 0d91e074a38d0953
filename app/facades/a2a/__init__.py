"""Routes: A2A 1.0 (https://a2a-protocol.org/v1.0.0/specification) by JSON-RPC. Leaving cancels nothing."""

from datetime import datetime
from hashlib import sha256
from importlib.metadata import version
from typing import get_args

from fastapi import Request, Response
from pydantic_core import to_json

from app.access.authorization import DEVELOPER
from app.access.keys import Scope
from app.api.headers import names_etag, submission_of
from app.api.refusals import InsufficientScope
from app.api.request_body import json_body, parsed_body
from app.api.responses import problems
from app.api.schemas import Status
from app.api.webhook_payloads import TASK_CONTEXT, TASK_STATES
from app.catalog.entries import Entry, ListFilter
from app.deliberation.errors import NotFound
from app.facades.a2a.reader import (
    UNSPECIFIED,
    ConfigListParams,
    ConfigParams,
    JsonRpcCall,
    JsonRpcId,
    ListParams,
    SendParams,
    TaskParams,
)
from app.facades.a2a.writer import A2A_ERRORS, ASKED, A2AObject, TaskRefused, TaskWriter, answer, task_of
from app.facades.declaration import Facade
from app.facades.door import CLIENT_LEFT, Council, Door, InDoor
from app.routes.dependencies import OfCaller, api_router

CANCELLED = "the A2A client cancelled the task"
# How the names of the methods begin that change nothing.
READS = ("Get", "List", "Subscribe")
VERSION = version("deliberation-gateway")
_ABOUT = "Councils of LLM agents. The request's metadata chooses strategy, roles and more, as in POST /deliberations."

_SECURITY: A2AObject = {
    "securitySchemes": {"key": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
    "securityRequirements": [{"schemes": {"key": {"list": []}}}],
}

INPUT_MODES = [
    *("text/plain", "text/markdown", "text/csv", "application/json", "application/pdf"),
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    *("image/png", "image/jpeg", "image/webp", "image/gif"),
]

router = api_router("a2a")


def _card(request: Request, door: Door, *, extended: bool) -> A2AObject:
    known, interface = door.registry, {"protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    skills = [(name, "strategy", definition.summary) for name, definition in known["strategies"].items()]
    if extended:
        skills += [(f"council/{name}", "role", role.persona) for name, role in known["roles"].items()]
    push = known["webhooks"] is not None
    return {
        "name": "Deliberation Gateway", "description": _ABOUT, "version": VERSION,
        "supportedInterfaces": [{"url": f"{request.base_url}a2a", **interface}],
        "capabilities": {"streaming": True, "pushNotifications": push, "extendedAgentCard": True},
        **({} if request.scope["caller"] is DEVELOPER else _SECURITY),
        "defaultInputModes": INPUT_MODES, "defaultOutputModes": ["text/plain", "application/json"],
        "skills": [{"id": id, "name": id, "description": text, "tags": ["council", kind]} for id, kind, text in skills],
    }  # fmt: skip


@router.get("/.well-known/agent-card.json", include_in_schema=False)
@router.get("/a2a/.well-known/agent-card.json", include_in_schema=False)
async def get_agent_card(request: Request, door: InDoor) -> Response:
    """The public card: the strategies, and no role of this installation."""
    content = to_json(_card(request, door, extended=False))
    headers = {"Cache-Control": "max-age=300", "ETag": f'"{sha256(content).hexdigest()[:32]}"'}
    if names_etag(request, "if-none-match", headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type="application/json")


async def _accepted(request: Request, door: Door, asked: SendParams) -> Council:
    if asked.message.task_id:
        await door.council(asked.message.task_id)
        raise TaskRefused("unsupported_operation", "A task takes no second message; leave taskId out.")
    submission = submission_of(request, {ASKED: {"messageId": asked.message.message_id}})
    asked_for = asked.deliberation(door.registry)
    return await door.accept(asked_for, submission, kept=True, files=asked.files, places=asked.in_the_params)


def _latest(entry: Entry) -> datetime:
    latest = entry.ended_at or entry.started_at or entry.created_at
    assert latest is not None, "an entry of a list has been accepted"
    return latest


async def _listed(door: Door, entry: Entry, asked: ListParams) -> A2AObject:
    """A task of a list: its status, and its history and artifacts where they are asked for."""
    if asked.include_artifacts or asked.history_length:
        task = task_of((await door.council(entry.id)).state, asked.history_length or 0)
        return task if asked.include_artifacts else {name: task[name] for name in task if name != "artifacts"}
    status = {"state": TASK_STATES[entry.status], "timestamp": _latest(entry)}
    return {"id": entry.id, "contextId": entry.metadata.get(TASK_CONTEXT, entry.id), "status": status}


async def _list(door: Door, asked: ListParams) -> A2AObject:
    """Newest first. `totalSize` counts the page, and one more if another page follows.

    A page shows fewer tasks than its size where a time hides some; the token goes on behind them.
    """
    statuses = frozenset(status for status in get_args(Status) if TASK_STATES[status] == asked.status)
    if asked.status not in (None, UNSPECIFIED) and not statuses:
        return {"tasks": [], "nextPageToken": "", "pageSize": asked.page_size, "totalSize": 0}
    context = {TASK_CONTEXT: asked.context_id} if asked.context_id else {}
    page = await door.page(ListFilter(statuses=statuses, metadata=context), asked.page_size, asked.page_token)
    since = asked.status_timestamp_after
    shown = [entry for entry in page.entries if since is None or _latest(entry) >= since]
    tasks = [await _listed(door, entry, asked) for entry in shown]
    more = page.next_cursor or ""
    return {"tasks": tasks, "nextPageToken": more, "pageSize": asked.page_size, "totalSize": len(tasks) + bool(more)}


async def _configs(door: Door, asked: ConfigParams) -> list[A2AObject]:
    hook = (await door.council(asked.task_id)).state.specification.webhook
    if hook is None or hook.format != "a2a":
        return []
    id = hook.metadata.get("configId", asked.task_id)
    return [{"id": id, "taskId": asked.task_id, "url": hook.url}] if asked.id in (None, id) else []


# Long by its cases, one for each method.
async def _answered(request: Request, door: Door, call: JsonRpcCall) -> A2AObject | Response:
    params = to_json(call.params)
    match call.method:
        case "SendMessage" | "SendStreamingMessage":
            asked = parsed_body(params, SendParams)
            council = await _accepted(request, door, asked)
            if call.method == "SendStreamingMessage":
                return council.stream(TaskWriter(request, council.state), {})
            state = council.state
            if not asked.configuration.return_immediately:
                if (ended := await council.wait(request)) is None:
                    return Response(status_code=CLIENT_LEFT)
                # A gateway that stops answers with the unfinished task: else its client would pay for a second task.
                state = (await council.told(ended=ended)).state
            return {"task": task_of(state, asked.configuration.history_length)}
        case "GetTask" | "CancelTask" | "SubscribeToTask":
            asked = parsed_body(params, TaskParams)
            council = await door.council(asked.id)
            state = council.state
            if call.method == "GetTask":
                return task_of(state, asked.history_length)
            if state.ended:
                code = "task_not_cancelable" if call.method == "CancelTask" else "unsupported_operation"
                raise TaskRefused(code, "The task has ended; GetTask shows it.")
            if call.method == "SubscribeToTask":
                return council.stream(TaskWriter(request, state), {}, viewer=True)
            return task_of(await council.cancel(CANCELLED), asked.history_length)
        case "ListTasks":
            return await _list(door, parsed_body(params, ListParams))
        case "ListTaskPushNotificationConfigs":
            return {"configs": await _configs(door, parsed_body(params, ConfigListParams)), "nextPageToken": ""}
        case "GetTaskPushNotificationConfig":
            for config in await _configs(door, parsed_body(params, ConfigParams)):
                return config
            raise NotFound("The task has no such configuration.")
        case "CreateTaskPushNotificationConfig" | "DeleteTaskPushNotificationConfig":
            detail = "A task keeps its receiver: give configuration.taskPushNotificationConfig with its message."
            raise TaskRefused("unsupported_operation", detail)
        case "GetExtendedAgentCard":
            return _card(request, door, extended=True)
        case _:
            raise TaskRefused("method_unknown", f"A2A 1.0 has no method {call.method!r}.")


@router.post("/a2a", include_in_schema=False)
async def call_a2a(request: Request, door: InDoor, caller: OfCaller) -> Response:
    """A call of A2A 1.0 by JSON-RPC."""
    content = await json_body(request)
    request.scope["rpc_id"] = parsed_body(content, JsonRpcId).id
    call = parsed_body(content, JsonRpcCall)
    request.scope["rpc_read"] = True
    asked = request.headers.get("a2a-version") or request.query_params.get("A2A-Version") or "0.3"
    if asked.split(".")[:2] != ["1", "0"]:
        raise TaskRefused("version_not_supported", f"A2A {asked[:16]} is not served: send A2A-Version: 1.0.")
    scopes: tuple[Scope, ...] = ("read",) if call.method.startswith(READS) else ("submit", "read")
    if missing := [scope for scope in scopes if scope not in caller.scopes]:
        raise InsufficientScope(scopes, missing)
    told = await _answered(request, door, call)
    return told if isinstance(told, Response) else Response(answer(request, result=told), media_type="application/json")


A2A = Facade(router, "a2a", "A2A 1.0: JSON-RPC at `/a2a`, as that protocol describes it", "/a2a", A2A_ERRORS, problems)
