"""A page of the log that takes long: it is waited for as long as something of it comes."""

import asyncio

import pytest
from nats.aio.msg import Msg

from app.deliberation.errors import JournalUnavailable
from app.log.journal import JetStreamJournal
from tests.conditions import until

SOON_S = 0.01
RECORD = {"Nats-Subject": "deliberations.default.a.end", "Nats-Sequence": "7"}
OVER = {"Status": "204"}


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> JetStreamJournal:
    """A journal that gives a page up soon."""
    monkeypatch.setattr("app.log.journal.REQUEST_TIMEOUT_S", SOON_S)
    return JetStreamJournal("nats://nowhere", name="slow")


async def test_a_page_takes_as_long_as_its_records_come(
    journal: JetStreamJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = asyncio.get_running_loop().time
    ending: list[asyncio.Task[None]] = []

    async def end(inbox: str, after_s: float) -> None:
        await until(lambda: clock() > after_s)
        await journal._take_reply(Msg(journal.client, subject=inbox, headers=OVER))

    async def publish(subject: str, payload: bytes, reply: str) -> None:
        monkeypatch.setattr("app.log.journal.REQUEST_TIMEOUT_S", 60)
        await journal._take_reply(Msg(journal.client, subject=reply, headers=RECORD))
        ending.append(asyncio.create_task(end(reply, clock() + SOON_S)))

    monkeypatch.setattr(journal.client, "publish", publish)
    assert [record.sequence async for record in journal.read("deliberations.*.*.end", 0)] == [7]


async def test_a_page_of_which_nothing_more_comes_is_given_up(
    journal: JetStreamJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def publish(subject: str, payload: bytes, reply: str) -> None:
        await journal._take_reply(Msg(journal.client, subject=reply, headers=RECORD))

    monkeypatch.setattr(journal.client, "publish", publish)
    with pytest.raises(JournalUnavailable, match="TimeoutError"):
        _ = [record async for record in journal.read("deliberations.*.*.end", 0)]
