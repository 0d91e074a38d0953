"""What every route may reach: the state that the lifespan yields, and the dependencies that read a request."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, TypedDict, cast

from fastapi import Depends, Path, Request
from starlette.types import Scope

from app.access.authorization import Access
from app.access.keys import Caller
from app.api.cluster_schemas import LogFigures
from app.catalog.index import Catalog
from app.deliberation.engine import StrategyDefinition
from app.deliberation.errors import InvalidToken, NotFound
from app.deliberation.ports import Clock, Control, Journal
from app.deliberation.roles import Role
from app.deliberation.specification import checked_token
from app.lifecycle.deliberations import Deliberations
from app.observability.metrics import Metrics
from app.settings import Settings
from app.streaming.feed import Feed
from app.streaming.single_flight import SingleFlightCache
from app.streaming.streams import Streams


class Gateway(TypedDict):
    """The gateway's parts, built once by `app.main` and shared by all requests.

    `streams_differ` asks the log for its streams and tells every difference from what is declared; `log_told` asks for
    its figures. `cluster` is the last answer of `GET /cluster`.
    """

    settings: Settings
    journal: Journal
    control: Control
    access: Access
    clock: Clock
    catalog: Catalog
    deliberations: Deliberations
    feed: Feed
    streams: Streams
    roles: Mapping[str, Role]
    strategies: Mapping[str, StrategyDefinition]
    metrics: Metrics
    streams_differ: Callable[[], Awaitable[list[str]]]
    log_told: Callable[[], Awaitable[LogFigures]]
    cluster: SingleFlightCache[bytes]


class SystemClock:
    """The machine's time."""

    def now(self) -> datetime:
        """The present, in UTC."""
        return datetime.now(UTC)


def gateway_in(scope: Scope) -> Gateway:
    """The gateway's parts, as the server hands them to each request after the lifespan yielded them."""
    return cast(Gateway, scope["state"])


async def gateway_of(request: Request) -> Gateway:
    """The gateway's parts, for one request."""
    return gateway_in(request.scope)


async def permitted(request: Request) -> None:
    """Runs before every route; raises what `Access.permit` raises when the credential does not permit it."""
    gateway_in(request.scope)["access"].permit(request.scope, request.scope["route"].operation_id)


async def caller_of(request: Request) -> Caller:
    """Who asks, as `permitted` found it. Where that did not run there is nobody, and the request fails."""
    return request.scope["caller"]


async def tenant_of(request: Request) -> str:
    """Whose deliberations a request is about: the credential alone says so."""
    return request.scope["caller"].tenant


async def deliberation_id_of(
    deliberation_id: Annotated[str, Path(description="Letters a-z, digits, `-` and `_`, at most 64")],
) -> str:
    """The id in the path; raises NotFound, naming what ids are made of, when no deliberation can have it."""
    try:
        return checked_token(deliberation_id, "id")
    except InvalidToken as exc:
        raise NotFound("No deliberation can have this id: ids match [a-z0-9_-]{1,64}.") from exc


InGateway = Annotated[Gateway, Depends(gateway_of)]
OfCaller = Annotated[Caller, Depends(caller_of)]
OfTenant = Annotated[str, Depends(tenant_of)]
DeliberationId = Annotated[str, Depends(deliberation_id_of)]
