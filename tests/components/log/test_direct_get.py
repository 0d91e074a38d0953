"""A batched direct get times out when no reply comes, and not while replies still come."""

import asyncio

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from app.deliberation.errors import JournalUnavailable
from app.log.direct_get import DirectGet
from app.log.signature import LogSigner
from tests.conditions import until

SOON_S = 0.01
RECORD = {"Nats-Subject": "deliberations.default.a.end", "Nats-Sequence": "7"}
END_OF_BATCH = {"Status": "204"}
QUERY = {"seq": 1, "next_by_subj": "deliberations.*.*.end", "batch": 4}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr("app.log.direct_get.REQUEST_TIMEOUT_S", SOON_S)
    return Client()


async def test_each_reply_prolongs_the_time_out(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = DirectGet(client, LogSigner())
    clock = asyncio.get_running_loop().time
    ending: list[asyncio.Task[None]] = []

    async def end(inbox: str, after_s: float) -> None:
        await until(lambda: clock() > after_s)
        await reads.on_message(Msg(client, subject=inbox, headers=END_OF_BATCH))

    async def publish(subject: str, payload: bytes, reply: str) -> None:
        monkeypatch.setattr("app.log.direct_get.REQUEST_TIMEOUT_S", 60)
        await reads.on_message(Msg(client, subject=reply, headers=RECORD))
        ending.append(asyncio.create_task(end(reply, clock() + SOON_S)))

    monkeypatch.setattr(client, "publish", publish)
    batch = await reads.get("DELIBERATIONS", QUERY)
    assert [record.sequence for record in batch.records] == [7] and batch.position == 7 and batch.pending == 0


async def test_a_batch_without_an_end_times_out(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = DirectGet(client, LogSigner())

    async def publish(subject: str, payload: bytes, reply: str) -> None:
        await reads.on_message(Msg(client, subject=reply, headers=RECORD))

    monkeypatch.setattr(client, "publish", publish)
    with pytest.raises(JournalUnavailable, match="TimeoutError"):
        await reads.get("DELIBERATIONS", QUERY)
