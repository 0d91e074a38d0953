"""Waiting for conditions instead of sleeping, and holding reads back."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from nats.aio.client import Client

from app.deliberation.ports import Record
from app.log.journal import JetStreamJournal
from tests.fakes import InMemoryJournal


async def until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    """Return as soon as `condition` holds; fail after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def server_has_read(client: Client) -> None:
    """Return once the server has read what the client sent.

    The client sends the first ping before the commands that wait in its buffer, and the second after them.
    """
    await client.flush()
    await client.flush()


async def until_empty(journal: JetStreamJournal, stream: str, consumer: str, timeout_s: float = 30) -> None:
    """Return once the consumer has neither undelivered nor unacknowledged items.

    The server counts a stored item as pending a moment after it acknowledged the item to its writer.
    """
    async with asyncio.timeout(timeout_s):
        while True:
            found = await journal.request(f"$JS.API.CONSUMER.INFO.{stream}.{consumer}")
            if not found["num_pending"] and not found["num_ack_pending"]:
                config = found["config"]
                filters = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
                if found["ack_floor"]["stream_seq"] >= max([await _last(journal, stream, each) for each in filters]):
                    return
            await asyncio.sleep(0.02)


async def _last(journal: JetStreamJournal, stream: str, subject: str) -> int:
    query = json.dumps({"last_by_subj": subject}).encode()
    reply = await journal.request(f"$JS.API.STREAM.MSG.GET.{stream}", query)
    return 0 if "error" in reply else reply["message"]["seq"]


def held_back(journal: InMemoryJournal) -> asyncio.Event:
    """Have every read from the log's beginning wait until the event that this returns is set."""
    read, going_on = journal.read, asyncio.Event()

    async def waiting(pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        if after == 0:
            await going_on.wait()
        async for record in read(pattern, after, limit=limit):
            yield record

    journal.read = waiting
    return going_on
