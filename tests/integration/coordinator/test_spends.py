import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import yaml

from app.deliberation.calls import Call, StageRequest, Usage, UsageCost
from app.deliberation.decider import POISON_TAKEOVERS
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import CallFinished, Completed, Deleted, End, Fact, decode
from app.deliberation.ports import Appended
from app.log.journal import JetStreamJournal
from app.log.stream_settings import PUBLICATIONS, StreamSettings
from app.log.streams import apply
from app.main import lifespan_of
from app.routes.dependencies import SystemClock
from app.settings import Settings
from tests.components.routes.served import APP, answering
from tests.conditions import until
from tests.conftest import NatsServer
from tests.integration.coordinator import coordinator_replicas
from tests.integration.coordinator.coordinator_replicas import Replica, Role, always

ENGINE = {"url": "http://e", "prices": {"currency": "USD", "prompt": 1, "completion": 1}}
ROLES = {"engines": {"e": ENGINE}, "roles": {"DEV": {"persona": "p", "engines": ["e"]}}}
BODY = {"task": "Name a colour.", "role": "DEV", "strategy": "single"}


@pytest.fixture
def roles_file(tmp_path: Path) -> Path:
    file = tmp_path / "roles.yaml"
    file.write_text(yaml.safe_dump(ROLES))
    return file


@pytest.fixture(autouse=True)
def priced(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = coordinator_replicas.answered

    def with_cost(request: StageRequest, call: Call) -> CallFinished:
        cost = UsageCost(amount=Decimal("0.4"), currency="USD")
        return answered(request, call).model_copy(update={"usage": Usage(calls=1, cost=cost)})

    monkeypatch.setattr(coordinator_replicas, "answered", with_cost)


@asynccontextmanager
async def gateway(server: NatsServer, roles_file: Path) -> AsyncGenerator[httpx.AsyncClient]:
    settings = Settings(nats_url=server.url, roles_file=roles_file, spend_per_day=Decimal(1))
    async with lifespan_of(settings, None, SystemClock())(APP) as running:
        spends = running["deliberations"].spends
        await until(lambda: spends is not None and spends.caught_up)
        async with answering(running) as client:
            yield client


async def ended(journal: JetStreamJournal, id: str) -> None:
    async with asyncio.timeout(30):
        while not await journal.last([f"deliberations.default.{id}.end"]):
            await asyncio.sleep(0.01)


async def spends(journal: JetStreamJournal) -> list[bytes]:
    return [record.data async for record in journal.read("spends.>", 0)]


async def log_of(server: NatsServer) -> JetStreamJournal:
    # A day that begins in the middle of a test would begin at nothing.
    now = datetime.now(UTC)
    if (now + timedelta(minutes=1)).date() != now.date():
        await asyncio.sleep(61)
    journal = await JetStreamJournal.connect(server.url, name="tests")
    await apply(journal, StreamSettings(ack_wait_s=1, publications=PUBLICATIONS))
    return journal


async def test_gateways_refuse_what_coordinators_have_spent_also_after_a_restart_and_a_deletion(
    own_nats_server: NatsServer, roles_file: Path
) -> None:
    journal = await log_of(own_nats_server)
    replica = await Replica.start(own_nats_server.url, Role(journal, always))
    ids = list[str]()
    async with gateway(own_nats_server, roles_file) as first, gateway(own_nats_server, roles_file) as second:
        for client in (first, second, first):
            accepted = await client.post("/deliberations", json=BODY)
            assert accepted.status_code == 202, accepted.text
            ids.append(accepted.json()["id"])
            await ended(journal, ids[-1])
            assert len(await spends(journal)) == len(ids), "the end is written after the spend"

        async def refused(client: httpx.AsyncClient) -> bool:
            return (await client.post("/deliberations", json=BODY)).status_code == 429

        async with asyncio.timeout(5):
            while not (await refused(first) and await refused(second)):
                await asyncio.sleep(0.01)
        assert (await first.delete(f"/deliberations/{ids[0]}")).status_code == 204
    async with gateway(own_nats_server, roles_file) as restarted:
        answer = await restarted.post("/deliberations", json=BODY)

    assert (answer.status_code, answer.json()["code"]) == (429, "spend_exhausted")
    assert answer.json()["detail"] == "This tenant has spent 1.2 USD of 1 USD today in UTC."
    await replica.stop()
    await journal.close()


class CannotSpend(JetStreamJournal):
    refuses = True

    async def write(self, subject: str, data: bytes, alone: str | None = None, **more: Any) -> Appended:
        if CannotSpend.refuses and subject.startswith("spends."):
            raise JournalUnavailable("no leader")
        return await super().write(subject, data, alone, **more)


async def test_finished_work_waits_for_its_spend_without_suspicion(
    own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_deployments.coordinator.coordinator.REQUEUE_DELAY_S", 0.01)
    journal = await log_of(own_nats_server)
    replica = await Replica.start(own_nats_server.url, Role(journal, always), CannotSpend)
    await journal.append("default", coordinator_replicas.accepted("spent"))

    async with asyncio.timeout(30):
        while not await journal.last([f"deliberations.default.spent.takeover.{2 * POISON_TAKEOVERS}"]):
            await asyncio.sleep(0.01)
    CannotSpend.refuses = False
    await ended(journal, "spent")

    (end,) = await journal.last(["deliberations.default.spent.end"])
    assert isinstance(decode(end.data), Completed) and len(await spends(journal)) == 1
    await replica.stop()
    await journal.close()


class LosesItsFirstEnd(JetStreamJournal):
    lost = 0

    async def append(self, tenant: str, fact: Fact | Deleted) -> Appended:
        if isinstance(fact, End) and not LosesItsFirstEnd.lost:
            LosesItsFirstEnd.lost += 1
            raise JournalUnavailable("lost")
        return await super().append(tenant, fact)


async def test_a_coordinator_that_ends_again_what_was_counted_counts_it_once(own_nats_server: NatsServer) -> None:
    journal = await log_of(own_nats_server)
    replica = await Replica.start(own_nats_server.url, Role(journal, always), LosesItsFirstEnd)
    await journal.append("default", coordinator_replicas.accepted("twice"))

    await ended(journal, "twice")

    assert LosesItsFirstEnd.lost == 1 and await spends(journal) == [b'{"amount":0.4,"currency":"USD"}']
    (end,) = await journal.last(["deliberations.default.twice.end"])
    usage = cast("End", decode(end.data)).usage
    assert usage.cost is not None and usage.cost.amount == Decimal("0.4")
    await replica.stop()
    await journal.close()
