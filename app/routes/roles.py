"""Routes: roles, their tools, and strategies."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import Path as PathParameter
from fastapi import Response

from app.api.cluster_schemas import (
    EngineView,
    LiveRole,
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
from app.api.suggestions import did_you_mean
from app.deliberation.errors import NotFound
from app.deliberation.roles import Role
from app.deliberation.tools import FILES_TOOLS, WORKSPACE_LIMITS, WORKSPACE_TOOLS, RoleTools
from app.observability.replica_status import AgentStatus, earliest, read
from app.routes.dependencies import Gateway, InGateway, api_router

INQUIRY_TIMEOUT_S = 0.5

router = api_router("roles")


def live_role(replicas: Sequence[AgentStatus]) -> LiveRole | None:
    if not replicas:
        return None
    engines: dict[str, EngineView] = {}
    for replica in replicas:
        for engine in replica.engines:
            known = engines.get(engine.url)
            healthy = engine.healthy and (known is None or known.healthy)
            circuit = known.circuit if known and healthy else engine.circuit
            engines[engine.url] = EngineView(
                url=engine.url,
                healthy=healthy,
                circuit=circuit,
                models=engine.models,
                unreachable=earliest((known and known.unreachable, engine.unreachable)),
                name=engine.name,
                list_problem=engine.list_problem or (known.list_problem if known else ""),
                key_rejected=earliest((known and known.key_rejected, engine.key_rejected)),
                trouble=earliest((known and known.trouble, engine.trouble)),
            )
    return LiveRole(
        replicas=len(replicas),
        models=tuple(sorted({replica.model for replica in replicas if replica.model})),
        simulated=any(replica.simulated for replica in replicas),
        in_flight=sum(replica.in_flight for replica in replicas),
        engines=tuple(engines.values()),
    )


async def replicas_of(
    gateway: Gateway, name: str, role: Role, replies_max: int | None = None
) -> tuple[AgentStatus, ...]:
    """The valid status replies of a role's replicas within half a second, at most `replies_max`; all if absent."""
    replies = await gateway["journal"].inquire(
        f"control.role.{name}", timeout_s=INQUIRY_TIMEOUT_S, replies_max=replies_max or role.replicas.max
    )
    return read(AgentStatus, replies)[0]


async def _described(gateway: Gateway, name: str, role: Role) -> RoleResource:
    replicas = await replicas_of(gateway, name, role)
    return RoleResource(
        name=name,
        persona=role.persona,
        model=role.model,
        engines=tuple(spec.address for spec in role.engines),
        fallback=tuple(spec.address for spec in role.fallback),
        sampling=role.sampling,
        replicas=ReplicaBounds(min=role.replicas.min, max=role.replicas.max),
        concurrency=role.concurrency,
        live=live_role(replicas),
    )


@router.get(
    "/roles",
    summary="Roles, as declared and with their live replicas",
    responses={200: answer("All roles", model=RoleList), **problems()},
)
async def list_roles(gateway: InGateway) -> Response:
    """`live` is null for a role when none of its replicas answered within half a second."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_described(gateway, name, role)) for name, role in gateway["roles"].items()]
    return Response(dump(RoleList(items=tuple(task.result() for task in tasks))), media_type="application/json")


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
        raise NotFound(f"This role does not exist. {meant}The roles are {', '.join(sorted(roles))}.")
    return Response(dump(await _described(gateway, name, roles[name])), media_type="application/json")


async def _tools(gateway: Gateway, name: str, role: Role) -> RoleToolsView:
    replicas = await replicas_of(gateway, name, role)
    return RoleToolsView(role=name, servers=tuple(_server(each, replicas) for each in role.tools))


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
    seen = [each for replica in replicas for each in replica.tools if each.name == server]
    if not seen:
        return None
    away = min((each for each in seen if each.away_since), key=lambda each: str(each.away_since), default=None)
    return ToolServerHealth(
        connected=sum(each.connected for each in seen),
        tools=tuple(sorted({tool for each in seen for tool in each.tools})),
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
    async with asyncio.TaskGroup() as group:
        roles = [(name, role) for name, role in gateway["roles"].items() if role.tools]
        tasks = [group.create_task(_tools(gateway, name, role)) for name, role in roles]
    workspace = None
    settings, files = gateway["settings"], WorkspaceToolsView(tools=FILES_TOOLS, per_call=WORKSPACE_LIMITS)
    if settings.workspaces or settings.tenant_workspaces:
        workspace = WorkspaceToolsView(tools=WORKSPACE_TOOLS, per_call=WORKSPACE_LIMITS)
    found = ToolList(items=tuple(task.result() for task in tasks), workspace=workspace, files=files)
    return Response(dump(found), media_type="application/json")


@router.get(
    "/strategies",
    summary="Strategies",
    responses={200: answer("All strategies", model=StrategyList), **problems()},
)
async def list_strategies(gateway: InGateway) -> Response:
    """Each strategy with its steps, number of requests, source, and the fields that configure it."""
    items = tuple(StrategyResource.of(definition) for definition in gateway["strategies"].values())
    return Response(dump(StrategyList(items=items)), media_type="application/json")
