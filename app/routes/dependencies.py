"""The dependencies of routes: the state that the lifespan yields, and the readers of a request."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict, cast

from fastapi import APIRouter, Depends, HTTPException, Path, Request, Response
from pydantic import AwareDatetime, BeforeValidator, Field
from starlette.types import Scope

from app.access.authorization import Access
from app.access.key_writer import KeyWriter
from app.access.keys import Caller
from app.access.rate_limit import Rates
from app.api.problems import TooManyStreams, refused
from app.catalog.index import Catalog
from app.deliberation.decider import StrategyDefinition
from app.deliberation.errors import InvalidToken, NotFound
from app.deliberation.ports import Clock
from app.deliberation.roles import Role
from app.deliberation.specification import checked_token
from app.lifecycle.deliberations import Deliberations
from app.lifecycle.files import Files
from app.lifecycle.lists import Lists
from app.log.gateway_log import GatewayLog
from app.observability.metrics import Metrics
from app.observability.traces import Tracer
from app.operations.surveyor import Surveyor
from app.settings import Settings
from app.streaming.feed import Feed
from app.streaming.streams import Streams
from app.tenant_slots import TenantTurns

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


class Gateway(TypedDict):
    """The gateway's parts, built once by `app.main` and shared by all requests.

    `surveyor` asks the other processes. `key_writer` is None where this gateway may not write keys, `key_rates` bound
    the new ones, `body_turns` orders long bodies. `tracer` is None where no trace is recorded.
    """

    settings: Settings
    journal: GatewayLog
    access: Access
    key_writer: KeyWriter | None
    key_rates: Rates
    body_turns: TenantTurns
    clock: Clock
    catalog: Catalog
    deliberations: Deliberations
    files: Files
    lists: Lists
    feed: Feed
    streams: Streams
    roles: Mapping[str, Role]
    strategies: Mapping[str, StrategyDefinition]
    metrics: Metrics
    surveyor: Surveyor
    tracer: Tracer | None


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)


def api_router(tag: str, prefix: str = "") -> APIRouter:
    """A router for operations with this tag; an operation's id is the name of its function."""
    return APIRouter(
        prefix=prefix, tags=[tag], default_response_class=Response, generate_unique_id_function=lambda route: route.name
    )


def gateway_in(scope: Scope) -> Gateway:
    return cast(Gateway, scope["state"])


async def gateway_of(request: Request) -> Gateway:
    return gateway_in(request.scope)


def registry_of(gateway: Gateway) -> dict[str, Any]:
    """The `strategies` and `roles`, each by name, the labels of `clusters`, and the rules of `webhooks`.

    The rules are None where the gateway sends none.
    """
    settings = gateway["settings"]
    webhooks = settings.webhook_rules if settings.webhooks else None
    names = {"roles": gateway["roles"], "strategies": gateway["strategies"], "clusters": settings.clusters}
    return {**names, "webhooks": webhooks}


@contextmanager
def stream_slot(gateway: Gateway, client: str, instead: str) -> Generator[None]:
    """Hold a stream slot of the client; raises TooManyStreams with the remedies to close some, or `instead`."""
    if not gateway["feed"].acquire_slot(client):
        raise TooManyStreams(f"Too many event streams are open; close some, or {instead}.")
    try:
        with gateway["metrics"].sse_viewers.track_inprogress():
            yield
    finally:
        gateway["feed"].release_slot(client)


async def permitted(request: Request) -> None:
    gateway_in(request.scope)["access"].permit(request.scope, request.scope["route"].unique_id)


async def caller_of(request: Request) -> Caller:
    """The caller that `permitted` set; the request fails if `permitted` did not run."""
    return request.scope["caller"]


async def tenant_of(request: Request) -> str:
    return request.scope["caller"].tenant


async def may_read(request: Request) -> bool:
    return "read" in request.scope["caller"].scopes


async def deliberation_id_of(
    request: Request,
    deliberation_id: Annotated[str, Path(description="Letters a-z, digits, `-` and `_`, at most 64")],
) -> str:
    """The id; raises NotFound for one that no deliberation can have, and 405 where the path is another operation's."""
    if request.scope["path"] in request.app.state.served_paths:
        raise HTTPException(405)
    try:
        return checked_token(deliberation_id, "id")
    except InvalidToken as exc:
        raise NotFound("No deliberation can have this id: ids match [a-z0-9_-]{1,64}.") from exc


def _rfc3339(time: object) -> object:
    """A time in RFC 3339's form only; pydantic would also accept a number of seconds."""
    if not isinstance(time, str) or _RFC_3339.fullmatch(time) is None:
        raise refused("not_rfc_3339", "Not a time in the form of RFC 3339", "Write it as 2026-01-01T00:00:00Z.")
    return time


Instant = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_rfc3339)]
InGateway = Annotated[Gateway, Depends(gateway_of)]
OfCaller = Annotated[Caller, Depends(caller_of)]
OfTenant = Annotated[str, Depends(tenant_of)]
MayRead = Annotated[bool, Depends(may_read)]
DeliberationId = Annotated[str, Depends(deliberation_id_of)]
