"""The permissions of deploy/kustomize/components/nats-users, on a real nats-server with that configuration."""

import asyncio
import json
import os
import re
import subprocess
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path

import httpx
import nats
import nats.errors
import pytest
from nats.aio.client import Client
from pydantic import SecretStr

from app.access.keyring import Keyring
from app.access.keys import SCOPES, Pepper, created, key_subject
from app.admission.spends import spend_subject
from app.api.schemas import dump
from app.api.webhook_payloads import TERMINAL_EVENTS
from app.archive.database.connection import Database
from app.archive.database.migrate import migrate
from app.archive.database.store import Store
from app.archive.process import ArchiveSettings, figures, projector_of
from app.catalog.entries import ListFilter
from app.deliberation.announcements import announcement, recorded_responses
from app.deliberation.facts import CancelRequested, Deleted
from app.deliberation.fold import state_of
from app.deliberation.roles import EngineSpec, Role
from app.lifecycle.context import SUBJECT
from app.log import text_viewers
from app.log.gateway_log import log_figures
from app.log.journal import JetStreamJournal
from app.log.stream_settings import PUBLICATIONS, TASKS_STREAM, StreamSettings, coordinator_queue
from app.log.streams import EXCLUSIVE_S, apply, declared_consumers, declared_streams, plan, prove_writes
from app.log.work_queue import QueueItem, WorkQueue
from app.observability.replica_status import HEARTBEATS_SUBJECT, PROJECTORS_SUBJECT, SENDERS_SUBJECT
from app.operations.heartbeats import Heartbeats
from app.planning.plans import last_transition, role_deliberation_id
from app.webhooks.attempts import DeliveryKey, RedeliveryRequested
from app.webhooks.sender.sender_process import SenderSettings, sender_of
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.agent.worker import RoleWorker
from serve_deployments.coordinator.task_queue import WorkerAgents
from serve_deployments.engine.client import Engines
from tests.components.webhooks.receiving import receiving
from tests.components.webhooks.sending import MASTER, accepted
from tests.conditions import until, until_empty
from tests.conftest import NATS_SERVER, free_port
from tests.integration.agent.scripted_engine import ANSWER, ScriptedEngine, streamed
from tests.integration.agent.stage_runs import call
from tests.integration.agent.stage_runs import request as stage_request
from tests.integration.context.redis_server import context_service, decided, redis_server
from tests.integration.log.forbidden_subjects import FORBIDDEN_TO_PUBLISH, FORBIDDEN_TO_SUBSCRIBE, pairs, violations
from tests.integration.planning.conftest import TRANSITIONED, moved, plan_event, taking
from tests.story import NOW, Story

KUSTOMIZE = Path(__file__).parents[3] / "deploy/kustomize"
CLUSTERS = ("eu",)


PASSWORDS = {
    "gateway": "gAAAA",
    "agents": "aBBBB",
    "streams": "sCCCC",
    "keys": "kDDDD",
    "webhooks": "wEEEE",
    "archive": "xFFFF",
    "planner": "pHHHH",
    "context": "cIIII",
    "worker": "wIIII",
}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    place = tmp_path_factory.mktemp("nats-users")
    port = free_port()
    config = (KUSTOMIZE / "base/nats.conf").read_text()
    for written, ours in {
        'listen: "0.0.0.0:4222"': f'listen: "127.0.0.1:{port}"',
        'http: "0.0.0.0:8222"': f'http: "127.0.0.1:{free_port()}"',
        'store_dir: "/data"': f'store_dir: "{place}/data"',
    }.items():
        assert written in config
        config = config.replace(written, ours)
    (place / "nats.conf").write_text(config)
    (place / "cluster.conf").write_bytes((KUSTOMIZE / "base/cluster.conf").read_bytes())
    (place / "users.conf").write_bytes((KUSTOMIZE / "components/nats-users/users.conf").read_bytes())
    secrets = {f"{user.upper()}_PASSWORD": password for user, password in PASSWORDS.items()}
    with (place / "log").open("wb") as log:
        environment = {**os.environ, "POD_NAME": "nats-0", **secrets}
        command = [NATS_SERVER, "-c", place / "nats.conf"]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    yield port
    process.terminate()
    process.wait(timeout=10)


@asynccontextmanager
async def journal_of(port: int, user: str) -> AsyncGenerator[JetStreamJournal]:
    journal = JetStreamJournal(url_of(port, user), name=user)
    async with asyncio.timeout(10):
        await journal.open()
    try:
        yield journal
    finally:
        await journal.close()


async def declare(port: int, *worker_roles: str) -> None:
    async with journal_of(port, "streams") as streams, asyncio.timeout(30):
        await apply(streams, StreamSettings(worker_roles=worker_roles, publications=PUBLICATIONS, clusters=CLUSTERS))


def url_of(port: int, user: str) -> str:
    return f"nats://{user}:{PASSWORDS[user]}@127.0.0.1:{port}"


async def test_every_user_may_do_its_own_work(port: int) -> None:
    """Every operation on the log, from the declaration of streams to the announced end."""
    settings = StreamSettings(worker_roles=("DEV",), publications=PUBLICATIONS, clusters=CLUSTERS)
    async with journal_of(port, "streams") as streams, asyncio.timeout(30):
        assert await apply(streams, settings)
        assert await apply(streams, settings) == []
    story = Story(uuid.uuid4().hex[:26])
    delivered: list[QueueItem] = []
    heard: list[str] = []
    async with journal_of(port, "gateway") as gateway, journal_of(port, "agents") as agents, asyncio.timeout(30):
        assert await plan(gateway, settings) == ([], [])
        watching = await gateway.subscribe([f"deliberations.default.{story.id}.>"], lambda r: heard.append(r.subject))
        stopping = await agents.subscribe(["deliberations.*.*.cancel"], lambda r: heard.append(f"agents {r.subject}"))

        async def describe(_: bytes) -> dict[str, object]:
            return {"replica": "here"}

        await agents.answer("control.coordinator", describe)
        await agents.answer("control.role.DEV", describe)
        queue = WorkQueue(agents, 4, delivered.append)
        await queue.start()
        assert (await gateway.append("default", story.accepted())).created
        assert not (
            await gateway.append("default", story.accepted().model_copy(update={"body_sha256": "1" * 64}))
        ).created
        await until(lambda: bool(delivered))
        await agents.append("default", story.opened())
        await agents.publish_view("default", story.started("dev-001"))
        await agents.publish_view("default", story.delta("dev-001", 0, "blue"))
        for agent in story.agents:
            await agents.append("default", story.finished(agent))
        await queue.working(delivered[0])
        await gateway.append("default", CancelRequested(deliberation_id=story.id, ts=NOW, reason="enough"))
        await agents.append("default", story.closed())
        written = await agents.write(spend_subject(date(2026, 1, 1), "default", story.id), b"{}")
        assert written.created and (await agents.write(written.record.subject, b"[]")).record == written.record
        assert [record async for record in gateway.read("spends.2026-01-01.>", 0)] == [written.record]
        await (await gateway.subscribe(["spends.>"], lambda r: heard.append(r.subject))).close()
        await agents.append("default", story.completed())
        state = state_of(await agents.facts("default", story.id))
        assert state is not None
        await agents.complete_responses(story.id, recorded_responses("default", state))
        await agents.announce(announcement("default", story.completed(), state))
        await queue.ack(delivered[0])
        queue.stop()
        assert len(await gateway.facts("default", story.id)) == 7
        assert len(await agents.facts("default", story.id)) == 7
        assert [record async for record in gateway.read(f"deliberations.default.{story.id}.>", 0)]
        assert (await gateway.state()).last_sequence >= 9
        gateway.writes.last_failed = True
        await prove_writes(gateway)
        assert await gateway.inquire("control.coordinator", timeout_s=2) == [{"replica": "here"}]
        assert await gateway.inquire("control.role.DEV", timeout_s=2) == [{"replica": "here"}]
        names = [str(stream["name"]) for stream in declared_streams(settings)]
        consumers = [(stream, str(consumer["name"])) for stream, consumer in declared_consumers(settings)]
        figures = await log_figures(gateway, names, consumers)
        assert figures.server_version is not None
        assert [stream.name for stream in figures.streams] == names and len(figures.consumers) == len(consumers)
        assert figures.streams[0].messages >= 9 and figures.streams[0].first_at is not None
        await until(lambda: len(heard) >= 10)
        assert f"agents deliberations.default.{story.id}.cancel" in heard

        async def unacknowledged() -> int:
            reply = await gateway.request("$JS.API.CONSUMER.INFO.DELIBERATIONS.coordinator")
            return reply["num_ack_pending"]

        while await unacknowledged():
            await asyncio.sleep(0.01)
        await gateway.erase_announcement("default", story.id, story.completed().ts)
        tombstone = await gateway.append("default", Deleted(deliberation_id=story.id, ts=NOW))
        await gateway.purge("default", story.id)
        assert await gateway.facts("default", story.id) == [tombstone.record]
        await watching.close()
        await stopping.close()


async def test_work_with_a_label_is_accepted_and_taken(port: int) -> None:
    await declare(port)
    story, delivered = Story(uuid.uuid4().hex[:26]), list[QueueItem]()
    async with journal_of(port, "gateway") as accepting, journal_of(port, "agents") as agents, asyncio.timeout(30):
        queue = WorkQueue(agents, 4, delivered.append, consumer=coordinator_queue("eu"))
        await queue.start()
        assert (await accepting.append("default", story.accepted(cluster="eu"))).created
        await until(lambda: bool(delivered))
        await queue.ack(delivered[0])
        await until_empty(accepting, "DELIBERATIONS", coordinator_queue("eu"))
        await queue.close()


@pytest.mark.parametrize(("user", "subject"), pairs(FORBIDDEN_TO_PUBLISH))
async def test_no_user_may_publish_on_the_subjects_of_another(port: int, user: str, subject: str) -> None:
    (errors,) = await violations(url_of(port, user), subject)
    assert re.search("permissions violation for publish", errors, re.IGNORECASE)


@pytest.mark.parametrize(("user", "subject"), pairs(FORBIDDEN_TO_SUBSCRIBE))
async def test_no_user_may_subscribe_beyond_its_own_subjects(port: int, user: str, subject: str) -> None:
    (errors,) = await violations(url_of(port, user), subject, subscribe=True)
    assert re.search("permissions violation for subscription", errors, re.IGNORECASE)


async def test_the_keys_user_creates_keys_and_the_gateway_receives_them(port: int) -> None:
    await declare(port)
    pepper = Pepper("of this test, and long enough to be one")
    ring = Keyring(pepper)
    async with (
        journal_of(port, "gateway") as gateway,
        journal_of(port, "keys") as keys,
        asyncio.timeout(30),
        asyncio.TaskGroup() as group,
    ):
        following = group.create_task(ring.follow(gateway))
        await until(lambda: ring.caught_up)
        fact, key = created(pepper, name="ci", tenant="acme", scopes=SCOPES, created_at=NOW, expires_at=None)
        assert (await keys.write(key_subject(fact), dump(fact))).created
        assert not (await keys.write(key_subject(fact), b"another")).created
        await until(lambda: ring.holder(key) is not None)
        assert [record.data async for record in keys.read("keys.>", 0)] == [dump(fact)]
        following.cancel()


async def test_webhooks_and_gateway_users_may_deliver_and_redeliver_webhooks(port: int) -> None:
    await declare(port)
    settings = SenderSettings(
        nats_url=url_of(port, "webhooks"),
        webhook_secrets=MASTER,  # pyright: ignore[reportArgumentType] -- as the environment has it
        webhook_hosts="127.0.0.1",  # pyright: ignore[reportArgumentType]
        webhook_retries_s="0.05",  # pyright: ignore[reportArgumentType]
    )
    story = Story(uuid.uuid4().hex[:26])
    async with (
        receiving() as receiver,
        journal_of(port, "gateway") as gateway,
        journal_of(port, "agents") as agents,
        sender_of(settings) as sender,
        asyncio.timeout(30),
    ):
        await sender.journal.answer(SENDERS_SUBJECT, lambda _: sender.describe())
        running = asyncio.create_task(sender.run())
        receiver.script["/hook"].append(500)
        await gateway.append("default", accepted(story, receiver.url(), TERMINAL_EVENTS))
        await agents.append("default", story.completed())
        first, _ = await receiver.until(2)
        place = DeliveryKey("default", story.id, first.id)
        asked = RedeliveryRequested(fact=f"deliberations.default.{story.id}.end", number=1, at=NOW)
        await gateway.write(place.subject(asked), dump(asked))
        await receiver.until(3)
        (status,) = await gateway.inquire(SENDERS_SUBJECT, timeout_s=2)
        assert status["counts"]["failed"] == 1 and set(status["queues"]) == {"webhooks", "attempts"}
        while len(await gateway.last([f"webhooks.default.{story.id}.>"])) < 4:
            await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.wait([running])


async def test_the_worker_user_makes_the_calls_that_coordinators_assign(port: int) -> None:
    await declare(port, "DEV")
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    engines = Engines([EngineSpec(url="http://engine")], transport=httpx.MockTransport(engine))
    story = Story(uuid.uuid4().hex[:26])
    async with (
        journal_of(port, "gateway") as gateway,
        journal_of(port, "agents") as agents,
        journal_of(port, "worker") as journal,
        asyncio.timeout(30),
        asyncio.TaskGroup() as group,
    ):
        role = Role(persona="You test.")
        replica = AgentReplica(
            "DEV", role, engines, journal, stream_deltas=True, publications=["responses"], engine_away_timeout_s=30
        )
        heartbeats = Heartbeats()
        await gateway.listen(HEARTBEATS_SUBJECT.format(role="*"), heartbeats.note)
        working = group.create_task(RoleWorker(replica).run())
        asked = stage_request((call(1), call(2)), deliberation_id=story.id, resumed=True)
        while not replica.viewers.has("default", story.id):
            await gateway.tell(text_viewers.SUBJECT, f"default.{story.id}".encode())
            await asyncio.sleep(0.02)
        assigned = group.create_task(WorkerAgents(agents, "DEV").run(asked))
        while len(await gateway.last([f"deliberations.default.{story.id}.call.*.finished"])) < 2:
            await asyncio.sleep(0.02)
        while (await streams_state(gateway))["messages"]:
            await asyncio.sleep(0.02)
        (status,) = await gateway.inquire("control.role.DEV", timeout_s=2)
        assert status["counts"]["answered"] == 2
        assert (await gateway.last([f"agent.response.*.{story.id}.*"])) != []
        await until(lambda: [agent.role for agent in heartbeats.alive("DEV")] == ["DEV"])
        assigned.cancel()
        working.cancel()


async def streams_state(gateway: JetStreamJournal) -> dict[str, int]:
    return (await gateway.request(f"$JS.API.STREAM.INFO.{TASKS_STREAM}"))["state"]


async def test_the_archive_user_copies_and_tells_its_figures(port: int, tmp_path: Path) -> None:
    await declare(port)
    url = f"sqlite:///{tmp_path / 'archive.db'}"
    await migrate(url)
    settings = ArchiveSettings(nats_url=url_of(port, "archive"), database_url=SecretStr(url))
    story = Story(uuid.uuid4().hex[:26])
    async with (
        journal_of(port, "gateway") as gateway,
        journal_of(port, "agents") as agents,
        projector_of(settings) as (journal, projector),
        asyncio.timeout(30),
    ):
        await journal.answer(PROJECTORS_SUBJECT, lambda _: figures(journal, projector))
        copying = asyncio.create_task(projector.run())
        store = Store(Database(url))

        async def statuses() -> list[tuple[str, str]]:
            # Tests before this one have left deliberations in the log.
            return [(each.id, each.status) for _, each in (await store.page("default", ListFilter(), limit=9))[0]]

        await gateway.append("default", story.accepted())
        for fact, shown in ((story.opened(), "in_progress"), (story.completed(), "completed")):
            await agents.append("default", fact)
            while (story.id, shown) not in await statuses():
                await asyncio.sleep(0.02)
        while True:
            (status,) = await gateway.inquire(PROJECTORS_SUBJECT, timeout_s=2)
            if status["counts"].get("written") and not status["pending"]:
                break
            await asyncio.sleep(0.02)
        copying.cancel()
        await asyncio.wait([copying])
        found = await store.read("default", story.id)
    assert found is not None and len(found.records) == 3


async def test_the_gateway_user_starts_and_rejects_announced_plans_and_gives_up_its_place(port: int) -> None:
    await declare(port)
    asked = plan_event(roles=["DEV"])
    async with journal_of(port, "planner") as planner, asyncio.timeout(30):
        async with taking(url_of(port, "gateway")) as taker:
            for subject, event in (
                (TRANSITIONED, json.dumps(moved("s")).encode()),
                ("planning.plan.approved", json.dumps(asked).encode()),
                ("planning.plan.approved", b"no JSON"),
            ):
                await planner.request(subject, event)
            journal = taker.gateway["journal"]
            await until(lambda: taker.counts == {"transitions": 1, "started": 1, "rejected": 1})
            assert len(await journal.facts("default", role_deliberation_id("default", "plan-001", "DEV"))) == 1
            assert (await last_transition(journal, "default", "s")) is not None
        async with taking(url_of(port, "gateway")) as next_taker, asyncio.timeout(EXCLUSIVE_S / 2):
            await planner.request("planning.plan.approved", json.dumps(asked).encode())
            await until(lambda: next_taker.counts == {"repeated": 1})


async def test_the_context_user_learns_and_answers_gateways(port: int, tmp_path: Path) -> None:
    await declare(port)
    id = uuid.uuid4().hex[:26]
    story = {"story_id": f"s-{id}", "tenant": "default", "options": {"max_tokens": 1_000}}
    question = json.dumps(story).encode()
    async with (
        redis_server(tmp_path) as redis_url,
        context_service(url_of(port, "context"), redis_url),
        journal_of(port, "gateway") as gateway,
        journal_of(port, "agents") as agents,
        asyncio.timeout(60),
    ):
        assert json.loads(await gateway.ask(SUBJECT, question, timeout_s=5))["context_text"] == ""
        await agents.announce(decided(id, story_id=f"s-{id}"))
        while not (known := json.loads(await gateway.ask(SUBJECT, question, timeout_s=5)))["context_text"]:
            await asyncio.sleep(0.02)
        assert "A link." in known["context_text"]
        while not (await gateway.request("$JS.API.STREAM.INFO.CONTEXT_EVENTS"))["state"]["messages"]:
            await asyncio.sleep(0.02)


async def test_permitted_subjects_report_no_violation(port: int) -> None:
    """Guards the two tests above against passing for another reason."""
    assert await violations(url_of(port, "gateway"), "control.coordinator") == []
    assert await violations(url_of(port, "gateway"), "live.deliberations.>", subscribe=True) == []


@pytest.mark.parametrize("login", ["", "gateway:wrong@", "stranger:gAAAA@"])
async def test_an_unknown_user_is_refused(port: int, login: str) -> None:
    client = Client()
    try:
        with pytest.raises(nats.errors.Error, match=r"(?i)authorization violation"):
            await client.connect(f"nats://{login}127.0.0.1:{port}", allow_reconnect=False)
    finally:
        await client.close()
