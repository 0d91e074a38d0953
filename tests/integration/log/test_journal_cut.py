"""A connection lost just before its use, on uvloop, which gateways and replicas run on."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import Record
from app.log.journal import JetStreamJournal
from tests.conftest import NatsServer

# After these iterations nats-py has noticed the loss.
ITERATIONS = 4

Use = Callable[[JetStreamJournal], Awaitable[object]]


def _ignored(record: Record) -> None:
    pass


USES: dict[str, Use] = {
    "subscribe": lambda journal: journal.subscribe(["deliberations.default.a.>"], _ignored),
    "facts": lambda journal: journal.facts("default", "a"),
    "state": lambda journal: journal.state(),
    "close": lambda journal: journal.close(),
}


async def _used(url: str, use: Use, iterations: int) -> str:
    """The outcome of a use, so many iterations of the event loop after the connection was aborted."""
    journal = await JetStreamJournal.connect(url, name="cut")
    journal.client._transport._io_writer.transport.abort()
    for _ in range(iterations):
        await asyncio.sleep(0)
    try:
        await use(journal)
    except JournalUnavailable:
        return "unavailable"
    finally:
        await journal.close()
    return "used"


@pytest.mark.usefixtures("jetstream_journal")
@pytest.mark.parametrize("name", list(USES))
async def test_a_connection_lost_just_now_raises_journal_unavailable(nats_server: NatsServer, name: str) -> None:
    async def used() -> list[str]:
        return await asyncio.gather(*(_used(nats_server.url, USES[name], each) for each in range(ITERATIONS)))

    def run() -> list[str]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(used())

    # An untranslated RuntimeError of uvloop would be raised here.
    assert set(await asyncio.to_thread(run)) <= {"used", "unavailable"}
