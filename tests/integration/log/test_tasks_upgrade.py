"""Tasks on a real nats-server with streams of an earlier version: their subjects name the role alone."""

import asyncio
import json
from typing import Any

import pytest

from app.deliberation.calls import StageRequest
from app.log.journal import JetStreamJournal
from app.log.stream_settings import TASKS_STREAM, StreamSettings
from app.log.streams import UPGRADE, apply, declared_consumers, declared_streams, plan
from serve_deployments.agent.worker import RoleWorker
from serve_deployments.coordinator.task_queue import WorkerAgents, tasks_of
from tests.conditions import until
from tests.conftest import NatsServer
from tests.contracts.test_agents import replica_of
from tests.integration.agent.test_agent_replica import ANSWER, ScriptedEngine, call, request, streamed

Answer = dict[str, Any]
SETTINGS = StreamSettings(worker_roles=("DEV",))
EARLIER_SUBJECT = "agent.task.assigned.DEV"
UPDATE = f"$JS.API.STREAM.UPDATE.{TASKS_STREAM}"


async def declare_earlier(journal: JetStreamJournal) -> None:
    """Declare everything, the tasks as the earlier version did."""
    await apply(journal, SETTINGS)
    (stream,) = (each for each in declared_streams(SETTINGS) if each["name"] == TASKS_STREAM)
    (consumer,) = (each for name, each in declared_consumers(SETTINGS) if name == TASKS_STREAM)
    config = {**consumer, "filter_subjects": None, "filter_subject": EARLIER_SUBJECT}
    body = {"stream_name": TASKS_STREAM, "config": config}
    for subject, data in (
        (f"STREAM.DELETE.{TASKS_STREAM}", {}),
        (f"STREAM.CREATE.{TASKS_STREAM}", {**stream, "subjects": ["agent.task.assigned.*"]}),
        (f"CONSUMER.DURABLE.CREATE.{TASKS_STREAM}.worker-DEV", body),
    ):
        assert "error" not in await journal.request(f"$JS.API.{subject}", json.dumps(data).encode())


async def assign_as_earlier(journal: JetStreamJournal, asked: StageRequest) -> None:
    """Queue a task as coordinators of the earlier version do."""
    ((name, data),) = tasks_of(asked, 1_000_000)
    headers = {"Nats-Msg-Id": f"default.{asked.deliberation_id}.{name}.DEV", "Nats-TTL": "30s"}
    assert "error" not in await journal.request(EARLIER_SUBJECT, data, headers)


async def assign(journal: JetStreamJournal, asked: StageRequest, answers: list[Answer]) -> Answer:
    """Queue a task as coordinators do; returns the server's answer, which `answers` gets."""
    before = len(answers)
    running = asyncio.create_task(WorkerAgents(journal, "DEV").run(asked))
    await until(lambda: len(answers) > before)
    running.cancel()
    await asyncio.wait({running})
    return answers[-1]


async def look_for_tasks(journal: JetStreamJournal) -> None:
    """Ask the queue for all that waits, as a worker does, and give it back."""
    inbox = journal.client.new_inbox()
    answers = await journal.client.subscribe(inbox)
    query = json.dumps({"batch": 10, "no_wait": True}).encode()
    await journal.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{TASKS_STREAM}.worker-DEV", query, reply=inbox)
    while (found := await answers.next_msg(timeout=10)).reply:
        await journal.client.publish(found.reply, b"-NAK")
    await answers.unsubscribe()


async def test_tasks_of_before_while_and_after_an_upgrade_are_taken_once(
    own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = await JetStreamJournal.connect(own_nats_server.url, name="coordinator")
    await declare_earlier(journal)
    ids = ["before", "while", "after", "earlier"]
    before, during, after, earlier = (request((call(1),), deliberation_id=id) for id in ids)
    await assign_as_earlier(journal, before)
    plain_request, answers = journal.request, list[Answer]()

    async def request_and_assign(subject: str, *rest: Any) -> Answer:
        """As `journal.request`; a coordinator assigns as soon as the stream takes its subject."""
        answers.append(answer := await plain_request(subject, *rest))
        if subject == UPDATE:
            await assign(journal, during, answers)
            await look_for_tasks(journal)
        return answer

    monkeypatch.setattr(journal, "request", request_and_assign)
    names = [TASKS_STREAM, f"{TASKS_STREAM}/worker-DEV"]
    assert await apply(journal, SETTINGS) == [f"{name}{UPGRADE}" for name in names]
    assert await plan(journal, SETTINGS) == ([], [])
    assert (await assign(journal, before, answers))["duplicate"], "a successor's request for a task that is stored"
    assert "duplicate" not in await assign(journal, after, answers)
    await assign_as_earlier(journal, earlier)
    found = await journal.request(f"$JS.API.CONSUMER.INFO.{TASKS_STREAM}.worker-DEV")
    assert found["num_pending"] + found["num_ack_pending"] == len(ids), "what KEDA counts"

    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    async with replica_of(own_nats_server, engine) as replica:
        working = asyncio.create_task(RoleWorker(replica).run())
        async with asyncio.timeout(20):
            while (await journal.request(f"$JS.API.STREAM.INFO.{TASKS_STREAM}"))["state"]["messages"]:
                await asyncio.sleep(0.02)
        working.cancel()
        await asyncio.wait({working})
    assert len(engine.bodies) == len(ids)
    for id in ids:
        assert await journal.last([f"deliberations.default.{id}.call.*.finished"])
    await journal.close()
