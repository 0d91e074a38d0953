"""Routes: what councils are made of, and the ways in which they deliberate."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast, get_args
from urllib.parse import urlsplit, urlunsplit

import yaml
from fastapi import APIRouter, Response
from fastapi import Path as PathParameter

from app.answers import answer, problems
from app.cluster_figures import CircuitState
from app.deliberation.engine import StrategyDefinition
from app.deliberation.errors import InvalidRequest, NotFound
from app.deliberation.roles import Role, parse_roles
from app.gateway import Gateway, InGateway
from app.schemas import (
    EngineView,
    LiveRole,
    ReplicaBounds,
    RoleList,
    RoleResource,
    StrategyList,
    StrategyResource,
    dump,
)
from app.settings import PACKAGED_ROLES

INQUIRY_TIMEOUT_S = 0.5
# What every strategy takes from the request beside task, agents and constraints.
_COMMON_FIELDS = ("quorum", "budget", "sampling", "seed")

_CIRCUITS: Mapping[str, CircuitState] = {state: state for state in get_args(CircuitState)}

router = APIRouter(tags=["roles"])


def read_roles(path: Path | None) -> Mapping[str, Role]:
    """The roles declared in a YAML file, the packaged one when None; raises InvalidRequest naming what is wrong."""
    path = path or PACKAGED_ROLES
    try:
        return parse_roles(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"{path} cannot be read as YAML: {exc}") from exc


def without_credentials(url: str) -> str:
    """A URL without the user and password that it may carry."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def live_role(replies: list[dict[str, Any]]) -> LiveRole | None:
    """What replicas said of themselves, as one view; None when none did. Fields that are missing read as empty."""
    if not replies:
        return None
    engines: dict[str, EngineView] = {}
    for reply in replies:
        for engine in cast("list[dict[str, Any]]", reply.get("engines", [])):
            url = str(engine.get("url", ""))
            healthy = bool(engine.get("healthy")) and (url not in engines or engines[url].healthy)
            told = str(engine.get("circuit"))
            circuit = engines[url].circuit if url in engines and healthy else _CIRCUITS.get(told, "closed")
            engines[url] = EngineView(url=url, healthy=healthy, circuit=circuit, models=tuple(engine.get("models", ())))
    return LiveRole(
        replicas=len(replies),
        models=tuple(sorted({str(reply["model"]) for reply in replies if reply.get("model")})),
        simulated=any(bool(reply.get("simulated")) for reply in replies),
        in_flight=sum(int(reply.get("in_flight", 0)) for reply in replies),
        engines=tuple(engines.values()),
    )


async def replies_of(gateway: Gateway, name: str, role: Role) -> list[dict[str, Any]]:
    """What the role's replicas say of themselves; those that do not within half a second are left out."""
    replies = await gateway["control"].inquire(
        f"control.role.{name}", timeout_s=INQUIRY_TIMEOUT_S, replies_max=role.replicas.max
    )
    for reply in replies:
        for engine in cast("list[dict[str, Any]]", reply.get("engines", [])):
            engine["url"] = without_credentials(str(engine.get("url", "")))
    return replies


async def _described(gateway: Gateway, name: str, role: Role) -> RoleResource:
    replies = await replies_of(gateway, name, role)
    return RoleResource(
        name=name,
        persona=role.persona,
        model=role.model,
        engines=tuple(without_credentials(url) for url in role.engines),
        sampling=role.sampling,
        replicas=ReplicaBounds(min=role.replicas.min, max=role.replicas.max),
        concurrency=role.concurrency,
        live=live_role(replies),
    )


@router.get(
    "/roles",
    operation_id="list_roles",
    summary="Roles, as declared and as they live",
    response_class=Response,
    responses={200: {"model": RoleList, **answer("All roles")}, **problems()},
)
async def list_roles(gateway: InGateway) -> Response:
    """`live` is null for a role whose replicas did not answer within half a second."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_described(gateway, name, role)) for name, role in gateway["roles"].items()]
    return Response(dump(RoleList(items=tuple(task.result() for task in tasks))), media_type="application/json")


@router.get(
    "/roles/{role}",
    operation_id="get_role",
    summary="One role",
    response_class=Response,
    responses={200: {"model": RoleResource, **answer("The role")}, **problems(404)},
)
async def get_role(
    gateway: InGateway, role: Annotated[str, PathParameter(description="Name, as roles.yaml has it")]
) -> Response:
    """`live` is null when no replica answered within half a second."""
    declared = gateway["roles"].get(role)
    if declared is None:
        raise NotFound(f"There is no such role; there are {', '.join(sorted(gateway['roles']))}.")
    return Response(dump(await _described(gateway, role, declared)), media_type="application/json")


def strategy_resource(definition: StrategyDefinition) -> StrategyResource:
    """A strategy as clients read it, with the schema that its parameters are held to."""
    return StrategyResource(
        name=definition.name,
        version=definition.version,
        summary=definition.summary,
        steps=definition.steps,
        calls=definition.formula,
        source=definition.source,
        fields=(("rounds",) if definition.rounds else ()) + _COMMON_FIELDS,
        parameters=definition.parameters.model_json_schema(),
    )


@router.get(
    "/strategies",
    operation_id="list_strategies",
    summary="Ways to deliberate",
    response_class=Response,
    responses={200: {"model": StrategyList, **answer("All strategies")}, **problems()},
)
async def list_strategies(gateway: InGateway) -> Response:
    """Steps, how many model requests they take, where they come from, and which fields steer them."""
    items = tuple(strategy_resource(definition) for definition in gateway["strategies"].values())
    return Response(dump(StrategyList(items=items)), media_type="application/json")
