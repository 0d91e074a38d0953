"""Several gateways take events in order, one of them at a time, and none that stops, starts or fails holds them up."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from app.api.headers import Submission
from app.catalog.index import Catalog
from app.deliberation.ports import Journal
from app.lifecycle.context import SUBJECT
from app.log.journal import JetStreamJournal
from app.log.stream_settings import PLANNING_CONSUMER, PLANNING_STREAM, PUBLICATIONS, StreamSettings
from app.log.streams import EXCLUSIVE_S, apply
from app.log.work_queue import QueueItem, WorkQueue
from app.planning.consumer import APPROVED
from app.planning.events import PlanRequest
from app.planning.plans import Plans
from tests.conditions import until
from tests.conftest import NatsServer
from tests.integration.planning.conftest import (
    TRANSITIONED,
    TakingGateway,
    acceptances,
    announce,
    moved,
    plan_event,
    taking,
    until_taken,
)

STORIES = 40


async def started(stack: AsyncExitStack, url: str, count: int) -> list[TakingGateway]:
    return [await stack.enter_async_context(taking(url)) for _ in range(count)]


async def declared_anew(journal: JetStreamJournal) -> None:
    await journal.request(f"$JS.API.CONSUMER.DELETE.{PLANNING_STREAM}.{PLANNING_CONSUMER}")
    await apply(journal, StreamSettings(publications=PUBLICATIONS))


async def consumer_info(journal: JetStreamJournal) -> dict[str, Any]:
    return await journal.request(f"$JS.API.CONSUMER.INFO.{PLANNING_STREAM}.{PLANNING_CONSUMER}")


async def taker_among(gateways: list[TakingGateway]) -> TakingGateway:
    await until(lambda: any(gateway.counts for gateway in gateways))
    return next(gateway for gateway in gateways if gateway.counts)


async def announce_moves_and_plans(journal: JetStreamJournal, first: int) -> None:
    """Of each story a transition and right after it a plan, in one burst."""
    for number in range(first, first + STORIES):
        story_id = f"story-{number}"
        event = moved(story_id, to_phase=f"phase-{number}")
        await journal.client.publish(TRANSITIONED, json.dumps(event).encode())
        plan = plan_event(number, story_id=story_id, roles=["DEV"])
        # A header of the announcer's own does not take the place of the pin.
        await journal.client.publish(APPROVED, json.dumps(plan).encode(), headers={"Nats-Pin-Id": "mine"})


async def phases(journal: JetStreamJournal) -> dict[str, str | None]:
    found = [fact.specification.metadata for fact in await acceptances(journal)]
    return {metadata["story_id"]: metadata.get("to_phase") for metadata in found}


async def test_a_plan_finds_the_transition_before_it_though_gateways_stop_and_start(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    async with AsyncExitStack() as stack:
        gateways = await started(stack, own_nats_server.url, 3)
        for begin in range(0, 3 * STORIES, STORIES):
            await announce_moves_and_plans(journal, begin)
            taker = await taker_among(gateways)
            gateways.remove(taker)
            taker.drain()
            gateways += await started(stack, own_nats_server.url, 1)
            async with asyncio.timeout(EXCLUSIVE_S):
                await until_taken(journal)

    assert await phases(journal) == {f"story-{number}": f"phase-{number}" for number in range(3 * STORIES)}


async def test_one_of_several_gateways_takes_all_plans(journal: JetStreamJournal, own_nats_server: NatsServer) -> None:
    async with AsyncExitStack() as stack:
        gateways = await started(stack, own_nats_server.url, 3)
        for number in range(STORIES):
            await announce(journal, plan_event(number, roles=["DEV"]))
        await until_taken(journal)
        taken = sorted(gateway.counts.get("started", 0) for gateway in gateways)

    assert taken == [0, 0, STORIES]


async def test_a_stopping_gateway_gives_the_plan_in_hand_to_another(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    asked = list[bytes]()

    async def hang(message: object) -> None:
        asked.append(b"asked")

    await journal.client.subscribe(SUBJECT, cb=hang)
    async with taking(own_nats_server.url, context=True, context_timeout_s=30) as stopping:
        await announce(journal, plan_event())
        await until(lambda: bool(asked))
        async with taking(own_nats_server.url) as gateway:
            stopping.drain()
            async with asyncio.timeout(EXCLUSIVE_S / 2):
                await until_taken(journal)
            assert gateway.counts == {"started": 1} and stopping.counts == {}


async def test_the_event_of_a_killed_gateway_comes_before_those_that_follow_it(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    held = list[QueueItem]()
    killed = await JetStreamJournal.connect(own_nats_server.url, name="killed")
    queue = WorkQueue(killed, 1, held.append, stream=PLANNING_STREAM, consumer=PLANNING_CONSUMER, exclusive=True)
    await queue.start()
    async with taking(own_nats_server.url):
        await announce(journal, moved(), TRANSITIONED)
        await until(lambda: bool(held))
        await killed.close()
        await announce(journal, plan_event(roles=["DEV"]))
        await until_taken(journal, 2 * EXCLUSIVE_S)

    assert await phases(journal) == {"story-1": "BUILD"}


async def test_a_gateway_whose_place_ran_out_is_given_events_again(
    journal: JetStreamJournal, own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.log.streams.EXCLUSIVE_S", 1)
    await declared_anew(journal)
    async with taking(own_nats_server.url) as gateway:
        await announce(journal, plan_event(1))
        await until_taken(journal)
        async with asyncio.timeout(20):
            while (await consumer_info(journal))["priority_groups"][0].get("pinned_client_id"):
                await asyncio.sleep(0.05)
        await announce(journal, plan_event(2))
        await until_taken(journal)
        assert gateway.counts == {"started": 2}


async def test_a_gateway_that_has_not_read_the_log_takes_no_plan(
    journal: JetStreamJournal, own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def never(*_: Journal) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        with monkeypatch.context() as patch:
            patch.setattr(Catalog, "follow", never)
            unread = await stack.enter_async_context(taking(own_nats_server.url, startup_wait_s=0))
            await announce(journal, plan_event())
            await asked.wait()
        gateway = await stack.enter_async_context(taking(own_nats_server.url))
        async with asyncio.timeout(EXCLUSIVE_S / 3):
            await until_taken(journal)
        assert gateway.counts == {"started": 1} and unread.counts == {}


async def test_a_defect_delays_its_own_plan_alone_and_ends_no_gateway(
    journal: JetStreamJournal, own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve, failed = Plans.approve, list[str]()

    async def approve_others(plans: Plans, tenant: str, plan: PlanRequest, submission: Submission) -> object:
        if plan.plan_id == "plan-001" and not failed:
            failed.append(plan.plan_id)
            raise ZeroDivisionError
        return await approve(plans, tenant, plan, submission)

    monkeypatch.setattr("app.log.queue_worker.DEFECT_S", 0.5)
    monkeypatch.setattr(Plans, "approve", approve_others)
    async with taking(own_nats_server.url) as gateway:
        await announce(journal, plan_event(1, roles=["DEV"]))
        await announce(journal, plan_event(2, roles=["DEV"]))
        await until_taken(journal)
        assert gateway.counts == {"started": 2} and gateway.gateway["catalog"].caught_up

    found = [fact.specification.metadata["plan_id"] for fact in await acceptances(journal)]
    assert failed == ["plan-001"] and found == ["plan-002", "plan-001"]


async def test_plans_are_taken_again_after_their_consumer_was_deleted_and_declared(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    async with taking(own_nats_server.url) as gateway:
        await announce(journal, plan_event(1))
        await until_taken(journal)
        await declared_anew(journal)
        await announce(journal, plan_event(2))
        await until_taken(journal)
        assert gateway.counts == {"started": 2, "repeated": 1}
