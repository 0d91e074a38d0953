"""A page of the log that takes long: it is waited for as long as something of it comes."""

import asyncio

import pytest
from nats.aio.msg import Msg

from app.deliberation.errors import JournalUnavailable
from app.journal import JetStreamJournal

RECORDS = 20
APART_S = 0.02
PATIENCE_S = 0.2


def slow_journal(records: int, *, ends: bool) -> JetStreamJournal:
    """A journal whose server sends a record every `APART_S`, and says that the page is over or says nothing more."""
    journal = JetStreamJournal("nats://nowhere", name="slow")
    sending: list[asyncio.Task[None]] = []

    async def send(inbox: str) -> None:
        for number in range(records):
            head = {"Nats-Subject": "deliberations.default.a.end", "Nats-Sequence": str(number + 1)}
            await journal._take_reply(Msg(journal.client, subject=inbox, headers=head))
            await asyncio.sleep(APART_S)
        if ends:
            await journal._take_reply(Msg(journal.client, subject=inbox, headers={"Status": "204"}))

    async def publish(subject: str, payload: bytes, reply: str) -> None:
        sending.append(asyncio.create_task(send(reply)))

    journal.client.publish = publish
    return journal


async def test_a_page_takes_as_long_as_its_records_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.journal.REQUEST_TIMEOUT_S", PATIENCE_S)
    assert RECORDS * APART_S > PATIENCE_S
    read = slow_journal(RECORDS, ends=True).read("deliberations.*.*.end", 0)
    assert [record.sequence async for record in read] == list(range(1, RECORDS + 1))


async def test_a_page_of_which_nothing_more_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.journal.REQUEST_TIMEOUT_S", PATIENCE_S)
    with pytest.raises(JournalUnavailable, match="TimeoutError"):
        _ = [record async for record in slow_journal(2, ends=False).read("deliberations.*.*.end", 0)]
