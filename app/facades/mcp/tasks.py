"""The tasks extension (SEP-2663, 2026-07-28): a task is a deliberation, its id the deliberation's.

The log is the store: any gateway answers, also after a restart. https://github.com/modelcontextprotocol/ext-tasks
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from mcp import MCPError
from mcp.server import Server
from mcp.server.mcpserver import require_client_extension
from mcp_types import HEADER_MISMATCH, EmptyResult
from mcp_types import GetTaskRequestParams as TaskParams

from app.facades.mcp.rest import AskRoute, JsonDocument, path_of
from app.facades.mcp.tools import SUMMARY, McpContext, checked, result_of, stage_of

TASKS = "io.modelcontextprotocol/tasks"
POLL_MS = 1_000
CANCELLED = "the MCP client cancelled the task"


def declared(context: McpContext) -> bool:
    """Whether this request declares the extension."""
    capabilities = context.session.client_capabilities
    return capabilities is not None and TASKS in (capabilities.extensions or ())


def task_of(document: JsonDocument) -> JsonDocument:
    """A task without its result, from a deliberation as a route shows it."""
    kept = datetime.fromisoformat(document["retention_until"]) - datetime.fromisoformat(document["created_at"])
    # A deliberation that failed is a tool's failure, which is a completed task.
    status = {"cancelled": "cancelled", "completed": "completed", "failed": "completed", "timeout": "completed"}
    return {
        "taskId": document["id"],
        "status": status.get(document["status"], "working"),
        "statusMessage": document.get("status_reason") or stage_of(document)[1],
        "createdAt": document["created_at"],
        "lastUpdatedAt": document["ended_at"] or document["started_at"] or document["created_at"],
        "ttlMs": round(kept.total_seconds() * 1_000),
        "pollIntervalMs": POLL_MS,
    }


def _check(context: McpContext, params: TaskParams) -> None:
    require_client_extension(context, TASKS)
    named = None if context.request is None else context.request.headers.get("mcp-name")
    if named is not None and named.strip() != params.task_id:
        raise MCPError(HEADER_MISMATCH, "The header Mcp-Name names another task than params.taskId.")


def add_tasks(server: Server[Any], ask_of: Callable[[McpContext], AskRoute]) -> None:
    """Serve the extension's methods."""

    async def get(context: McpContext, params: TaskParams) -> JsonDocument:
        _check(context, params)
        answer = await ask_of(context)("GET", path_of(params.task_id, SUMMARY))
        task = task_of(checked(answer))
        if task["status"] == "completed":
            task["result"] = result_of(answer, verdict_wanted=True).model_dump(by_alias=True, exclude_none=True)
        return task

    async def update(context: McpContext, params: TaskParams) -> EmptyResult:
        """Acknowledge responses; no task asks for any."""
        _check(context, params)
        checked(await ask_of(context)("GET", path_of(params.task_id, SUMMARY)))
        return EmptyResult(result_type="complete")

    async def cancel(context: McpContext, params: TaskParams) -> EmptyResult:
        _check(context, params)
        checked(await ask_of(context)("POST", path_of(params.task_id, "/cancel"), {"reason": CANCELLED}))
        return EmptyResult(result_type="complete")

    server.extensions[TASKS] = {}
    server.add_request_handler("tasks/get", TaskParams, get)
    server.add_request_handler("tasks/update", TaskParams, update)
    server.add_request_handler("tasks/cancel", TaskParams, cancel)
