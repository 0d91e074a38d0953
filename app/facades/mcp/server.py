"""The MCP server: tools, tasks, resources and prompts over the REST routes, with no state between requests."""

import json
from collections.abc import Callable
from importlib.metadata import version
from typing import Any
from urllib.parse import quote, unquote

import mcp_types as types
from mcp import MCPError
from mcp.server import Server
from mcp.server.caching import CacheHint
from pydantic import Field

from app.api.request_body import parsed_body
from app.api.request_model import (
    RequestModel,
)
from app.api.requests import (
    TASK_CHARS_MAX,
)
from app.api.suggestions import did_you_mean
from app.deliberation.errors import DeliberationError
from app.deliberation.lenient_arguments import as_meant
from app.facades.mcp.rest import AskRoute, JsonDocument, encoded, path_of, refusal
from app.facades.mcp.tasks import add_tasks, declared, task_of
from app.facades.mcp.tools import (
    ARGUMENTS,
    FUNCTIONS,
    SCHEME,
    SUMMARY,
    TOOLS,
    McpContext,
    checked,
    refused,
    result_of,
    submitted,
)

NAME = "deliberation-gateway"
PAGE = 50
# Tools and templates change with the gateway's version alone.
FRESH = CacheHint(ttl_ms=60_000, scope="public")
INSTRUCTIONS = (
    "A council of LLM agents deliberates on a task. Call `deliberate` with the task, and with `strategy`, `role` or "
    "`agents` from `list_strategies` and `list_roles` where the defaults do not fit. A result without a verdict has "
    "an id: call `get_deliberation` with it and `wait_seconds`. Tell when a verdict is degraded, a tie, or has dissent."
)
_JSON = "application/json"
# The parts of a deliberation that are resources: the query of the route, and a description.
_PARTS = {
    "verdict": (SUMMARY, "The outcome: winner, ranking, dissent, cost; or why there is none"),
    "transcript": ("", "All that was asked, answered, criticised and revised, by agent"),
}


class CouncilPrompt(RequestModel, strict=False):
    """The arguments of a prompt, all of them strings."""

    task: str = Field(min_length=1, max_length=TASK_CHARS_MAX, description="The question or task")
    role: str | None = Field(default=None, description="Role of the agents; DEV if absent")
    num_agents: int | None = Field(default=None, description="Number of agents; 3 if absent")


def _unknown(kind: str, name: str, known: Any) -> MCPError:  # noqa: ANN401 -- names
    return MCPError(types.INVALID_PARAMS, f"No {kind} is named {name[:64]!r}. {did_you_mean(name, known)}".strip())


# Long by its parts, one for each method of the protocol.
def mcp_server(ask_of: Callable[[McpContext], AskRoute]) -> Server[Any]:
    """A server that asks the routes of a gateway as `ask_of` a request says."""

    async def list_tools(context: McpContext, params: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[*TOOLS.values()])

    async def call_tool(
        context: McpContext, params: types.CallToolRequestParams
    ) -> types.CallToolResult | JsonDocument:
        if params.name not in TOOLS:
            raise _unknown("tool", params.name, TOOLS)
        ask, deliberates = ask_of(context), params.name == "deliberate"
        as_task = deliberates and declared(context)
        try:
            # Clients and models write values into strings, and null for what they leave out.
            meant = as_meant(params.arguments or {}, ARGUMENTS[params.name])
            arguments = {name: value for name, value in meant.items() if value is not None}
            answer = await (submitted if as_task else FUNCTIONS[params.name])(ask, context, arguments)
        except DeliberationError as error:
            answer = refusal(error)
        if as_task and not answer.refused:
            return {"resultType": "task", **task_of(answer.document)}
        return result_of(answer, verdict_wanted=deliberates)

    async def list_resources(
        context: McpContext, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        cursor = "" if params is None or params.cursor is None else f"&cursor={quote(params.cursor)}"
        page = checked(await ask_of(context)("GET", f"/deliberations?status=completed&limit={PAGE}{cursor}"))
        tasks = {deliberation["id"]: deliberation["task"] for deliberation in page["items"]}
        resources = [
            types.Resource(name=f"verdict of {id}", title=task, uri=f"{SCHEME}{id}/verdict", mime_type=_JSON)
            for id, task in tasks.items()
        ]
        return types.ListResourcesResult(resources=resources, next_cursor=page["next_cursor"])

    async def list_templates(context: McpContext, params: object) -> types.ListResourceTemplatesResult:
        templates = [
            types.ResourceTemplate(name=part, uri_template=f"{SCHEME}{{id}}/{part}", description=text, mime_type=_JSON)
            for part, (_, text) in _PARTS.items()
        ]
        return types.ListResourceTemplatesResult(resource_templates=templates)

    async def read_resource(context: McpContext, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        id, _, part = params.uri.removeprefix(SCHEME).partition("/")
        if not params.uri.startswith(SCHEME) or part not in _PARTS:
            detail = f"No resource has this URI. Give {SCHEME}<id>/{' or '.join(_PARTS)}."
            raise MCPError(types.INVALID_PARAMS, detail, {"uri": params.uri})
        answer = await ask_of(context)("GET", path_of(unquote(id), _PARTS[part][0]))
        checked(answer, uri=params.uri)
        text = types.TextResourceContents(uri=params.uri, mime_type=_JSON, text=answer.content.decode())
        return types.ReadResourceResult(contents=[text])

    async def list_prompts(context: McpContext, params: object) -> types.ListPromptsResult:
        items = checked(await ask_of(context)("GET", "/strategies"))["items"]
        arguments = [
            types.PromptArgument(name=name, description=field.description, required=field.is_required())
            for name, field in CouncilPrompt.model_fields.items()
        ]
        prompts = [types.Prompt(name=it["name"], description=it["summary"], arguments=arguments) for it in items]
        return types.ListPromptsResult(prompts=prompts)

    async def get_prompt(context: McpContext, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        strategies = {
            strategy["name"]: strategy for strategy in checked(await ask_of(context)("GET", "/strategies"))["items"]
        }
        if params.name not in strategies:
            raise _unknown("prompt", params.name, strategies)
        try:
            asked = parsed_body(encoded(params.arguments or {}), CouncilPrompt)
        except DeliberationError as error:
            raise refused(refusal(error)) from error
        arguments = {**asked.model_dump(exclude_none=True), "strategy": params.name}
        text = (
            "Call the tool `deliberate` with these arguments, and tell me the verdict, how clear it was, and what the "
            f"minority held:\n{json.dumps(arguments, ensure_ascii=False)}"
        )
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description=strategies[params.name]["summary"], messages=[message])

    server = Server(
        NAME,
        version=version(NAME),
        title="Deliberation Gateway",
        instructions=INSTRUCTIONS,
        cache_hints={"tools/list": FRESH, "resources/templates/list": FRESH},
        get_tool_input_schema=lambda name: TOOLS[name].input_schema if name in TOOLS else None,
        on_list_tools=list_tools,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )
    server.add_request_handler("tools/call", types.CallToolRequestParams, call_tool)
    add_tasks(server, ask_of)
    return server
