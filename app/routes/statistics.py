"""Route: statistics of a period, by day, strategy, role, model or tenant."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.problems import ValidationFailed, query_fault
from app.api.refusals import InsufficientScope
from app.api.responses import answer, problems
from app.api.schemas import Stats, StatsGroup, dump
from app.archive.database.statistics import StatsFilter
from app.routes.dependencies import InGateway, Instant, OfCaller, api_router

PERIOD_DAYS = 30
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=PERIOD_DAYS)

router = api_router("operations")


class StatsQuery(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    since: Instant | None = Field(
        None,
        alias="from",
        description=f"Accepted at this time or later; by default from the day on that is {PERIOD_DAYS} days before",
    )
    until: Instant | None = Field(None, alias="to", description="Accepted earlier; by default everything until now")
    bench: bool = Field(True, description="false: without what `deliberate bench` asked")
    by: StatsGroup | None = Field(None, description="Also the figures of each group; `tenant` needs the scope `admin`")


def _period(query: StatsQuery, now: datetime) -> tuple[datetime, datetime | None]:
    end = now if query.until is None else query.until
    day = max(_BEGINNING, min(end, now)).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    since = query.since or day - timedelta(days=PERIOD_DAYS)
    if since < end:
        return since, query.until
    pointer, remedy = ("from", "Give a past time.") if query.until is None else ("to", "Give a time after `from`.")
    raise ValidationFailed([query_fault(pointer, "empty_period", "The period has no duration", remedy)])


@router.get(
    "/stats",
    summary="Counts, durations, tokens, costs and wins",
    responses={200: answer("Of the deliberations of a period", model=Stats), **problems(422, 503)},
)
async def get_stats(gateway: InGateway, caller: OfCaller, query: Annotated[StatsQuery, Query()]) -> Response:
    """Durations are seconds from acceptance to a verdict; tokens are what the engines reported.

    With `by=tenant` all tenants, otherwise the caller's.
    """
    if query.by == "tenant" and "admin" not in caller.scopes:
        raise InsufficientScope(("read", "admin"), ("admin",))
    now = gateway["clock"].now()
    since, until = _period(query, now)
    tenant = None if query.by == "tenant" else caller.tenant
    stats = await gateway["lists"].stats(StatsFilter(tenant, since, until, now, query.by, query.bench))
    stats = stats.model_copy(update={"spend": gateway["deliberations"].spend(caller.tenant)})
    return Response(dump(stats), headers={"Cache-Control": "no-store"}, media_type="application/json")
