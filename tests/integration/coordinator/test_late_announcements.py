"""Announcements whose id the server has forgotten, and their deletion, over a real nats-server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from app.deliberation.announcements import Announcement, announcement
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Completed, Deleted
from app.lifecycle.deliberations import sweep_once
from app.log.announced_ends import CLOCKS_APART, PUBLISHED_WITHIN, REMEMBERED_FOR, STOPPED_FOR
from app.log.direct_get import Batch
from app.log.journal import JetStreamJournal
from app.log.signature import LogSigner
from app.log.stream_settings import DUPLICATE_WINDOW_S
from tests.conftest import LOG_KEY, NatsServer
from tests.integration.coordinator.announcements import raw

SUBJECT = "orchestration.deliberation.completed"
CANARY = "canary-of-the-task"
# An announcement without a look-up is too late, and one may have been stored that the server has forgotten.
LATE_S = 300.0
LONG_AGO_S = 3_600.0


def ended(id: str, ago_s: float = LATE_S, tenant: str = "acme") -> Announcement:
    end = Completed(deliberation_id=id, ts=datetime.now(UTC) - timedelta(seconds=ago_s))
    return announcement(tenant, end, None).model_copy(update={"task": CANARY})


async def store_forgotten(journal: JetStreamJournal, *announcements: Announcement) -> None:
    """Store announcements as the stream holds them once the server has forgotten their ids."""
    for announced in announcements:
        await journal.request(SUBJECT, announced.model_dump_json().encode())


async def stored(journal: JetStreamJournal, subjects: str = "orchestration.deliberation.*") -> list[str]:
    """The ids of the stored announcements, and the subjects of other messages, in order."""
    ids, sequence = list[str](), 0
    while True:
        query = json.dumps({"seq": sequence + 1, "next_by_subj": subjects}).encode()
        reply = await journal.request("$JS.API.STREAM.MSG.GET.ORCHESTRATOR_EVENTS", query)
        if "error" in reply:
            return ids
        sequence = reply["message"]["seq"]
        subject = reply["message"]["subject"]
        announced = (await raw(journal, "ORCHESTRATOR_EVENTS", subject, sequence))[0] if subject == SUBJECT else {}
        ids.append(announced.get("deliberation_id", subject))


@pytest.fixture
async def signed(own_nats_server: NatsServer, journal: JetStreamJournal) -> AsyncIterator[JetStreamJournal]:
    """A journal that accepts no record without a signature; announcements bear none."""
    journal = await JetStreamJournal.connect(own_nats_server.url, signer=LogSigner([LOG_KEY]))
    yield journal
    await journal.close()


def test_a_publish_under_way_may_take_as_long_as_a_stopped_process_keeps_its_connection() -> None:
    assert (PUBLISHED_WITHIN + CLOCKS_APART + STOPPED_FOR).total_seconds() < DUPLICATE_WINDOW_S
    assert PUBLISHED_WITHIN.total_seconds() < LATE_S < (PUBLISHED_WITHIN + STOPPED_FOR).total_seconds()
    assert (REMEMBERED_FOR + CLOCKS_APART).total_seconds() < DUPLICATE_WINDOW_S


async def test_a_late_announcement_is_stored_once(signed: JetStreamJournal) -> None:
    others = [ended(f"other{number}") for number in range(100)]
    await store_forgotten(signed, *others[:70], ended("told"), *others[70:])
    for announced in (ended("told"), ended("new"), ended("new"), ended("other3")):
        await signed.announce(announced)
    await signed.announce(ended("new", LONG_AGO_S))
    # The same id of another tenant is another deliberation.
    await signed.announce(ended("told", tenant="rival"))
    ids = await stored(signed)
    assert ids[101:] == ["new", "told"] and len(ids) == 103


async def test_a_young_announcement_is_dropped_without_a_look(journal: JetStreamJournal) -> None:
    for _ in range(2):
        await journal.announce(ended("d1", ago_s=0))
    await journal.announce(ended("d1"))
    assert await stored(journal) == ["d1"]


async def test_of_many_late_coordinators_one_announces(journal: JetStreamJournal) -> None:
    await asyncio.gather(*(journal.announce(ended(f"d{number % 4}")) for number in range(40)))
    assert sorted(await stored(journal)) == ["d0", "d1", "d2", "d3"]


async def test_a_look_that_is_out_of_date_stores_nothing(
    journal: JetStreamJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator stood still after its look, until another one's announcement was stored and its id forgotten."""
    ends = journal._ends  # pyright: ignore[reportPrivateUsage]
    search = ends._search  # pyright: ignore[reportPrivateUsage]
    looks = list[int | None]()

    async def stand_still(*bounds: object) -> int | None:
        looks.append(await search(*bounds))  # pyright: ignore[reportArgumentType]
        if len(looks) == 1:
            await store_forgotten(journal, ended("d1"))
        return looks[-1]

    monkeypatch.setattr(ends, "_search", stand_still)
    await journal.announce(ended("d1"))
    assert await stored(journal) == ["d1"] and [*filter(None, looks)] == [2]


async def test_a_look_that_lags_stores_nothing(journal: JetStreamJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any server of three answers reads, also one that is behind the leader."""
    await store_forgotten(journal, ended("d1"))
    reads = journal._reads  # pyright: ignore[reportPrivateUsage]

    async def behind(*_: object, **__: object) -> Batch:
        return Batch()

    monkeypatch.setattr(reads, "get", behind)
    with pytest.raises(JournalUnavailable, match="lag"):
        await journal.announce(ended("d1"))
    assert await stored(journal) == ["d1"]


@pytest.mark.parametrize("newer", [False, True])
async def test_a_look_whose_last_message_is_erased_meanwhile_is_complete(
    journal: JetStreamJournal, monkeypatch: pytest.MonkeyPatch, newer: bool
) -> None:
    ends = journal._ends  # pyright: ignore[reportPrivateUsage]
    bounds_of = ends._published_in_time  # pyright: ignore[reportPrivateUsage]

    async def erase_last(subject: str, ended_at: datetime) -> tuple[int, int]:
        bounds = await bounds_of(subject, ended_at)
        await journal.erase("ORCHESTRATOR_EVENTS", bounds[1])
        if newer:
            await store_forgotten(journal, ended("newer"))
        return bounds

    await store_forgotten(journal, ended("d1"), ended("d2"), ended("d3"))
    monkeypatch.setattr(ends, "_published_in_time", erase_last)
    await journal.erase_announcement("acme", "another", ended("another").ts)
    assert await stored(journal) == ["d1", "d2", *["newer"] * newer]


async def test_messages_of_others_on_the_subject_are_passed_over(journal: JetStreamJournal) -> None:
    for data in (b'"d1"', b'{"deliberation_id": "d1"}', b'["d1"' + b"[" * 10_000, b'\xff"d1"', b""):
        await journal.request(SUBJECT, data)
    announced = ended("d1")
    await journal.announce(announced)
    assert (await raw(journal, "ORCHESTRATOR_EVENTS", SUBJECT))[0]["deliberation_id"] == "d1"
    await journal.erase_announcement("acme", "d1", announced.ts)
    assert (await journal.request("$JS.API.STREAM.INFO.ORCHESTRATOR_EVENTS"))["state"]["messages"] == 5


async def test_a_late_announcement_is_found_behind_its_mark(journal: JetStreamJournal) -> None:
    """Beyond the minutes after an end nothing but the mark says where its announcement is."""
    await store_forgotten(journal, *(ended(f"other{number}", LONG_AGO_S) for number in range(3)))
    await journal._ends.mark_late("acme", "d1")  # pyright: ignore[reportPrivateUsage]
    announced = ended("d1", LONG_AGO_S)
    await store_forgotten(journal, announced, ended("other3", LONG_AGO_S))
    await journal.announce(announced)
    assert await stored(journal) == ["other0", "other1", "other2", "d1", "other3"]
    await journal.erase_announcement("acme", "d1", announced.ts)
    assert await stored(journal, ">") == ["other0", "other1", "other2", "other3"]


async def test_a_look_passes_the_announcements_of_some_minutes(
    journal: JetStreamJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion of what was never announced, or whose announcement has expired, reads no other ones."""
    await store_forgotten(journal, *(ended(f"other{number}") for number in range(3)))
    read = list[object]()

    async def get(*asked: object, **_: object) -> Batch:
        read.append(asked)
        return Batch()

    monkeypatch.setattr(journal._reads, "get", get)  # pyright: ignore[reportPrivateUsage]
    await journal.erase_announcement("acme", "d1", ended("d1", LONG_AGO_S).ts)
    await journal.announce(ended("d2", LONG_AGO_S))
    assert read == [] and (await stored(journal))[3:] == ["d2"]


async def test_nothing_is_announced_after_the_deletion(journal: JetStreamJournal) -> None:
    await journal.append("acme", Deleted(deliberation_id="d1", ts=datetime.now(UTC)))
    await journal.announce(ended("d1"))
    assert await stored(journal) == []


@pytest.mark.parametrize(
    ("ago_s", "forgotten"),
    [(0, False), (LATE_S, False), (LONG_AGO_S, False), (REMEMBERED_FOR.total_seconds(), True)],
)
async def test_a_deletion_erases_the_announcement_and_no_other(
    journal: JetStreamJournal, own_nats_server: NatsServer, ago_s: float, forgotten: bool
) -> None:
    others = [ended(f"other{number}", tenant="rival").model_copy(update={"task": None}) for number in range(100)]
    await store_forgotten(journal, *others)
    announced = ended("gone", ago_s)
    await (store_forgotten(journal, announced) if forgotten else journal.announce(announced))
    for _ in range(2):
        await journal.erase_announcement("acme", "gone", announced.ts)
    await journal.erase_announcement("acme", "other1", announced.ts)
    assert await stored(journal, ">") == [other.deliberation_id for other in others]
    own_nats_server.kill()
    files = [file for file in own_nats_server.store.rglob("*") if file.is_file()]
    assert files and not [file for file in files if CANARY.encode() in file.read_bytes()]


@pytest.mark.parametrize("ago_s", [0, LATE_S, LONG_AGO_S])
async def test_an_announcement_after_the_deletion_is_dropped(journal: JetStreamJournal, ago_s: float) -> None:
    received = list[str]()
    inbox = journal.client.new_inbox()
    config = {"deliver_subject": inbox, "ack_policy": "none", "filter_subject": "orchestration.deliberation.>"}
    body = json.dumps({"stream_name": "ORCHESTRATOR_EVENTS", "config": config}).encode()
    subscription = await journal.client.subscribe(inbox)
    assert "error" not in await journal.request("$JS.API.CONSUMER.CREATE.ORCHESTRATOR_EVENTS", body)
    announced = ended("gone", ago_s)
    await journal.erase_announcement("acme", "gone", announced.ts)
    await journal.announce(announced)
    await journal.purge("acme", "gone")
    await journal.announce(ended("kept", ago_s))
    received.append(json.loads((await subscription.next_msg(timeout=10)).data)["deliberation_id"])
    assert received == ["kept"] == await stored(journal), "consumers of ends get no trace of a deletion"


async def test_a_deletion_is_repeated_after_a_restart_of_the_server(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    """The server forgets the id of what was erased, so that a coordinator may announce; the sweep then erases it."""
    await journal.erase_announcement("acme", "gone", datetime.now(UTC))
    own_nats_server.kill()
    own_nats_server.start()
    async with asyncio.timeout(30):
        while True:
            with suppress(JournalUnavailable):
                await journal.announce(ended("gone", ago_s=0))
                break
    assert await stored(journal) == ["gone"]
    await journal.append("acme", Deleted(deliberation_id="gone", ts=datetime.now(UTC)))
    await sweep_once(journal, 0)
    assert await stored(journal) == []
