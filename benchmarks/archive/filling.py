"""Fills a log with deliberations, whose words are as rare as those of a natural text, and copies them."""

import asyncio
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import accumulate, chain, islice, zip_longest

from sqlalchemy import func, insert, literal, select

from app.archive.database.connection import Database
from app.archive.database.store import Store
from app.archive.database.tables import deliberations, labels, position, texts
from app.archive.projector import Projector
from app.catalog.index import RECENT_SEQUENCES
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Event, encode, prefix, suffix
from app.log.journal import JetStreamJournal
from app.log.stream_settings import ARCHIVE_CONSUMER, STREAM
from tests.story import NOW, Story

KEPT_S = 10**9
# The log that copies of rows belong to.
EARLIER = "00000000"
WORDS = [f"word{rank}" for rank in range(1, 20_001)]
_WEIGHTS = list(accumulate(1 / rank for rank in range(1, len(WORDS) + 1)))
# So many deliberations run at once: their facts alternate in the log.
_AT_ONCE = 100
# So many are written before they are copied, and those before them removed from the log.
_PART = 10_000

Told = Sequence[tuple[str, bytes]]
"""The facts of a deliberation, each with its subject."""


def answer(draw: random.Random, words: int) -> str:
    """Returns an answer with this number of words."""
    text = " ".join(draw.choices(WORDS, cum_weights=_WEIGHTS, k=words))
    return json.dumps({"reasoning": "r", "answer": text, "confidence": 50})


def _told(tenant: str, story: Story, events: Iterable[Event]) -> Told:
    stem = prefix(tenant, story.id)
    return [(f"{stem}.{suffix(event)}", encode(event)) for event in events]


def councils(count: int, tenant: str = "t") -> Iterator[Told]:
    """Deliberations of three agents and three stages, with nine answers of 120 words."""
    draw = random.Random(7)
    for number in range(count):
        story = Story(f"{number:026d}", 3)
        events: list[Event] = [story.accepted()]
        for stage in (1, 2, 3):
            answers = [story.finished(agent, answer(draw, 120), stage=stage) for agent in story.agents]
            events += [story.opened(stage), *answers, story.closed(stage)]
        yield _told(tenant, story, (*events, story.completed()))


def answers(count: int, tenant: str = "default") -> Iterator[Told]:
    """Deliberations of one agent with an answer of 40 words, a second apart.

    Each has a metadata `team`, one of twenty, and an `order` of its own.
    """
    draw, story = random.Random(8), Story("identifier", 1)
    accepted = story.accepted()
    labelled = accepted.specification.model_copy(update={"metadata": {"team": "TEAM", "order": "ORDER"}})
    finished = story.finished(story.agents[0], "ANSWER")
    events = (accepted.model_copy(update={"specification": labelled}), story.opened(), finished, story.closed())
    # Filled in as text: models would take longer than what is measured.
    template = _told(tenant, story, (*events, story.completed()))
    then = NOW.isoformat().replace("+00:00", "").encode()
    for number in range(count):
        at = (NOW + timedelta(seconds=number)).isoformat().replace("+00:00", "").encode()
        filled = [
            (b"identifier", b"r%025d" % number),
            (b"TEAM", b"t%d" % (number % 20)),
            (b"ORDER", b"%d" % number),
            (b'"ANSWER"', json.dumps(answer(draw, 40)).encode()),
            (then, at),
        ]
        told = list[tuple[str, bytes]]()
        for subject, data in template:
            for placeholder, value in filled:
                data = data.replace(placeholder, value)
            told.append((subject.replace("identifier", filled[0][1].decode()), data))
        yield told


def _parts(all_told: Iterable[Told], size: int) -> Iterator[list[Told]]:
    left = iter(all_told)
    while part := list(islice(left, size)):
        yield part


async def fill(journal: JetStreamJournal, all_told: Iterable[Told]) -> int:
    """Write deliberations into the log, _AT_ONCE of them at once; returns the number of facts."""
    before = (await journal.state()).last_sequence
    written = before
    for part in _parts(all_told, _AT_ONCE):
        for fact in filter(None, chain.from_iterable(zip_longest(*part))):
            await journal.client.publish(*fact)
            written += 1
        await journal.client.flush()
        # The server drops what it cannot queue.
        while (await journal.state()).last_sequence < written:  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.005)
    return written - before


async def until_copied(journal: JetStreamJournal) -> None:
    """Wait until the archive's queue is empty."""
    while True:
        with suppress(JournalUnavailable):
            found = await journal.request(f"$JS.API.CONSUMER.INFO.{STREAM}.{ARCHIVE_CONSUMER}")
            if not found["num_pending"] and not found["num_ack_pending"]:
                return
        await asyncio.sleep(0.02)


async def archive(journal: JetStreamJournal, store: Store, all_told: Iterable[Told]) -> None:
    """Have a projector copy deliberations through the log, which keeps the last of them only."""
    copying = asyncio.create_task(Projector(journal, store, retention_s=KEPT_S).run())
    for number, part in enumerate(_parts(all_told, _PART), 1):
        await journal.request(f"$JS.API.STREAM.PURGE.{STREAM}")
        await fill(journal, part)
        await until_copied(journal)
        print(f"archived {number * _PART:9,}", end="\r", flush=True)
    # A gateway reads so many records at its start when nothing runs.
    await journal.request(f"$JS.API.STREAM.PURGE.{STREAM}", json.dumps({"keep": RECENT_SEQUENCES}).encode())
    copying.cancel()
    await asyncio.gather(copying, return_exceptions=True)


async def multiply(database: Database, copies: int) -> None:
    """Copy each row of `answers` so many times into an earlier log, with places and times before those of the row.

    The archive has met EARLIER, and the logs of all other rows, before the log that these come from.
    """
    row = deliberations.c
    own = row.tenant == "default"
    async with database.begin() as connection:
        count = (await connection.execute(select(func.count()).where(own))).scalar_one()
        found = select(
            func.min(row.accepted), func.max(row.version), func.min(row.created_us), func.max(row.created_us)
        )
        first, last, oldest, newest = (await connection.execute(found.where(own))).one()
    for number in range(1, copies + 1):
        # The first copies are the newest ones.
        shift = position(1, (copies - number) * (last - first + 1)) - first + 1
        moved = {
            "id": row.id + f"-{number}",
            "version": row.version + shift,
            "accepted": row.accepted + shift,
            "created_us": row.created_us - number * (newest - oldest + 1),
            "started_us": row.started_us - number * (newest - oldest + 1),
            "ended_us": row.ended_us - number * (newest - oldest + 1),
            "log": literal(1),
        }
        columns = [moved.get(each.name, each) for each in row]
        of_rows = own & (row.accepted >= first), labels.c.accepted >= first, texts.c.rowid >= first
        chosen = (
            (deliberations, select(*columns)),
            (labels, select(labels.c.label, labels.c.accepted + shift)),
            (texts, select(texts.c.rowid + shift, texts.c.words)),
        )
        async with database.begin() as connection:
            for (table, copied), which in zip(chosen, of_rows, strict=True):
                await connection.execute(insert(table).from_select(list(table.c), copied.where(which)))
        print(f"multiplied to {count * (number + 1):9,}", flush=True)
