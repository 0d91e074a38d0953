"""Coordinators take the deliberations with their labels, and those without one."""

import asyncio
from datetime import UTC, datetime

import pytest

from app.admission.backlog import Backlog
from app.catalog.index import Catalog
from app.deliberation.calls import StageRequest
from app.deliberation.facts import Completed, Resumed
from app.deliberation.strategies import STRATEGIES
from app.log.journal import JetStreamJournal
from app.log.stream_settings import PUBLICATIONS, StreamSettings, coordinator_queues
from app.log.streams import plan
from tests.conditions import until, until_empty
from tests.conftest import NatsServer
from tests.fakes import FakeClock
from tests.integration.coordinator.coordinator_replicas import Replica, Role, always, facts_of
from tests.story import Story

CLUSTERS = ("eu", "us")
SINGLE = {"strategy": "single", "strategy_version": STRATEGIES["single"].version}


@pytest.fixture
def stream_settings() -> StreamSettings:
    return StreamSettings(ack_wait_s=1, publications=PUBLICATIONS, clusters=CLUSTERS)


async def submit(journal: JetStreamJournal, name: str, cluster: str | None, count: int = 1) -> set[str]:
    ids = {f"{name}{number}" for number in range(count)}
    for id in ids:
        await journal.append("default", Story(id, 1).accepted(datetime.now(UTC), cluster=cluster, **SINGLE))
    return ids


async def until_worked_off(journal: JetStreamJournal, *clusters: str | None) -> None:
    for consumer in coordinator_queues(clusters):
        await until_empty(journal, "DELIBERATIONS", consumer)


async def test_each_coordinator_takes_its_labels_and_all_share_what_has_none(
    own_nats_server: NatsServer, journal: JetStreamJournal
) -> None:
    in_eu, in_us = Role(journal, always), Role(journal, always)
    european = await Replica.start(own_nats_server.url, in_eu, clusters=("eu",))
    american = await Replica.start(own_nats_server.url, in_us, clusters=("us",))
    of_eu, of_us = await submit(journal, "eu", "eu", 20), await submit(journal, "us", "us", 20)
    of_any = await submit(journal, "any", None, 20)
    await until_worked_off(journal, *CLUSTERS)
    for replica in (european, american):
        await replica.stop()
    assert of_eu <= set(in_eu.asked) <= of_eu | of_any
    assert of_us <= set(in_us.asked) <= of_us | of_any
    assert sorted([*in_eu.asked, *in_us.asked]) == sorted(of_eu | of_us | of_any)


async def test_work_of_a_dead_cluster_waits_for_a_coordinator_with_its_label(
    own_nats_server: NatsServer, journal: JetStreamJournal
) -> None:
    begun = asyncio.Event()

    async def begins(_: StageRequest) -> bool:
        begun.set()
        return False

    dying = await Replica.start(own_nats_server.url, Role(journal, begins), clusters=("eu",))
    of_eu = await submit(journal, "eu", "eu", 3)
    await begun.wait()
    await dying.die()
    elsewhere = Role(journal, always)
    american = await Replica.start(own_nats_server.url, elsewhere, clusters=("us",))
    of_us = await submit(journal, "us", "us", 3)
    await until_worked_off(journal, "us")
    assert set(elsewhere.asked) == of_us
    await american.stop()

    # The operator names the label for another cluster.
    both = await Replica.start(own_nats_server.url, elsewhere, clusters=CLUSTERS)
    await until_worked_off(journal, *CLUSTERS)
    for id in of_eu:
        facts = await facts_of(journal, id)
        assert [type(fact) for fact in facts].count(Completed) == 1
        assert any(isinstance(fact, Resumed) for fact in facts)
    await both.stop()


async def test_a_start_reads_the_unfinished_work_of_every_label(
    own_nats_server: NatsServer, journal: JetStreamJournal
) -> None:
    (waiting,) = await submit(journal, "eu", "eu")
    ended = await submit(journal, "any", None, 20)
    replica = await Replica.start(own_nats_server.url, Role(journal, always))
    await until_worked_off(journal)
    queue = await journal.queue(*coordinator_queues(CLUSTERS))
    (acceptance,) = await journal.facts("default", waiting)
    assert (queue.acknowledged_to, queue.left) == (acceptance.sequence - 1, 1)
    assert (await journal.queue(*coordinator_queues(()))).acknowledged_to > acceptance.sequence
    clock = FakeClock(datetime.now(UTC))
    catalog = Catalog(clock, Backlog(clock, 100, {}), retention_s=3_600, clusters=CLUSTERS)
    following = asyncio.create_task(catalog.follow(journal))
    await until(lambda: catalog.caught_up)
    assert [(entry.id, entry.cluster) for entry in catalog.running(None)] == [(waiting, "eu")]
    assert {entry.status for id in ended if (entry := catalog.find("default", id))} == {"completed"}
    following.cancel()
    await replica.stop()


async def test_the_queue_without_work_does_not_hold_the_place_of_the_others(
    own_nats_server: NatsServer, journal: JetStreamJournal
) -> None:
    replica = await Replica.start(own_nats_server.url, Role(journal, always))
    await submit(journal, "any", None, 5)
    await until_worked_off(journal)
    alone, together = await journal.queue("coordinator"), await journal.queue(*coordinator_queues(CLUSTERS))
    assert together == alone and together.acknowledged_to > 0
    await replica.stop()


async def test_a_new_label_adds_a_queue_to_the_streams(journal: JetStreamJournal) -> None:
    settings = StreamSettings(ack_wait_s=1, publications=PUBLICATIONS, clusters=(*CLUSTERS, "asia"))
    missing, different = await plan(journal, settings)
    assert missing == ["DELIBERATIONS/coordinator-asia"]
    assert [line.partition(":")[0] for line in different] == ["DELIBERATIONS/webhooks.filter_subjects"]
