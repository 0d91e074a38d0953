"""The process that takes plans: its settings, a consumer of the planning service's events, and a health port."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import structlog
from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

from app.admission.backlog import Backlog
from app.admission.spends import DailySpends, SpendLimits
from app.archive.database.connection import Database
from app.archive.database.store import Store
from app.catalog.index import Catalog
from app.deliberation.specification import Token
from app.deliberation.strategies import STRATEGIES
from app.lifecycle.context import ContextHydrator
from app.lifecycle.deliberations import Deliberations
from app.log.journal import JetStreamJournal
from app.log.queue_worker import QueueWorker
from app.log.signature import LogSigner
from app.log.stream_settings import PLANNING_CONSUMER, PLANNING_STREAM
from app.observability.process import STARTED_AT, VERSIONS, work_until_stopped
from app.observability.replica_status import PLANNERS_SUBJECT
from app.planning.consumer import PlanConsumer
from app.planning.plans import Plans
from app.process_settings import listed, read_roles, setting
from app.routes.dependencies import SystemClock
from app.settings import AcceptanceRules

Tenants = Annotated[tuple[Token, ...], NoDecode, BeforeValidator(listed), Field(min_length=1)]


class PlanningSettings(AcceptanceRules):
    planning_tenants: Tenants = setting(
        ("default",),
        "Tenants whose plans are taken, separated by commas. A plan may name one; the first is that of the others.",
    )
    planning_host: str = setting("127.0.0.1", "Address of /healthz.", min_length=1)
    planning_port: int = setting(8083, "Port of /healthz; 0 takes a free one.", ge=0, le=65_535)


log = structlog.get_logger(__name__)


async def figures(journal: JetStreamJournal, consumer: PlanConsumer) -> dict[str, Any]:
    found = await journal.request(f"$JS.API.CONSUMER.INFO.{PLANNING_STREAM}.{PLANNING_CONSUMER}")
    return {
        "replica": f"planning-{os.getpid()}",
        "started_at": STARTED_AT,
        "versions": VERSIONS,
        "counts": dict(consumer.counts),
        "contexts": dict(consumer.contexts),
        "pending": found.get("num_pending", 0) + found.get("num_ack_pending", 0),
    }


@asynccontextmanager
async def consumer_of(settings: PlanningSettings) -> AsyncGenerator[tuple[JetStreamJournal, PlanConsumer]]:
    """A connected consumer; waits for the log. Raises JournalUnavailable and InvalidRequest.

    It follows unfinished work and the day's spends from its first plan on: most processes never see one.
    """
    clock, url = SystemClock(), settings.database_url
    journal = JetStreamJournal(settings.nats_url, name="planning", signer=LogSigner.of_file(settings.log_key_file))
    database = None if url is None else Database(url.get_secret_value())
    backlog = Backlog(clock, settings.queue_depth_max, {}, settings.tenant_in_flight_max)
    catalog = Catalog(clock, backlog, retention_s=settings.retention_s, clusters=settings.clusters)
    roles = read_roles(settings.roles_file)
    limits = SpendLimits.of(settings.spend_per_day, settings.spends_per_day, roles)
    spends = None if limits is None else DailySpends(clock, limits)
    deliberations = Deliberations(
        journal,
        clock,
        catalog,
        roles,
        STRATEGIES,
        kept_s=lambda _: settings.retention_s,
        timeout_s=settings.deliberation_timeout_s,
        draining=lambda: False,
        archive=None if database is None else Store(database),
        context=ContextHydrator(journal, settings.context_timeout_s) if settings.context else None,
        spends=spends,
        tenant_clusters=settings.tenant_clusters,
    )
    try:
        await journal.open()
        async with asyncio.TaskGroup() as group:
            following: list[asyncio.Task[None]] = []

            async def caught_up() -> None:
                if not following:
                    following.extend(
                        group.create_task(each.follow(journal)) for each in (catalog, spends) if each is not None
                    )
                while not catalog.caught_up or not (spends is None or spends.caught_up):  # noqa: ASYNC110 -- once
                    await asyncio.sleep(0.02)

            plans = Plans(deliberations, settings.plan_roles)
            yield journal, PlanConsumer(journal, plans, settings.planning_tenants, caught_up)
            for each in following:
                each.cancel()
    finally:
        await journal.close()
        if database is not None:
            await database.close()


async def run(journal: JetStreamJournal, consumer: PlanConsumer) -> None:
    # One event at a time, so that a plan finds the transitions that were announced before it.
    slots = 1
    await QueueWorker(
        journal, PLANNING_STREAM, PLANNING_CONSUMER, slots, lambda item: consumer.take(item.record), signed=False
    ).run()


async def serve(settings: PlanningSettings) -> None:
    """Take plans until SIGTERM or SIGINT. Raises what `consumer_of` raises."""
    await work_until_stopped(settings.planning_host, settings.planning_port, "planning_listening", _take(settings))


async def _take(settings: PlanningSettings) -> None:
    async with consumer_of(settings) as (journal, consumer):
        await journal.answer(PLANNERS_SUBJECT, lambda: figures(journal, consumer))
        log.info("planning_taking")
        await run(journal, consumer)
