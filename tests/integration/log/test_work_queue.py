import asyncio

import pytest

from app.deliberation.facts import Accepted, decode
from app.log.journal import JetStreamJournal
from app.log.stream_settings import StreamSettings
from app.log.streams import apply
from app.log.work_queue import QueueItem, WorkQueue
from tests.conditions import server_has_read, until
from tests.conftest import NatsServer
from tests.contracts.journal_facts import accepted


async def test_a_refused_pull_is_not_repeated_at_once(own_nats_server: NatsServer) -> None:
    """Without stream and consumer the server refuses each pull within a round trip."""
    journal = await JetStreamJournal.connect(own_nats_server.url)
    queue = WorkQueue(journal, 10, lambda _: None)
    await queue.start()
    for _ in range(20):
        await journal.client.flush()
    assert journal.client.stats["out_msgs"] <= 2
    await journal.close()


async def test_a_fetch_takes_what_waits_and_says_whether_that_is_all(journal: JetStreamJournal) -> None:
    for number in range(5):
        await journal.append("default", accepted(f"d{number}"))
    delivered: list[QueueItem] = []
    queue = WorkQueue(journal, 3, delivered.append, standing=False)
    await queue.start()
    await server_has_read(journal.client)
    assert not delivered
    assert not await queue.fetch() and len(delivered) == 3
    # No slot is free.
    assert not await queue.fetch() and len(delivered) == 3
    for delivery in list(delivered):
        await queue.ack(delivery)
    assert await queue.fetch() and len(delivered) == 5
    assert await queue.fetch() and len(delivered) == 5
    await queue.close()


async def test_a_fetch_ends_when_the_log_does_not_answer(
    own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.log.work_queue.REQUEST_TIMEOUT_S", 0.2)
    journal = await JetStreamJournal.connect(own_nats_server.url)
    queue = WorkQueue(journal, 3, lambda _: None, standing=False)
    await queue.start()
    own_nats_server.kill()
    assert await queue.fetch() is None
    own_nats_server.start()
    await journal.close()


async def test_deliveries_never_exceed_the_slots_until_they_are_acknowledged(own_nats_server: NatsServer) -> None:
    journal = await JetStreamJournal.connect(own_nats_server.url)
    await apply(journal, StreamSettings(ack_wait_s=1))
    for number in range(5):
        await journal.append("default", accepted(f"d{number}"))
    delivered: list[QueueItem] = []
    queue = WorkQueue(journal, 3, delivered.append)
    await queue.start()
    watching = asyncio.create_task(queue.watch())
    await until(lambda: len(delivered) == 3)
    for delivery in delivered[:3]:
        await queue.ack(delivery)
    await until(lambda: len(delivered) >= 5)
    facts = [decode(delivery.record.data) for delivery in delivered[:5]]
    assert [fact.deliberation_id for fact in facts if isinstance(fact, Accepted)] == [f"d{n}" for n in range(5)]
    # Neither acknowledged nor extended, the item is redelivered.
    await until(lambda: any(delivery.deliveries > 1 for delivery in delivered))
    watching.cancel()
    await asyncio.wait({watching})
    await journal.close()
