import asyncio
import json
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from app.deliberation.announcements import Announcement, announcement
from app.deliberation.calls import Usage
from app.deliberation.errors import FactTooLarge, JournalUnavailable
from app.deliberation.facts import Accepted, Completed, Deleted
from app.deliberation.specification import AgentSpec, Sampling
from app.deliberation.strategies import STRATEGIES
from app.log.journal import JetStreamJournal
from app.log.stream_settings import PUBLICATIONS, StreamSettings
from tests.conftest import NatsServer
from tests.integration.coordinator.announcements import AGENT, announced, raw, told_of
from tests.integration.coordinator.coordinator_replicas import Replica, Role, accepted, always, until_done, waiting
from tests.story import Story

DELIBERATIONS = 100
GROUPS = ("memory", "dashboard")
DOOMED_EVERY = 8


@pytest.fixture
def stream_settings() -> StreamSettings:
    return StreamSettings(ack_wait_s=1, publications=PUBLICATIONS)


class Mortal(JetStreamJournal):
    dead: asyncio.Event
    died_of: set[str]

    async def announce(self, announced: Announcement) -> None:
        id = announced.deliberation_id
        number = int(id.removeprefix("d"))
        doomed = number % DOOMED_EVERY == 0 and id not in self.died_of
        if doomed and number % (2 * DOOMED_EVERY):
            await self._die(id)
        await super().announce(announced)
        if doomed:
            await self._die(id)

    async def _die(self, id: str) -> None:
        self.died_of.add(id)
        await self.client.close()
        self.dead.set()
        await asyncio.Event().wait()


async def messages(journal: JetStreamJournal, stream: str) -> int:
    return (await journal.request(f"$JS.API.STREAM.INFO.{stream}"))["state"]["messages"]


async def after_restart(journal: JetStreamJournal) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            with suppress(JournalUnavailable):
                return (await raw(journal, "ORCHESTRATOR_EVENTS", "orchestration.deliberation.completed"))[0]


async def consumed(journal: JetStreamJournal, group: str) -> list[str]:
    config = {
        "durable_name": group,
        "ack_policy": "explicit",
        "filter_subject": "orchestration.deliberation.completed",
    }
    body = json.dumps({"stream_name": "ORCHESTRATOR_EVENTS", "config": config}).encode()
    await journal.request(f"$JS.API.CONSUMER.DURABLE.CREATE.ORCHESTRATOR_EVENTS.{group}", body)
    subscription = await journal.client.jetstream().pull_subscribe_bind(consumer=group, stream="ORCHESTRATOR_EVENTS")
    received: list[str] = []
    while (await subscription.consumer_info()).num_pending:
        for message in await subscription.fetch(100, timeout=5):
            received.append(json.loads(message.data)["deliberation_id"])
            await message.ack()
    return received


class Narrow(JetStreamJournal):
    async def announce(self, announced: Announcement) -> None:
        if announced.results:
            raise FactTooLarge("too large")
        await super().announce(announced)


async def test_an_end_that_is_too_large_is_announced_without_its_texts(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    replica = await Replica.start(own_nats_server.url, Role(journal, always), Narrow)
    for id in ("large", "another"):
        await journal.append("default", accepted(id))
    await until_done(journal)
    stored, _ = await raw(journal, "ORCHESTRATOR_EVENTS", "orchestration.deliberation.completed")

    assert (stored["status"], stored["results"], stored["verdict"]) == ("completed", [], None)
    assert stored["url"] == f"/deliberations/{stored['deliberation_id']}"
    assert await messages(journal, "ORCHESTRATOR_EVENTS") == 2
    await replica.stop()


async def test_a_message_above_the_servers_bound_is_too_large(journal: JetStreamJournal) -> None:
    story = Completed(deliberation_id="d1", ts=datetime.now(UTC))
    announced = announcement("default", story, None).model_copy(update={"task": "x" * journal.client.max_payload})

    with pytest.raises(FactTooLarge, match=r"orchestration\.deliberation\.completed"):
        await journal.announce(announced)


async def test_each_end_is_announced_once_whatever_coordinators_die(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    ids = [f"d{number}" for number in range(DELIBERATIONS)]
    await asyncio.gather(*(journal.append("default", accepted(id)) for id in ids))
    deaths, died_of = 0, set[str]()

    async with asyncio.timeout(120):
        while await waiting(journal) != (0, 0):
            mortal = type("Mortal", (Mortal,), {"dead": asyncio.Event(), "died_of": died_of})
            replica = await Replica.start(own_nats_server.url, Role(journal, always), mortal)
            while not mortal.dead.is_set() and await waiting(journal) != (0, 0):
                await asyncio.sleep(0.02)
            deaths += mortal.dead.is_set()
            await replica.die()

    # The server reads the ids of its window from its store, so that they outlive its own death.
    own_nats_server.kill()
    own_nats_server.start()
    stored = await after_restart(journal)
    await journal.announce(Announcement.model_validate(stored))
    assert len(died_of) == -(-DELIBERATIONS // DOOMED_EVERY) and deaths >= 2
    for group in GROUPS:
        assert Counter(await consumed(journal, group)) == dict.fromkeys(ids, 1)
    assert await messages(journal, "ORCHESTRATOR_EVENTS") == DELIBERATIONS
    assert await messages(journal, "AGENT_RESPONSES") == DELIBERATIONS


def asked(id: str) -> Accepted:
    members = (
        AgentSpec(agent_id="dev-001", role="DEV", sampling=Sampling(temperature=0.7)),
        AgentSpec(agent_id="dev-002", role="DEV", sampling=Sampling(temperature=0.91)),
    )
    return Story(id).accepted(
        datetime.now(UTC),
        agents=members,
        strategy_version=STRATEGIES["independent"].version,
        metadata={"story_id": "story-17", "plan_id": "plan-42"},
        quorum=2,
        task="Name a colour. " * 2_000,
    )


async def test_every_field_stands_on_the_raw_streams_and_a_deletion_empties_them(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    for id in ("kept", "gone"):
        await journal.append("acme", asked(id))
    replica = await Replica.start(own_nats_server.url, Role(journal, always))
    await until_done(journal, 20)
    await journal.publish_view("acme", Story("gone").delta("dev-001", 0, "blue"))
    async with asyncio.timeout(20):
        while await messages(journal, "VLLM_STREAMING") < 1 or await messages(journal, "AGENT_RESULTS") < 4:
            await asyncio.sleep(0.02)
    await replica.stop()

    told, end = await told_of(journal, "completed")
    id = told["deliberation_id"]
    assert told["task"].startswith("Name a colour.") and end["problem"] is None
    answered = {"status": "answered", "content": "blue", "usage": Usage(calls=1).model_dump(), "duration_ms": 1}
    assert told == announced(
        end,
        id,
        "completed",
        task=told["task"],
        strategy="independent",
        metadata={"story_id": "story-17", "plan_id": "plan-42"},
        results=[{**AGENT, "agent_id": agent, **answered, "problem": None} for agent in ("dev-001", "dev-002")],
        counts={"total": 2, "succeeded": 2, "failed": 0},
        verdict=end["verdict"],
    )

    response, _ = await raw(journal, "AGENT_RESPONSES", f"agent.response.completed.{id}.s1-dev-002")
    assert response == {
        "task_id": id,
        "call_id": "s1-dev-002",
        "tenant": "acme",
        "agent_id": "dev-002",
        "role": "DEV",
        "status": "completed",
        "proposal": {
            "content": "blue",
            "author_id": "dev-002",
            "author_role": "DEV",
            "model": None,
            "temperature": 0.91,
            "tokens": 0,
        },
        "error": None,
        "error_type": None,
        "model": None,
        "diversity": True,
        "usage": Usage(calls=1).model_dump(),
        "duration_ms": 1,
        "timestamp": response["timestamp"],
    }
    result, _ = await raw(journal, "AGENT_RESULTS", f"agent.results.{id}")
    assert (result["type"], result["deliberation_id"]) == ("call.finished", id)
    streamed, _ = await raw(journal, "VLLM_STREAMING", "vllm.streaming.gone")
    assert streamed["text"] == "blue"

    for _ in range(2):
        await journal.append("acme", Deleted(deliberation_id="gone", ts=datetime.now(UTC)))
        await journal.purge("acme", "gone")
    counts = {"ORCHESTRATOR_EVENTS": 1, "AGENT_RESPONSES": 2, "AGENT_RESULTS": 2, "VLLM_STREAMING": 0}
    assert {stream: await messages(journal, stream) for stream in counts} == counts
    told, _ = await raw(journal, "ORCHESTRATOR_EVENTS", "orchestration.deliberation.completed")
    assert told["deliberation_id"] == "kept"


@pytest.mark.parametrize("tenant", ["acme", "rival"])
async def test_equal_ids_of_two_tenants_are_announced_each(journal: JetStreamJournal, tenant: str) -> None:
    end = Completed(deliberation_id="d1", ts=datetime.now(UTC))
    for teller in ("acme", "rival", tenant):
        await journal.announce(announcement(teller, end, None))
    assert await messages(journal, "ORCHESTRATOR_EVENTS") == 2
    await journal.purge(tenant, "d1")
    told, _ = await raw(journal, "ORCHESTRATOR_EVENTS", "orchestration.deliberation.completed")
    assert told["tenant"] == ({"acme", "rival"} - {tenant}).pop()
