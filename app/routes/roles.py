"""Routes: roles, their tools, and strategies."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Path as PathParameter
from fastapi import Response

from app.api.installation import (
    ReplicaBounds,
    RoleList,
    RoleResource,
    RoleToolsView,
    ToolList,
    ToolServerHealth,
    ToolServerView,
    WorkspaceToolsView,
)
from app.api.responses import answer, problems
from app.api.schemas import StrategyList, StrategyResource, dump
from app.api.suggestions import GIVEN_CHARS_MAX, did_you_mean
from app.deliberation.errors import NotFound
from app.deliberation.tools import FILES_TOOLS, WORKSPACE_LIMITS, WORKSPACE_TOOLS, RoleTools
from app.observability.replica_status import AgentStatus
from app.operations.document import live_role
from app.routes.dependencies import Gateway, InGateway, api_router

router = api_router("roles")


async def _described(gateway: Gateway, *names: str) -> tuple[RoleResource, ...]:
    agents, _ = await gateway["surveyor"].agents(names)
    return tuple(
        RoleResource(
            name=name,
            persona=role.persona,
            model=role.model,
            engines=tuple(spec.address for spec in role.engines),
            fallback=tuple(spec.address for spec in role.fallback),
            sampling=role.sampling,
            replicas=ReplicaBounds(min=role.replicas.min, max=role.replicas.max),
            concurrency=role.concurrency,
            live=live_role([agent for agent in agents if agent.role == name]),
        )
        for name in names
        if (role := gateway["roles"][name])
    )


@router.get(
    "/roles",
    summary="Roles, as declared and with their live replicas",
    responses={200: answer("All roles", model=RoleList), **problems()},
)
async def list_roles(gateway: InGateway) -> Response:
    """`live` is null for a role when none of its replicas answered within half a second."""
    roles = await _described(gateway, *gateway["roles"])
    return Response(dump(RoleList(items=roles)), media_type="application/json")


@router.get(
    "/roles/{role}",
    summary="One role",
    responses={200: answer("The role", model=RoleResource), **problems(404)},
)
async def get_role(
    gateway: InGateway, role: Annotated[str, PathParameter(description="Name of the role in roles.yaml, in any case")]
) -> Response:
    """`live` is null when no replica answered within half a second."""
    roles, name = gateway["roles"], role.upper()
    if name not in roles:
        meant = did_you_mean(role, roles)
        shown = role if len(role) <= GIVEN_CHARS_MAX else f"{role[:GIVEN_CHARS_MAX]}…"
        raise NotFound(f"The role {shown!r} does not exist. {meant}The roles are {', '.join(sorted(roles))}.")
    (described,) = await _described(gateway, name)
    return Response(dump(described), media_type="application/json")


def _server(declared: RoleTools, replicas: Sequence[AgentStatus]) -> ToolServerView:
    health = tool_health(declared.mcp.name, replicas)
    known = health.tools if health is not None and health.connected else declared.allow
    return ToolServerView(
        name=declared.mcp.name,
        address=declared.mcp.address,
        allow=declared.allow,
        missing=tuple(tool for tool in declared.allow if tool not in known),
        per_call=declared.per_call,
        concurrency=declared.mcp.concurrency,
        health=health,
    )


def tool_health(server: str, replicas: Sequence[AgentStatus]) -> ToolServerHealth | None:
    views = [view for replica in replicas for view in replica.tools if view.name == server]
    if not views:
        return None
    away = min((view for view in views if view.away_since), key=lambda view: str(view.away_since), default=None)
    return ToolServerHealth(
        connected=sum(view.connected for view in views),
        tools=tuple(sorted({tool for view in views for tool in view.tools})),
        away_since=away and away.away_since,
        why=away.why if away else "",
    )


@router.get(
    "/tools",
    summary="Tools that agents may use, with the health of their servers",
    responses={200: answer("The tools of all roles that have some, and of workspaces", model=ToolList), **problems()},
)
async def list_tools(gateway: InGateway) -> Response:
    """`health` is null for a server when no replica of its role answered within half a second."""
    roles = {name: role for name, role in gateway["roles"].items() if role.tools}
    agents, _ = await gateway["surveyor"].agents(roles)
    workspace = None
    settings, files = gateway["settings"], WorkspaceToolsView(tools=FILES_TOOLS, per_call=WORKSPACE_LIMITS)
    if settings.workspaces or settings.tenant_workspaces:
        workspace = WorkspaceToolsView(tools=WORKSPACE_TOOLS, per_call=WORKSPACE_LIMITS)
    items = tuple(
        RoleToolsView(
            role=name,
            servers=tuple(_server(tools, [agent for agent in agents if agent.role == name]) for tools in role.tools),
        )
        for name, role in roles.items()
    )
    return Response(dump(ToolList(items=items, workspace=workspace, files=files)), media_type="application/json")


@router.get(
    "/strategies",
    summary="Strategies",
    responses={200: answer("All strategies", model=StrategyList), **problems()},
)
async def list_strategies(gateway: InGateway) -> Response:
    """Each strategy with its steps, number of requests, source, and the fields that configure it."""
    items = tuple(StrategyResource.of(definition) for definition in gateway["strategies"].values())
    return Response(dump(StrategyList(items=items)), media_type="application/json")
