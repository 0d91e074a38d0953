"""A journal with a log key accepts signed records alone: stored or live, whatever else stands on their subjects."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nats.aio.client import Client

from app.deliberation.errors import InvalidRequest
from app.deliberation.facts import CancelRequested, Completed, Deleted, encode
from app.deliberation.ports import Appended, Record
from app.log.journal import JetStreamJournal
from app.log.signature import SIGNATURE_HEADER, LogSigner
from tests.conditions import until
from tests.conftest import LOG_KEY, NatsServer
from tests.contracts.journal_facts import accepted, delta, every
from tests.story import NOW

FORGED_HEADERS: dict[str, dict[str, str]] = {
    "none": {},
    "empty": {SIGNATURE_HEADER: ""},
    "another key": LogSigner(["k" * 40]).headers("deliberations.default.x.end", b"{}"),
    "status 404": {"Status": "404"},
    "status 204": {"Status": "204", "Nats-Num-Pending": "0"},
    "another subject": {"Nats-Subject": "deliberations.default.other.end", "Nats-Sequence": "1"},
    "no number": {"Nats-Sequence": "many"},
}


@pytest.fixture(scope="session")
def stranger(jetstream_journal: JetStreamJournal) -> Client:
    return jetstream_journal.client


async def forge(stranger: Client, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
    """Store a record on a subject, as every client with write access to NATS can."""
    await stranger.request(subject, data, headers=headers or {}, timeout=5)


def stem(fresh_id: str) -> str:
    return f"deliberations.default.{fresh_id}"


@pytest.mark.parametrize("headers", FORGED_HEADERS.values(), ids=FORGED_HEADERS)
async def test_a_forged_second_write_hides_and_changes_nothing(
    signed_journal: JetStreamJournal, stranger: Client, fresh_id: str, headers: dict[str, str]
) -> None:
    honest = (await signed_journal.append("default", Completed(deliberation_id=fresh_id, ts=NOW))).record
    for _ in range(20):
        await forge(stranger, honest.subject, b"{}", headers)
    later = (await signed_journal.append("default", CancelRequested(deliberation_id=fresh_id, ts=NOW))).record
    assert await signed_journal.facts("default", fresh_id) == [honest, later]
    assert await every(signed_journal, f"{stem(fresh_id)}.>") == [honest, later]
    assert await every(signed_journal, f"{stem(fresh_id)}.>", limit=2) == [honest, later]
    assert await every(signed_journal, f"{stem(fresh_id)}.>", after=honest.sequence, limit=1) == [later]
    again = await signed_journal.append("default", Completed(deliberation_id=fresh_id, ts=NOW))
    assert again == Appended(honest, created=True)


@pytest.mark.parametrize("headers", FORGED_HEADERS.values(), ids=FORGED_HEADERS)
async def test_a_forged_first_write_does_not_occupy_its_subject(
    signed_journal: JetStreamJournal, stranger: Client, fresh_id: str, headers: dict[str, str]
) -> None:
    for _ in range(20):
        await forge(stranger, f"{stem(fresh_id)}.end", b"{}", headers)
    assert await signed_journal.facts("default", fresh_id) == []
    end = Completed(deliberation_id=fresh_id, ts=NOW)
    first = await signed_journal.append("default", end)
    second = await signed_journal.append("default", Completed(deliberation_id=fresh_id, ts=datetime.now(UTC)))
    assert first.created and not second.created and second.record == first.record
    assert await signed_journal.facts("default", fresh_id) == [first.record]
    assert await every(signed_journal, f"{stem(fresh_id)}.end") == [first.record]


@pytest.mark.parametrize("tail", ["accepted", "end", "deleted", "cancel"])
async def test_an_acceptance_is_written_beside_forged_facts_and_never_beside_honest_ones(
    signed_journal: JetStreamJournal, stranger: Client, fresh_id: str, tail: str
) -> None:
    await forge(stranger, f"{stem(fresh_id)}.{tail}", b"{}")
    written = await signed_journal.append("default", accepted(fresh_id))
    assert written.created and await signed_journal.facts("default", fresh_id) == [written.record]
    other = f"{fresh_id}-deleted"
    tombstone = (await signed_journal.append("default", Deleted(deliberation_id=other, ts=NOW))).record
    await forge(stranger, f"{stem(other)}.{tail}", b"{}")
    assert await signed_journal.append("default", accepted(other)) == Appended(tombstone, created=False)


async def test_of_fifty_writers_over_a_forged_record_one_creates(
    signed_journal: JetStreamJournal, stranger: Client, fresh_id: str
) -> None:
    await forge(stranger, f"{stem(fresh_id)}.end", b"{}")
    ends = [Completed(deliberation_id=fresh_id, ts=datetime.fromtimestamp(racer, UTC)) for racer in range(50)]
    outcomes = await asyncio.gather(*(signed_journal.append("default", end) for end in ends))
    assert sum(outcome.created for outcome in outcomes) == 1
    assert len({outcome.record for outcome in outcomes}) == 1


@pytest.mark.parametrize("elsewhere", ["deliberations.other.{id}.end", "deliberations.default.{id}-2.end"])
async def test_a_signature_is_valid_on_its_own_subject_alone(
    signed_journal: JetStreamJournal, stranger: Client, fresh_id: str, elsewhere: str
) -> None:
    end = Completed(deliberation_id=fresh_id, ts=NOW)
    signature = signed_journal.signer.headers(f"{stem(fresh_id)}.end", encode(end))
    subject = elsewhere.format(id=fresh_id)
    heard: list[Record] = []
    subscription = await signed_journal.subscribe([subject], heard.append)
    await forge(stranger, subject, encode(end), signature)
    assert await every(signed_journal, subject) == []
    await forge(stranger, f"{stem(fresh_id)}.end", encode(end), signature)
    await until(lambda: True)
    assert len(await every(signed_journal, f"{stem(fresh_id)}.end")) == 1, "a repetition is the same record"
    await subscription.close()
    assert heard == []


@pytest.mark.parametrize("headers", FORGED_HEADERS.values(), ids=FORGED_HEADERS)
async def test_of_live_records_only_signed_ones_are_delivered(
    signed_journal: JetStreamJournal, stranger: Client, fresh_id: str, headers: dict[str, str]
) -> None:
    heard: list[Record] = []
    subscription = await signed_journal.subscribe([f"{stem(fresh_id)}.>"], heard.append)
    before = signed_journal.signer.refusals.count
    await stranger.publish(f"live.{stem(fresh_id)}.end", b"{}", headers={"Nats-Sequence": "9", **headers})
    await forge(stranger, f"{stem(fresh_id)}.cancel", b"{}", headers)
    await signed_journal.publish_view("default", delta(fresh_id, 0, "x"))
    end = (await signed_journal.append("default", Completed(deliberation_id=fresh_id, ts=NOW))).record
    await until(lambda: len(heard) == 2)
    assert heard[-1] == end and heard[0].tokens[3] == "call"
    assert signed_journal.signer.refusals.count >= before + 2
    await subscription.close()


async def test_a_page_of_forged_records_does_not_end_a_read(
    signed_journal: JetStreamJournal, stranger: Client, fresh_id: str
) -> None:
    for _ in range(100):
        await stranger.publish(f"{stem(fresh_id)}.call.x.delta", b"{}")
    end = (await signed_journal.append("default", Completed(deliberation_id=fresh_id, ts=NOW))).record
    assert await every(signed_journal, f"{stem(fresh_id)}.>", limit=1) == [end]
    assert await every(signed_journal, f"{stem(fresh_id)}.>") == [end]


async def test_forged_facts_on_more_subjects_than_one_batch_allows_hide_nothing(
    signed_journal: JetStreamJournal, stranger: Client, fresh_id: str
) -> None:
    written = (await signed_journal.append("default", accepted(fresh_id))).record
    for number in range(1_100):
        await stranger.publish(f"{stem(fresh_id)}.call.{number}.finished", b"{}")
    await forge(stranger, written.subject, b"{}")
    assert await signed_journal.facts("default", fresh_id) == [written]


async def test_a_purge_removes_forged_records_too(
    signed_journal: JetStreamJournal, jetstream_journal: JetStreamJournal, stranger: Client, fresh_id: str
) -> None:
    await signed_journal.append("default", accepted(fresh_id))
    await forge(stranger, f"{stem(fresh_id)}.end", b"{}")
    tombstone = (await signed_journal.append("default", Deleted(deliberation_id=fresh_id, ts=NOW))).record
    await signed_journal.purge("default", fresh_id)
    assert await every(jetstream_journal, f"{stem(fresh_id)}.>") == [tombstone]


async def test_during_a_rotation_each_key_verifies_and_the_first_signs(nats_server: NatsServer, fresh_id: str) -> None:
    newer = "a newer key, which is long enough as well"
    rotating, old, new = LogSigner([newer, LOG_KEY]), LogSigner([LOG_KEY]), LogSigner([newer])
    subject = f"{stem(fresh_id)}.end"
    assert all(rotating.is_authentic(subject, b"x", each.headers(subject, b"x")) for each in (rotating, old, new))
    assert rotating.headers(subject, b"x") == new.headers(subject, b"x")
    assert not new.is_authentic(subject, b"x", old.headers(subject, b"x"))


@pytest.mark.parametrize(
    ("content", "fault"), [(None, "FileNotFoundError"), (b"", "32"), (b"short", "32"), (b"\xff", "U")]
)
def test_an_unusable_key_file_is_refused_without_its_content(tmp_path: Path, content: bytes | None, fault: str) -> None:
    path = tmp_path / "log_key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=f"LOG_KEY_FILE.*{fault}") as caught:
        LogSigner.of_file(path)
    assert "short" not in str(caught.value)
