"""Projectors copy what the log holds, whatever is killed meanwhile."""

import asyncio
import random
import signal
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from app.archive.database.store import Archived, Store
from app.catalog.entries import Entry, ListFilter
from app.deliberation.errors import Gone
from app.deliberation.facts import CancelRequested, Deleted, encode
from app.deliberation.fold import state_of
from app.deliberation.ports import Record
from app.log.journal import JetStreamJournal
from app.log.stream_settings import ARCHIVE_CONSUMER, StreamSettings
from app.log.streams import apply
from app.log.work_queue import QueueItem, WorkQueue
from tests.conditions import until
from tests.conftest import NatsServer
from tests.integration.archive.projecting import append, projecting, read, rest, stories, tell, until_copied
from tests.story import NOW, Story


async def until_read(store: Store, deliberation_id: str) -> None:
    async with asyncio.timeout(20):
        while not isinstance(await read(store, deliberation_id), Archived):
            await asyncio.sleep(0.01)


async def test_what_is_copied_equals_the_log(journal: JetStreamJournal, store: Store) -> None:
    ended, running = stories(30), Story("running")
    async with projecting(journal, store) as projector:
        await asyncio.gather(*(tell(journal, story) for story in ended))
        await journal.append("acme", running.accepted())
        await until_copied(journal)

    epoch = (await journal.state()).epoch
    for story in ended:
        assert await read(store, story.id) == Archived(epoch, await journal.facts("acme", story.id))
    assert await read(store, running.id) is None
    assert projector.counts["skipped"] == 0


@pytest.mark.parametrize("ended", [False, True])
async def test_a_deliberation_with_a_label_is_copied_as_others_are(
    journal: JetStreamJournal, store: Store, ended: bool
) -> None:
    story = Story("labelled")
    async with projecting(journal, store):
        await append(journal, [story.accepted(cluster="eu")])
        await until_status(store, "pending")
        await append(journal, rest(story) if ended else [story.opened()])
        await until_status(store, "completed" if ended else "in_progress")
    if ended:
        found = await read(store, story.id)
        assert isinstance(found, Archived) and found.records == await journal.facts("acme", story.id)


async def test_outcomes_after_the_end_are_copied_too(
    journal: JetStreamJournal, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.archive.projector.LATE_S", 0.5)
    story = Story("late")
    early, late = story.agents
    async with projecting(journal, store) as projector:
        for fact in (story.accepted(), story.opened(), story.finished(early), story.completed()):
            await journal.append("acme", fact)
        await until_read(store, story.id)
        await journal.append("acme", story.finished(late))
        await until_copied(journal)

    found = await read(store, story.id)
    assert isinstance(found, Archived) and found.records == await journal.facts("acme", story.id)
    assert projector.failure == ""


async def until_status(store: Store, status: str | None) -> None:
    async with asyncio.timeout(20):
        while [entry.status for _, entry in (await store.page("acme", ListFilter(), limit=2))[0]] != [status]:
            await asyncio.sleep(0.01)


async def test_each_change_of_a_status_is_copied(journal: JetStreamJournal, store: Store) -> None:
    story = Story("running")
    async with projecting(journal, store):
        await journal.append("acme", story.accepted())
        await until_status(store, "pending")
        await journal.append("acme", story.opened())
        await until_status(store, "in_progress")
        await journal.append("acme", CancelRequested(deliberation_id=story.id, ts=datetime.now(UTC)))
        await until_status(store, "cancelling")
        await append(journal, rest(story)[1:])
        await until_status(store, "completed")


async def test_the_stage_of_what_runs_is_copied_also_if_two_open_at_once(
    journal: JetStreamJournal, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, new = Story("known"), Story("new")
    async with projecting(journal, store) as projector:
        await journal.append("acme", known.accepted())
        await until_status(store, "pending")
        monkeypatch.setattr("app.archive.projector.FETCH_EVERY_S", 3.0)
        for story in (known, new):
            begun = [story.accepted()] if story is new else []
            await append(journal, [*begun, *rest(story)[:-1], story.opened(2)])

        async def entries() -> list[Entry]:
            return [entry for _, entry in (await store.page("acme", ListFilter(), limit=2))[0]]

        async with asyncio.timeout(20):
            while [entry.progress and entry.progress.stage for entry in await entries()] != [2, 2]:
                await asyncio.sleep(0.01)
        assert {(entry.status, entry.started_at) for entry in await entries()} == {("in_progress", NOW)}
        assert projector.counts["skipped"] == 0
        await append(journal, [story.completed() for story in (known, new)])
        async with asyncio.timeout(20):
            while {entry.progress for entry in await entries()} != {None}:
                await asyncio.sleep(0.01)


async def test_openings_while_no_projector_runs_or_its_connection_is_lost_are_copied(
    journal: JetStreamJournal, store: Store, own_nats_server: NatsServer
) -> None:
    first, second = Story("first"), Story("second")
    async with projecting(journal, store):
        await append(journal, [first.accepted(), second.accepted()])
        await until_copied(journal)
    await journal.append("acme", first.opened())

    async def statuses() -> set[str]:
        return {entry.status for _, entry in (await store.page("acme", ListFilter(), limit=2))[0]}

    async with projecting(journal, store):
        async with asyncio.timeout(20):
            while await statuses() != {"in_progress", "pending"}:
                await asyncio.sleep(0.01)
        own_nats_server.kill()
        own_nats_server.start()
        other = await JetStreamJournal.connect(own_nats_server.url)
        await other.append("acme", second.opened())
        await other.close()
        async with asyncio.timeout(20):
            while await statuses() != {"in_progress"}:
                await asyncio.sleep(0.01)


async def test_the_archive_notes_how_far_the_log_is_copied(journal: JetStreamJournal, store: Store) -> None:
    await tell(journal, Story("before"))
    async with projecting(journal, store):
        await until_copied(journal)
        end = await journal.state()
        async with asyncio.timeout(20):
            while (copied := await store.copied()) is None or copied.sequence < end.last_sequence:
                await asyncio.sleep(0.01)
        async with asyncio.timeout(20):
            while (later := await store.copied()) is None or later.at == copied.at:
                await asyncio.sleep(0.01)

    assert copied.epoch == end.epoch


async def test_an_item_that_a_killed_projector_had_taken_is_not_counted_as_copied(
    journal: JetStreamJournal, store: Store
) -> None:
    taken = list[QueueItem]()
    killed = WorkQueue(journal, 1, taken.append, consumer=ARCHIVE_CONSUMER, standing=False)
    await killed.start()
    for story in stories(3):
        await tell(journal, story)
    await killed.fetch()
    async with projecting(journal, store):
        await until_read(store, stories(3)[2].id)
        await asyncio.sleep(1.0)
        before = await store.copied()
        await killed.ack(taken[0])
        async with asyncio.timeout(20):
            while await store.copied() is None:
                await asyncio.sleep(0.01)

    assert before is None


async def test_facts_that_left_the_log_first_are_skipped(journal: JetStreamJournal, store: Store) -> None:
    await tell(journal, Story("lost"))
    await journal.request("$JS.API.STREAM.PURGE.DELIBERATIONS", b'{"filter":"deliberations.acme.lost.accepted"}')
    async with projecting(journal, store) as projector:
        await tell(journal, Story("kept"))
        await until_copied(journal)

    assert isinstance(await read(store, "kept"), Archived)
    assert await read(store, "lost") is None and projector.counts["skipped"] > 0


async def test_facts_that_cannot_be_read_are_skipped(journal: JetStreamJournal, store: Store) -> None:
    await journal.write("deliberations.ACME.x.end", b"{}")
    await journal.write("deliberations.acme.damaged.deleted", b"{}")
    async with projecting(journal, store) as projector:
        await tell(journal, Story("kept"))
        await until_copied(journal)

    assert isinstance(await read(store, "kept"), Archived) and projector.counts["skipped"] == 2


async def test_facts_of_a_later_version_wait_for_a_projector_that_reads_them(
    journal: JetStreamJournal, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.archive.projector.UNREADABLE_S", 0.1)
    story = Story("later")
    await journal.append("acme", story.accepted())
    later = encode(story.opened()).replace(b'"purpose":"propose"', b'"purpose":"rehearse"')
    await journal.write("deliberations.acme.later.stage.1.opened", later)
    await append(journal, [story.completed()])
    async with projecting(journal, store) as projector:
        await until(lambda: projector.counts["skipped"] > 2)
        assert await read(store, "later") is None
        monkeypatch.setattr("app.archive.projected.state_of", lambda _: state_of(map(as_known, records)))
        records = await journal.facts("acme", "later")
        await until_copied(journal)
    assert isinstance(await read(store, "later"), Archived)


def as_known(record: Record) -> Record:
    return replace(record, data=record.data.replace(b'"rehearse"', b'"propose"'))


async def test_a_batch_of_large_facts_is_cut_and_its_rest_is_copied_too(
    journal: JetStreamJournal, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.archive.projector.BATCH_BYTES_MAX", 1)
    monkeypatch.setattr("app.archive.projector.READ_AT_ONCE", 2)
    ended = stories(7)
    for story in ended:
        await tell(journal, story)
    async with projecting(journal, store) as projector:
        await until_copied(journal)

    assert all([isinstance(await read(store, story.id), Archived) for story in ended])
    assert projector.counts["written"] == len(ended)


async def test_kills_of_two_projectors_lose_and_repeat_nothing(
    journal: JetStreamJournal, store: Store, database_url: str, own_nats_server: NatsServer
) -> None:
    """Two processes copy 500 deliberations, every tenth of them deleted, while one after the other is killed."""
    told = stories(500)
    environment = {
        "NATS_URL": own_nats_server.url,
        "DATABASE_URL": database_url,
        "ARCHIVE_PORT": "0",
        "ARCHIVE_RETENTION": "315360000",
        "PATH": "",
    }
    draw = random.Random(7)

    async def start() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "app.archive", env=environment,
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip

    processes = [await start(), await start()]
    try:
        for begin in range(0, len(told), 50):
            part = told[begin : begin + 50]
            await asyncio.gather(*(tell(journal, story) for story in part))
            for story in part[::10]:
                await journal.append("acme", Deleted(deliberation_id=story.id, ts=datetime.now(UTC)))
                await journal.purge("acme", story.id)
            # Both may be at work on the rest of this part.
            await until_read(store, part[1].id)
            place = draw.randrange(2)
            processes[place].send_signal(signal.SIGKILL)
            await processes[place].wait()
            processes[place] = await start()
        await until_copied(journal, 90)
    finally:
        for process in processes:
            process.kill()
            await process.wait()

    found = {story.id: await read(store, story.id) for story in told}
    epoch = (await journal.state()).epoch
    for place, story in enumerate(told):
        if place % 10 == 0:
            assert isinstance(found[story.id], Gone)
        else:
            assert found[story.id] == Archived(epoch, await journal.facts("acme", story.id))


async def test_what_is_held_of_a_replaced_log_is_dropped(
    journal: JetStreamJournal, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new log has other deliberations at the places of those that wait to be written."""
    put, free = store.put, asyncio.Event()

    async def put_later(*given: Any, **named: Any) -> None:
        await free.wait()
        await put(*given, **named)

    lost, new = Story("lost"), Story("new")
    async with projecting(journal, store) as projector:
        await tell(journal, Story("before"))
        await until_copied(journal)
        monkeypatch.setattr(store, "put", put_later)
        for story in (lost, Story("lost-too")):
            await journal.append("acme", story.accepted())
        await until(lambda: len(projector._writing) == 2)  # pyright: ignore[reportPrivateUsage]
        await journal.request("$JS.API.STREAM.DELETE.DELIBERATIONS")
        await apply(journal, StreamSettings())
        free.set()
        for _ in range(2):
            # Items that were delivered before the change was noticed come again.
            await tell(journal, new)
        await until_copied(journal, 60)

    found = await read(store, new.id)
    assert found == Archived((await journal.state()).epoch, await journal.facts("acme", new.id))
    assert not isinstance(await read(store, lost.id), Archived)
    assert not projector._waiting and not projector._writing  # pyright: ignore[reportPrivateUsage]


async def test_a_deliberation_is_copied_from_a_second_log_too(journal: JetStreamJournal, store: Store) -> None:
    """Its facts have lower places there than those that were copied from the first log."""
    story = Story("again")
    async with projecting(journal, store):
        for each in (*stories(2), story):
            await tell(journal, each)
        await until_copied(journal)
        first = await read(store, story.id)
        await journal.request("$JS.API.STREAM.DELETE.DELIBERATIONS")
        await apply(journal, StreamSettings())
        await tell(journal, story)
        await until_copied(journal, 60)

    found = await read(store, story.id)
    assert isinstance(first, Archived) and isinstance(found, Archived)
    assert found == Archived((await journal.state()).epoch, await journal.facts("acme", story.id))
    assert found.records[-1].sequence < first.records[-1].sequence
