"""What DELETE leaves in the streams of a real nats-server is what ARCHITECTURE.md says."""

import asyncio
import base64
import json
import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from app.admission.spends import spend_subject
from app.api.schemas import dump
from app.lifecycle.context import ContextUpdated
from app.log.journal import JetStreamJournal
from app.log.stream_settings import PUBLICATION_STREAMS, PUBLICATIONS, TASKS_STREAM, StreamSettings
from app.log.streams import declared_streams
from app.webhooks.attempts import DeliveryKey, RedeliveryRequested
from serve_deployments.coordinator.task_queue import WorkerAgents
from tests.conditions import server_has_read
from tests.conftest import NatsServer
from tests.integration.agent.stage_runs import call
from tests.integration.agent.stage_runs import request as stage_request
from tests.integration.coordinator.coordinator_replicas import Replica, Role, always, until_done
from tests.integration.log.input_files import put
from tests.integration.planning.conftest import TRANSITIONED, announce, moved, plan_event, taking, until_taken
from tests.integration.routes.running_gateways import gateway_on
from tests.story import Story

# In the task, in each answer and in the story: what a search of the streams looks for.
TASK, ANSWER, STORY = "canary-of-the-task", "blue", "canary-of-the-story"


def said() -> dict[str, str]:
    text = (Path(__file__).parents[3] / "ARCHITECTURE.md").read_text()
    section = text.partition("## Streams, and what a deletion leaves\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([A-Z_, ]+) \| .+ \| (.+) \|$", section, re.MULTILINE)
    return {stream: left for names, left in rows for stream in names.split(", ")}


async def stored(journal: JetStreamJournal, stream: str) -> list[tuple[str, str]]:
    found, sequence = list[tuple[str, str]](), 0
    while True:
        query = json.dumps({"seq": sequence + 1, "next_by_subj": ">"}).encode()
        reply: dict[str, Any] = await journal.request(f"$JS.API.STREAM.MSG.GET.{stream}", query)
        if "error" in reply:
            return found
        message = reply["message"]
        sequence = message["seq"]
        found.append((message["subject"], base64.b64decode(message.get("data", "")).decode()))


async def until_copied(journal: JetStreamJournal, copies: dict[str, int]) -> None:
    async with asyncio.timeout(20):
        while {stream: len(await stored(journal, stream)) for stream in copies} != copies:
            await asyncio.sleep(0.02)


async def queued(journal: JetStreamJournal) -> int:
    return (await journal.request(f"$JS.API.STREAM.INFO.{TASKS_STREAM}"))["state"]["messages"]


async def queue_tasks(journal: JetStreamJournal, *deliberation_ids: str, tenant: str = "default") -> None:
    """Queue a task of each deliberation that no worker takes, with the deliberation's task in its prompt."""
    message = call(1).messages[0].model_copy(update={"content": TASK})
    calls = (call(1).model_copy(update={"messages": (message,)}),)
    asked = [stage_request(calls, deliberation_id=id).model_copy(update={"tenant": tenant}) for id in deliberation_ids]
    expected = await queued(journal) + len(asked)
    running = [asyncio.create_task(WorkerAgents(journal, "DEV").run(each)) for each in asked]
    async with asyncio.timeout(20):
        while await queued(journal) < expected:
            await asyncio.sleep(0.02)
    for each in running:
        each.cancel()
    await asyncio.wait(running)


@pytest.fixture
def stream_settings() -> StreamSettings:
    return StreamSettings(worker_roles=("DEV",), publications=PUBLICATIONS)


async def test_delete_empties_what_the_architecture_says(
    journal: JetStreamJournal, own_nats_server: NatsServer, tmp_path: Path
) -> None:
    streams = [str(stream["name"]) for stream in declared_streams(StreamSettings(publications=PUBLICATIONS))]
    async with taking(own_nats_server.url):
        await announce(journal, moved(STORY), TRANSITIONED)
        await announce(journal, plan_event(roles=["DEV"], story_id=STORY, title=TASK, description=None))
        await until_taken(journal)
    ((subject, _),) = await stored(journal, "DELIBERATIONS")
    id = subject.split(".")[2]
    replica = await Replica.start(own_nats_server.url, Role(journal, always))
    await until_done(journal)
    await replica.stop()
    await journal.publish_view("default", Story(id).delta("dev-001", 0, ANSWER))
    asked = RedeliveryRequested(fact=f"deliberations.default.{id}.end", number=1, at=datetime.now(UTC))
    await journal.write(DeliveryKey("default", id, "dlv_1").subject(asked), dump(asked))
    await journal.write(spend_subject(date(2026, 1, 1), "default", id), b'{"amount": 0.5, "currency": "USD"}')
    updated = ContextUpdated(tenant="default", story_id=STORY, task_id=id, version_hash="9f2c")
    await journal.publish("context.updated", dump(updated), "u1")
    await queue_tasks(journal, id)
    file = await put(journal.inputs, tmp_path, f"{TASK} {ANSWER}".encode(), b"form", "default")
    await journal.inputs.use("default", file.sha256, id, datetime.now(UTC))
    outcomes = sum(subject.endswith(".finished") for subject, _ in await stored(journal, "DELIBERATIONS"))
    await until_copied(
        journal, {"AGENT_RESULTS": outcomes, "VLLM_STREAMING": 1, "AGENT_RESPONSES": outcomes, "ORCHESTRATOR_EVENTS": 1}
    )
    before = {stream: await stored(journal, stream) for stream in streams}
    assert outcomes and all(before[stream] for stream in streams if stream != "KEYS")

    async with gateway_on(own_nats_server) as (_, client):
        assert (await client.delete(f"/deliberations/{id}")).status_code == 204
    left = {stream: await stored(journal, stream) for stream in streams}

    described = said()
    assert set(described) == set(streams)
    assert [stream for stream, words in described.items() if words == "nothing"] == [
        stream for stream in described if not left[stream] and stream != "KEYS"
    ]
    ((subject, tombstone),) = left["DELIBERATIONS"]
    assert described["DELIBERATIONS"] == "the tombstone: id and time" and subject.endswith(f".{id}.deleted")
    assert json.loads(tombstone).keys() == {"type", "deliberation_id", "ts"}
    for stream in ("WEBHOOKS", "PLANNING_EVENTS", "STORIES", "CONTEXT_EVENTS", "KEYS", "SPENDS"):
        assert left[stream] == before[stream], f"{stream} is not touched"
    holding = {stream for stream, messages in left.items() if any(TASK in payload for _, payload in messages)}
    assert holding == {"PLANNING_EVENTS"}
    assert not any(ANSWER in payload for messages in left.values() for _, payload in messages)
    assert all(id in payload for _, payload in left["CONTEXT_EVENTS"]) and STORY in left["STORIES"][0][1]


async def test_a_removal_erases_its_untaken_tasks_alone_and_overwrites_them(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    await queue_tasks(journal, "d1", "d2")
    await queue_tasks(journal, "d1", tenant="another")
    await journal.purge("default", "d1")
    left = [json.loads(payload) for _, payload in await stored(journal, TASKS_STREAM)]
    assert {(each["tenant"], each["deliberation_id"]) for each in left} == {("default", "d2"), ("another", "d1")}
    await journal.purge("default", "d2")
    await journal.purge("another", "d1")
    own_nats_server.kill()
    files = [file for file in own_nats_server.store.rglob("*") if file.is_file()]
    assert files and not [file for file in files if TASK.encode() in file.read_bytes()]


@pytest.mark.parametrize("others", [0, 200])
async def test_a_delete_reads_its_own_tasks_however_many_wait(
    journal: JetStreamJournal, own_nats_server: NatsServer, others: int
) -> None:
    story = Story("0" * 26)
    for fact in (story.accepted(), story.completed()):
        await journal.append("default", fact)
    # The own task stands among the others, so that a read from either end of the stream would pass some of them.
    await queue_tasks(journal, *(f"before{number}" for number in range(others // 2)), story.id)
    if others:
        await queue_tasks(journal, *(f"after{number}" for number in range(others // 2)))

    asked = list[dict[str, object]]()

    async def note(message: Msg) -> None:
        asked.append(json.loads(message.data))

    await journal.client.subscribe(f"$JS.API.STREAM.MSG.GET.{TASKS_STREAM}", cb=note)
    async with gateway_on(own_nats_server) as (_, client):
        assert (await client.delete(f"/deliberations/{story.id}")).status_code == 204
    await server_has_read(journal.client)
    assert len(asked) == 2, "one read finds the task, and one that there is no other"
    left = {subject for subject, _ in await stored(journal, TASKS_STREAM)}
    assert len(left) == await queued(journal) == others
    assert f"agent.task.assigned.DEV.default.{story.id}" not in left


async def test_a_message_that_many_erase_at_once_is_erased(jetstream_journal: JetStreamJournal, fresh_id: str) -> None:
    written = [await jetstream_journal.append("default", Story(each).accepted()) for each in (fresh_id, fresh_id[::-1])]
    for each in written:
        erasures = (jetstream_journal.erase("DELIBERATIONS", each.record.sequence) for _ in range(8))
        await asyncio.gather(*erasures)
        assert await jetstream_journal.last([each.record.subject]) == []


class TestWithoutOtherServices:
    @pytest.fixture
    def stream_settings(self) -> StreamSettings:
        return StreamSettings(publications=())

    async def test_a_deletion_leaves_the_tombstone_alone(
        self, journal: JetStreamJournal, own_nats_server: NatsServer
    ) -> None:
        names = [str(stream["name"]) for stream in declared_streams(StreamSettings(publications=()))]
        assert not set(names) & PUBLICATION_STREAMS.keys()
        story = Story("d1")
        for fact in (story.accepted(), story.completed()):
            await journal.append("default", fact)
        async with gateway_on(own_nats_server) as (_, client):
            assert (await client.delete(f"/deliberations/{story.id}")).status_code == 204
        assert [subject for subject, _ in await stored(journal, "DELIBERATIONS")] == [
            f"deliberations.default.{story.id}.deleted"
        ]
