"""The contract of deliveries: one suite against a real nats-server and the server in memory.

Every behaviour was observed on nats-server 2.15.1. Crash tests and the model rely on the server in memory.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Completed, encode
from app.log.journal import JetStreamJournal
from app.log.stream_settings import CONSUMER, PUBLICATIONS, STREAM, StreamSettings
from app.log.streams import apply
from app.log.work_queue import QueueItem, WorkQueue
from tests.conditions import server_has_read, until
from tests.conftest import NatsServer
from tests.contracts.journal_facts import accepted
from tests.crash.client import journal_over
from tests.crash.server import InMemoryServer
from tests.story import NOW

FIRST_WRITE = {"Nats-Expected-Last-Subject-Sequence": "0"}


@dataclass
class Server:
    """A server that can be killed, with a consumer of the given `ack_wait`."""

    connect: Callable[[], Awaitable[JetStreamJournal]]
    kill: Callable[[], None]
    start: Callable[[], None]
    watching: list[asyncio.Task[None]]

    async def pulling(self, journal: JetStreamJournal) -> tuple[WorkQueue, list[QueueItem]]:
        """A queue that pulls, and the items delivered to it."""
        delivered: list[QueueItem] = []
        queue = WorkQueue(journal, 10, delivered.append)
        await queue.start()
        self.watching.append(asyncio.create_task(queue.watch()))
        return queue, delivered


@pytest.fixture(params=["real", "modelled"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[[float], Awaitable[Server]]]:
    journals: list[JetStreamJournal] = []
    watching: list[asyncio.Task[None]] = []
    real = NatsServer(tmp_path / "nats")

    async def of(ack_wait_s: float) -> Server:
        async def connect() -> JetStreamJournal:
            if request.param == "real":
                journal = await JetStreamJournal.connect(real.url, name="tests", timeout_s=20)
            else:
                journal = await journal_over(modelled, "tests", timeout_s=20)
            journals.append(journal)
            return journal

        modelled = InMemoryServer(ack_wait_s=ack_wait_s)
        if request.param == "modelled":
            return Server(connect, modelled.kill, modelled.start, watching)
        real.start()
        await apply(await connect(), StreamSettings(ack_wait_s=ack_wait_s, publications=PUBLICATIONS))
        return Server(connect, real.kill, real.start, watching)

    yield of
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    for journal in journals:
        await journal.close()
    real.stop()


async def waiting(journal: JetStreamJournal) -> tuple[int, int]:
    """The counts of undelivered and of unacknowledged items, after the server has read all that was sent."""
    await server_has_read(journal.client)
    state: dict[str, Any] = await journal.request(f"$JS.API.CONSUMER.INFO.{STREAM}.{CONSUMER}")
    return state["num_pending"], state["num_ack_pending"]


async def emptied(journal: JetStreamJournal) -> None:
    async with asyncio.timeout(10):
        while await waiting(journal) != (0, 0):
            await asyncio.sleep(0.02)


Servers = Callable[[float], Awaitable[Server]]


async def test_a_silent_holder_loses_the_work_and_may_still_acknowledge_it(server: Servers) -> None:
    running = await server(1)
    journal = await running.connect()
    await journal.append("default", accepted("d1"))
    queue, delivered = await running.pulling(journal)
    await until(lambda: len(delivered) == 2)
    assert [delivery.deliveries for delivery in delivered] == [1, 2]
    await queue.ack(delivered[0])
    await emptied(journal)
    began_s = time.monotonic()
    while time.monotonic() < began_s + 1.5:
        await asyncio.sleep(0.05)
    assert len(delivered) == 2, "an acknowledgement of any holder counts"


async def test_any_holder_may_extend_or_return_the_work(server: Servers) -> None:
    running = await server(1)
    journal = await running.connect()
    await journal.append("default", accepted("d1"))
    queue, delivered = await running.pulling(journal)
    await until(lambda: len(delivered) == 2)
    for _ in range(8):
        await queue.working(delivered[0])
        await asyncio.sleep(0.2)
    assert len(delivered) == 2
    requeued_s = time.monotonic()
    await queue.requeue(delivered[0], 0.3)
    await until(lambda: len(delivered) == 3)
    assert 0.25 < time.monotonic() - requeued_s < 0.95
    await queue.ack(delivered[2])
    await emptied(journal)


async def test_the_ack_floor_is_below_the_first_unacknowledged_acceptance(server: Servers) -> None:
    running = await server(10)
    journal = await running.connect()
    assert (await journal.queue(CONSUMER)).acknowledged_to == 0
    sequences = [(await journal.append("default", accepted(f"d{number}"))).record.sequence for number in range(4)]
    queue, delivered = await running.pulling(journal)
    await until(lambda: len(delivered) == 4)
    floors = list[int]()
    for number in (0, 2, 1, 3):
        await journal.append("default", Completed(deliberation_id=f"d{number}", ts=NOW))
        await queue.ack(next(each for each in delivered if each.record.tokens[2] == f"d{number}"))
        await waiting(journal)
        floors.append((await journal.queue(CONSUMER)).acknowledged_to)
    running.kill()
    running.start()
    async with asyncio.timeout(20):
        while len(floors) < 5:
            await asyncio.sleep(0.02)
            with suppress(JournalUnavailable):
                floors.append((await journal.queue(CONSUMER)).acknowledged_to)
    first, second, third, fourth = sequences
    assert first <= floors[0] < second and first <= floors[1] < second, "the second is unacknowledged"
    assert third <= floors[2] < fourth <= floors[3]
    assert floors[4] <= floors[3], "a restart may lower the ack floor"


async def test_pulls_are_served_in_turn_even_of_a_hung_client(server: Servers) -> None:
    running = await server(10)
    first, second = await running.connect(), await running.connect()
    (_, delivered), (_, others) = await running.pulling(first), await running.pulling(second)
    await waiting(second)
    for number in range(6):
        await first.append("default", accepted(f"d{number}"))
    await until(lambda: len(delivered) + len(others) == 6)
    assert len(delivered) == len(others) == 3


async def test_a_lost_acknowledgement_redelivers_the_work(server: Servers) -> None:
    running = await server(1)
    journal = await running.connect()
    await journal.append("default", accepted("d1"))
    _, delivered = await running.pulling(journal)
    await until(lambda: len(delivered) == 1)
    assert await waiting(journal) == (0, 1)
    await until(lambda: len(delivered) == 2)


async def test_a_server_killed_right_after_deliveries_repeats_some_with_count_one(server: Servers) -> None:
    """The server stores the first delivery at once, and later ones a tenth of a second afterwards."""
    running = await server(60)
    journal = await running.connect()
    _, delivered = await running.pulling(journal)
    before = 0
    # On a busy machine the kill may come too late.
    for attempt in range(5):
        for name in ("a", "b", "c"):
            await journal.append("default", accepted(f"{name}{attempt}"))
        before += 3
        await until(lambda: len(delivered) == before)  # noqa: B023 -- awaited at once
        running.kill()
        running.start()
        with suppress(TimeoutError):
            await until(lambda: len(delivered) > before, timeout_s=6)  # noqa: B023 -- awaited at once
            break
    assert {delivery.deliveries for delivery in delivered[before:]} == {1}


async def test_a_server_killed_later_keeps_the_delivery_count(server: Servers) -> None:
    running = await server(4)
    journal = await running.connect()
    _, delivered = await running.pulling(journal)
    await journal.append("default", accepted("d1"))
    await until(lambda: len(delivered) == 1)
    await asyncio.sleep(1)
    running.kill()
    running.start()
    await until(lambda: len(delivered) == 2, timeout_s=15)
    assert delivered[1].deliveries == 2


async def test_a_repeated_write_is_refused_even_from_the_same_writer(server: Servers) -> None:
    running = await server(10)
    journal = await running.connect()
    subject, data = "deliberations.default.d1.accepted", encode(accepted("d1"))
    first = await journal.client.request(subject, data, timeout=2, headers=FIRST_WRITE)
    again = await journal.client.request(subject, data, timeout=2, headers=FIRST_WRITE)
    assert "error" not in json.loads(first.data)
    assert json.loads(again.data)["error"]["err_code"] == 10_071
    assert (await journal.append("default", accepted("d1"))).created
