import asyncio
import base64
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import httpx
import nats
import pytest
from nats.aio.client import Client

from app.access.keys import (
    KEYS_PATTERN,
    SCOPES,
    KeyCreated,
    KeyRevoked,
    Pepper,
    Scope,
    created,
    decode_key,
    key_id_of,
    key_subject,
)
from app.api.schemas import dump
from app.archive.database.store import Store
from app.deliberation.calls import StageRequest
from app.deliberation.facts import (
    CancelRequested,
    Completed,
    Deleted,
    Fact,
    StageClosed,
    encode,
    prefix,
    suffix,
)
from app.deliberation.ports import Record
from app.log.journal import JetStreamJournal
from app.log.signature import SIGNATURE_HEADER, LogSigner
from app.log.stream_settings import PUBLICATIONS, StreamSettings
from app.log.streams import apply
from app.log.work_queue import WorkQueue
from app.main import lifespan_of
from app.routes.dependencies import Gateway, SystemClock
from app.settings import Settings
from serve_deployments.coordinator.coordinator import CoordinatorReplica
from serve_deployments.deployments import Handle, RayAgents
from tests.components.routes.served import APP, answering
from tests.conditions import server_has_read, until
from tests.conftest import LOG_KEY, NatsServer
from tests.integration.archive.conftest import migrated
from tests.integration.archive.projecting import projecting
from tests.integration.coordinator.coordinator_replicas import Role, accepted, answered, until_done

PEPPER = "the pepper of an installation under attack"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
BODY = {"task": "Name a colour.", "role": "DEV", "num_agents": 1, "strategy": "single"}


@dataclass
class Attacked:
    url: str
    gateway: Gateway
    client: httpx.AsyncClient
    journal: JetStreamJournal
    attacker: Client

    async def key(self, scopes: tuple[Scope, ...], tenant: str = "acme") -> str:
        fact, key = created(Pepper(PEPPER), name="one", tenant=tenant, scopes=scopes, created_at=NOW, expires_at=None)
        await self.journal.write(key_subject(fact), dump(fact))
        ring = self.gateway["access"].keyring
        assert ring is not None
        await until(lambda: ring.holder(key) is not None)
        return key

    async def status(self, key: str, path: str = "/deliberations", method: str = "GET") -> int:
        headers = {"Authorization": f"Bearer {key}"}
        return (await self.client.request(method, path, headers=headers, json=BODY)).status_code

    async def live(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        await self.attacker.publish(f"live.{subject}", data, headers={"Nats-Sequence": "1000000", **(headers or {})})

    async def stored(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        reply = await self.attacker.request(subject, data, headers=headers, timeout=5)
        assert "error" not in json.loads(reply.data), reply.data

    async def copied(self, subject: str) -> tuple[bytes, dict[str, str]]:
        stream = "KEYS" if subject.startswith("keys.") else "DELIBERATIONS"
        query = json.dumps({"seq": 1, "next_by_subj": subject}).encode()
        reply = await self.attacker.request(f"$JS.API.STREAM.MSG.GET.{stream}", query, timeout=5)
        stored = json.loads(reply.data)["message"]
        signature = re.search(rf"{SIGNATURE_HEADER}: (\S+)", base64.b64decode(stored.get("hdrs", "")).decode())
        return base64.b64decode(stored["data"]), {SIGNATURE_HEADER: signature[1]} if signature else {}

    async def forge(self, way: str, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        before = await self.refused()
        await (self.live if way == "live" else self.stored)(subject, data, headers)
        await server_has_read(self.attacker)
        await asyncio.sleep(0.02)
        if way == "read anew":
            journal = cast("JetStreamJournal", self.gateway["journal"])
            journal._resync()  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.05)
        assert await self.refused() > before

    async def refused(self) -> int:
        ring = self.gateway["access"].keyring
        return self.gateway["journal"].refused + (0 if ring is None else ring.refusals.count)


@asynccontextmanager
async def attacked_on(server: NatsServer, log_key: Path | None) -> AsyncGenerator[Attacked, None]:
    journal = await JetStreamJournal.connect(server.url, name="honest", signer=LogSigner.of_file(log_key))
    await apply(journal, StreamSettings(publications=PUBLICATIONS))
    attacker = await nats.connect(server.url)
    with TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/archive.db"
        settings = Settings.model_validate(
            {"nats_url": server.url, "key_pepper": PEPPER, "log_key_file": log_key, "database_url": url}
        )
        async with (
            migrated(url) as database,
            lifespan_of(settings, None, SystemClock())(APP) as gateway,
            answering(gateway) as client,
            projecting(journal, Store(database)),
        ):
            await until(lambda: gateway["catalog"].caught_up)
            yield Attacked(server.url, gateway, client, journal, attacker)
    await attacker.close()
    await journal.close()


@pytest.fixture
def log_key(tmp_path: Path) -> Path:
    path = tmp_path / "log_key"
    path.write_text(LOG_KEY)
    return path


@pytest.fixture(params=["log key", "no log key"])
async def attacked(
    request: pytest.FixtureRequest, own_nats_server: NatsServer, log_key: Path
) -> AsyncGenerator[Attacked, None]:
    async with attacked_on(own_nats_server, log_key if request.param == "log key" else None) as found:
        yield found


@pytest.fixture
async def signed(own_nats_server: NatsServer, log_key: Path) -> AsyncGenerator[Attacked, None]:
    async with attacked_on(own_nats_server, log_key) as found:
        yield found


def promoted(fact: KeyCreated) -> dict[str, KeyCreated]:
    more = {"scopes": SCOPES, "tenant": "victim"}
    return {
        "the same signature": fact.model_copy(update=more),
        "no signature": fact.model_copy(update={**more, "signature": ""}),
        "a signature of another pepper": Pepper("the pepper of the attacker himself").signed(
            fact.model_copy(update=more)
        ),
        "a digest as signature": fact.model_copy(update={**more, "signature": f"v1:{fact.digest}"}),
        "a later end": fact.model_copy(update={"expires_at": datetime(2099, 1, 1, tzinfo=UTC), "scopes": SCOPES}),
    }


@pytest.mark.parametrize("way", ["live", "stored", "read anew"])
@pytest.mark.parametrize(
    "forgery",
    ["the same signature", "no signature", "a signature of another pepper", "a digest as signature", "a later end"],
)
async def test_a_read_key_stays_a_read_key(attacked: Attacked, way: str, forgery: str) -> None:
    key = await attacked.key(("read",))
    subject = f"keys.{key_id_of(key)}.created"
    data, headers = await attacked.copied(subject)
    fact = decode_key(data)
    assert isinstance(fact, KeyCreated)
    forged = dump(promoted(fact)[forgery])
    await attacked.forge(way, subject, forged, headers)
    assert [await attacked.status(key), await attacked.status(key, "/metrics")] == [200, 403]
    assert await attacked.status(key, method="POST") == 403
    ring = attacked.gateway["access"].keyring
    held = None if ring is None else ring.holder(key)
    assert held is not None and held.caller.tenant == "acme" and held.fact.expires_at is None


@pytest.mark.parametrize("way", ["live", "stored", "read anew"])
@pytest.mark.parametrize("signature", ["none", "copied", "own pepper"])
async def test_a_key_of_the_attacker_opens_nothing(attacked: Attacked, way: str, signature: str) -> None:
    honest = await attacked.key(("read",))
    pepper = Pepper("the pepper of the attacker himself")
    fact, key = created(pepper, name="x", tenant="acme", scopes=SCOPES, created_at=NOW, expires_at=None)
    fact = fact.model_copy(update={"pepper": Pepper(PEPPER).id})
    if signature != "own pepper":
        copied = decode_key((await attacked.copied(f"keys.{key_id_of(honest)}.created"))[0]).signature
        fact = fact.model_copy(update={"signature": "" if signature == "none" else copied})
    await attacked.forge(way, key_subject(fact), dump(fact))
    assert [await attacked.status(key), await attacked.status(honest)] == [401, 200]


@pytest.mark.parametrize("way", ["live", "stored", "read anew"])
@pytest.mark.parametrize("forgery", ["unsigned", "of another key", "under another subject", "rubbish", "nested"])
async def test_a_forged_revocation_revokes_nothing_and_an_honest_one_still_does(
    attacked: Attacked, way: str, forgery: str
) -> None:
    pepper = Pepper(PEPPER)
    key, other = await attacked.key(("read",)), await attacked.key(("read",))
    key_id, other_id = key_id_of(key) or "", key_id_of(other) or ""
    gone = pepper.signed(KeyRevoked(key_id=other_id, revoked_at=NOW))
    await attacked.journal.write(key_subject(gone), dump(gone))
    subject = f"keys.{key_id}.revoked"
    forged = {
        "unsigned": dump(KeyRevoked(key_id=key_id, revoked_at=NOW)),
        "of another key": dump(gone.model_copy(update={"key_id": key_id})),
        "under another subject": dump(gone),
        "rubbish": b"\xff" * 100,
        "nested": b"[" * 100_000,
    }[forgery]
    for _ in range(3):
        await attacked.forge(way, subject, forged)
    assert [await attacked.status(key), await attacked.status(other)] == [200, 401]
    honest = pepper.signed(KeyRevoked(key_id=key_id, revoked_at=NOW))
    written = await attacked.journal.write(
        subject, dump(honest), accepts=lambda record: pepper.verified(record) is not None
    )
    assert written.created
    await until(lambda: attacked.gateway["access"].keyring.good(key_id) is None)  # pyright: ignore
    assert await attacked.status(key) == 401


async def test_a_fact_of_one_key_is_none_of_another(attacked: Attacked) -> None:
    admin, reader = await attacked.key(SCOPES), await attacked.key(("read",))
    data, headers = await attacked.copied(f"keys.{key_id_of(admin)}.created")
    for way in ("live", "stored", "read anew"):
        await attacked.forge(way, f"keys.{key_id_of(reader)}.created", data, headers)
    assert [await attacked.status(admin, "/metrics"), await attacked.status(reader, "/metrics")] == [200, 403]


Forge = Callable[[StageRequest], list[Fact | Deleted]]


def _answer(request: StageRequest) -> list[Fact | Deleted]:
    text = json.dumps({"reasoning": "because", "answer": "red", "confidence": 100})
    return [answered(request, call).model_copy(update={"text": text}) for call in request.calls]


FORGERIES: dict[str, Forge] = {
    "answer": _answer,
    "end": lambda request: [Completed(deliberation_id=request.deliberation_id, ts=NOW)],
    "cancel": lambda request: [CancelRequested(deliberation_id=request.deliberation_id, ts=NOW)],
    "deletion": lambda request: [Deleted(deliberation_id=request.deliberation_id, ts=NOW)],
    "stage": lambda request: [
        StageClosed(
            deliberation_id=request.deliberation_id,
            ts=NOW,
            stage=1,
            purpose="propose",
            round=0,
            seen=(),
            reason="all",
        )
    ],
    "acceptance": lambda request: [accepted(request.deliberation_id, timeout_s=1)],
}


@asynccontextmanager
async def coordinating(attacked: Attacked, answers: Callable[[StageRequest], Awaitable[bool]]) -> AsyncGenerator[Role]:
    journal = await JetStreamJournal.connect(attacked.url, signer=LogSigner([LOG_KEY]))
    role, ready = Role(attacked.journal, answers), asyncio.Event()
    roles = {name: RayAgents(cast("Handle", role)) for name in ("DEV", "ARCHITECT", "QA")}
    serving = asyncio.create_task(CoordinatorReplica(journal, roles, 10, PUBLICATIONS).serve(ready))
    await ready.wait()
    yield role
    serving.cancel()
    await asyncio.wait({serving})
    await journal.close()


@pytest.mark.parametrize("way", ["live", "stored", "signed by another key"])
@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_forged_fact_changes_neither_state_nor_verdict(signed: Attacked, forgery: str, way: str) -> None:
    key = await signed.key(SCOPES)
    headers = {"Authorization": f"Bearer {key}"}

    async def answers(request: StageRequest) -> bool:
        for fact in FORGERIES[forgery](request):
            subject = f"{prefix('acme', fact.deliberation_id)}.{suffix(fact)}"
            foreign = LogSigner(["a log key of the attacker himself"]).headers(subject, encode(fact))
            for _ in range(3):
                if way == "live":
                    await signed.live(subject, encode(fact))
                else:
                    await signed.stored(subject, encode(fact), foreign if way != "stored" else None)
        await asyncio.sleep(0.2)
        shown = (await signed.client.get(f"/deliberations/{request.deliberation_id}", headers=headers)).json()
        assert (shown["status"], shown["cancellation"]) == ("in_progress", None), shown
        return True

    async with coordinating(signed, answers) as role:
        posted = await signed.client.post(
            "/deliberations", json=BODY, headers={**headers, "Prefer": "wait=20"}, timeout=30
        )
        assert role.asked == [posted.json()["id"]]
    assert posted.status_code == 200 and posted.json()["status"] == "completed", posted.text
    assert "blue" in json.dumps(posted.json()["verdict"]) and "red" not in json.dumps(posted.json()["verdict"])
    listed = (await signed.client.get("/deliberations?after=now", headers=headers)).json()["items"]
    assert [(each["id"], each["status"]) for each in listed] == [(posted.json()["id"], "completed")]


@pytest.mark.parametrize("forgery", ["unsigned", "of another tenant", "of another id", "by another key"])
async def test_nothing_starts_by_a_forged_acceptance(signed: Attacked, forgery: str) -> None:
    key = await signed.key(SCOPES)
    headers = {"Authorization": f"Bearer {key}"}
    started = asyncio.Event()

    async def answers(request: StageRequest) -> bool:
        started.set()
        return True

    async with coordinating(signed, answers) as role:
        posted = await signed.client.post("/deliberations", json=BODY, headers={**headers, "Prefer": "wait=20"})
        honest = f"deliberations.acme.{posted.json()['id']}.accepted"
        data, sent = await signed.copied(honest)
        subject, signature = {
            "unsigned": ("deliberations.acme.forged1.accepted", {}),
            "of another tenant": (honest.replace("acme", "victim"), sent),
            "of another id": ("deliberations.acme.forged1.accepted", sent),
            "by another key": (
                "deliberations.acme.forged1.accepted",
                LogSigner(["k" * 32]).headers("deliberations.acme.forged1.accepted", data),
            ),
        }[forgery]
        for _ in range(5):
            await signed.stored(subject, data, signature)
            await signed.live(subject, data, signature)
        await until_done(signed.journal, 5)
        assert role.asked == [posted.json()["id"]]
    listed = (await signed.client.get("/deliberations?after=now", headers=headers)).json()["items"]
    assert [each["id"] for each in listed] == [posted.json()["id"]]
    metrics = (await signed.client.get("/metrics", headers=headers)).text
    assert 'log_records_refused_total{signature="log"}' in metrics


async def test_a_forged_item_of_the_queue_is_terminated_and_not_delivered_again(signed: Attacked) -> None:
    items: list[Record] = []
    queue = WorkQueue(signed.journal, 5, lambda item: items.append(item.record))
    await queue.start()
    for number in range(20):
        await signed.stored(f"deliberations.acme.forged{number}.accepted", b"{}", {"Status": "409"})
    honest = await signed.journal.append("acme", accepted("honest"))
    await until(lambda: items == [honest.record])
    state = await signed.journal.request("$JS.API.CONSUMER.INFO.DELIBERATIONS.coordinator")
    assert (state["num_pending"], state["num_ack_pending"]) == (0, 1)
    await queue.close()


async def test_what_is_stored_on_the_subjects_of_keys_is_read_once_more_without_an_effect(signed: Attacked) -> None:
    await signed.stored("keys.abcdefghijkl.created", b"{}")
    assert [record async for record in signed.journal.read(KEYS_PATTERN, 0)] == []
