import os

from app.deliberation.facts import CancelRequested
from app.deliberation.ports import Record
from app.log.journal import JetStreamJournal
from tests.conditions import until
from tests.conftest import NatsServer
from tests.story import NOW

SUBSCRIPTIONS = 200


async def test_a_fact_that_another_process_stores_after_subscribe_is_delivered(
    nats_server: NatsServer, jetstream_journal: JetStreamJournal, fresh_id: str
) -> None:
    heard: list[Record] = []
    journal = await JetStreamJournal.connect(nats_server.url, name=f"subscriber-{os.getpid()}")
    try:
        for number in range(SUBSCRIPTIONS):
            id = f"{fresh_id}-{number}"
            subscription = await journal.subscribe([f"deliberations.default.{id}.>"], heard.append)
            fact = CancelRequested(deliberation_id=id, ts=NOW)
            stored = (await jetstream_journal.append("default", fact)).record
            await until(lambda stored=stored: heard[-1:] == [stored], timeout_s=2)
            await subscription.close()
    finally:
        await journal.close()
