"""The journal's contract: one suite against the journal in memory and over a real nats-server."""

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from app.deliberation.errors import InvalidToken
from app.deliberation.facts import (
    CancelRequested,
    Completed,
    Deleted,
    decode,
    event_type,
)
from app.deliberation.ports import Journal, Record
from app.log.stream_settings import CONSUMER
from tests.conditions import until
from tests.contracts.journal_facts import accepted, delta, every
from tests.story import NOW, Story


async def test_first_write_wins_and_the_loser_gets_the_stored_record(any_journal: Journal, fresh_id: str) -> None:
    first = await any_journal.append("default", accepted(fresh_id, "first"))
    second = await any_journal.append("default", accepted(fresh_id, "second"))
    assert first.created and not second.created
    assert second.record == first.record
    assert decode(second.record.data) == accepted(fresh_id, "first")


async def test_writing_the_same_bytes_again_counts_as_created(any_journal: Journal, fresh_id: str) -> None:
    first = await any_journal.append("default", accepted(fresh_id))
    again = await any_journal.append("default", accepted(fresh_id))
    assert again.created and again.record.sequence == first.record.sequence


async def test_a_purge_leaves_the_tombstone_which_refuses_another_acceptance(
    any_journal: Journal, fresh_id: str
) -> None:
    subject = f"deliberations.default.{fresh_id}"
    await any_journal.append("default", accepted(fresh_id))
    await any_journal.append("default", accepted(f"{fresh_id}-other"))
    for offset in range(3):
        await any_journal.publish_view("default", delta(fresh_id, offset, "x"))
    await any_journal.append("default", Completed(deliberation_id=fresh_id, ts=NOW))
    tombstone = (await any_journal.append("default", Deleted(deliberation_id=fresh_id, ts=NOW))).record
    assert tombstone.subject == f"{subject}.deleted"
    for _ in range(2):
        await any_journal.purge("default", fresh_id)
        assert await every(any_journal, f"{subject}.>") == [tombstone]
        assert await any_journal.facts("default", fresh_id) == [tombstone]
        again = await any_journal.append("default", accepted(fresh_id))
        assert not again.created and again.record == tombstone
    assert len(await any_journal.facts("default", f"{fresh_id}-other")) == 1


async def test_an_acceptance_is_refused_beside_any_remaining_fact(any_journal: Journal, fresh_id: str) -> None:
    end = (await any_journal.append("default", Completed(deliberation_id=fresh_id, ts=NOW))).record
    appended = await any_journal.append("default", accepted(fresh_id))
    assert not appended.created and appended.record == end
    assert await any_journal.facts("default", fresh_id) == [end]


async def test_a_label_changes_the_subject_of_an_acceptance_and_nothing_else(
    any_journal: Journal, fresh_id: str
) -> None:
    labelled = Story(fresh_id, 1).accepted(cluster="eu")
    acceptance = (await any_journal.append("default", labelled)).record
    assert acceptance.subject == f"deliberations.default.{fresh_id}.accepted-eu"
    for other in (accepted(fresh_id), Story(fresh_id, 1).accepted(cluster="us")):
        again = await any_journal.append("default", other)
        assert not again.created and again.record == acceptance
    end = (await any_journal.append("default", Completed(deliberation_id=fresh_id, ts=NOW))).record
    assert await any_journal.facts("default", fresh_id) == [acceptance, end]


async def test_an_unfinished_acceptance_is_above_the_ack_floor(any_journal: Journal, fresh_id: str) -> None:
    acceptance = (await any_journal.append("default", accepted(fresh_id))).record
    assert (await any_journal.queue(CONSUMER)).acknowledged_to < acceptance.sequence


async def test_of_fifty_concurrent_ends_one_is_stored(any_journal: Journal, fresh_id: str) -> None:
    ends = [Completed(deliberation_id=fresh_id, ts=NOW + timedelta(seconds=racer)) for racer in range(50)]
    outcomes = await asyncio.gather(*(any_journal.append("default", end) for end in ends))
    assert sum(outcome.created for outcome in outcomes) == 1
    assert len({outcome.record.data for outcome in outcomes}) == 1


async def test_facts_returns_every_fact_of_one_deliberation_in_order_and_no_view(
    any_journal: Journal, fresh_id: str
) -> None:
    story = Story(fresh_id, 1)
    written = [
        story.accepted(),
        story.opened(),
        story.finished("dev-001"),
        story.closed(),
        CancelRequested(deliberation_id=fresh_id, ts=NOW, reason=None),
        story.completed(),
    ]
    await any_journal.append("default", accepted(f"{fresh_id}-other"))
    for fact in written:
        await any_journal.append("default", fact)
        await any_journal.publish_view("default", delta(fresh_id, 0, "view"))
    await any_journal.append("other-tenant", accepted(fresh_id))
    records = await any_journal.facts("default", fresh_id)
    assert [decode(record.data) for record in records] == written
    assert [record.sequence for record in records] == sorted(record.sequence for record in records)


async def test_facts_on_more_subjects_than_one_batch_allows_are_all_read(any_journal: Journal, fresh_id: str) -> None:
    """NATS allows 1,024 subjects; a round robin of 32 members has that many calls, and stages."""
    await any_journal.append("default", accepted(fresh_id))
    outcome = Story(fresh_id).finished("dev-001")
    finished = [outcome.model_copy(update={"call_id": f"s1-{number}"}) for number in range(1_100)]
    for begin in range(0, len(finished), 100):
        await asyncio.gather(*(any_journal.append("default", fact) for fact in finished[begin : begin + 100]))
    records = await any_journal.facts("default", fresh_id)
    assert decode(records[0].data) == accepted(fresh_id)
    assert {decode(record.data).call_id for record in records[1:]} == {fact.call_id for fact in finished}
    assert [record.sequence for record in records] == sorted(record.sequence for record in records)


async def test_an_unknown_deliberation_has_no_facts(any_journal: Journal, fresh_id: str) -> None:
    assert await any_journal.facts("default", fresh_id) == []
    assert await every(any_journal, f"deliberations.default.{fresh_id}.>") == []


async def test_read_pages_through_facts_and_views_after_a_cursor(any_journal: Journal, fresh_id: str) -> None:
    await any_journal.append("default", accepted(fresh_id))
    for offset in range(600):
        await any_journal.publish_view("default", delta(fresh_id, offset, "x"))
    end = (await any_journal.append("default", Completed(deliberation_id=fresh_id, ts=NOW))).record
    pattern = f"deliberations.default.{fresh_id}.>"
    records = await every(any_journal, pattern)
    assert len(records) == 602 and records[-1] == end
    assert await every(any_journal, pattern, after=records[299].sequence) == records[300:]
    assert await every(any_journal, pattern, after=records[9].sequence, limit=300) == records[10:310]
    assert await every(any_journal, pattern, after=end.sequence) == []


async def test_a_message_beside_the_log_reaches_all_who_listen_and_is_not_stored(any_journal: Journal) -> None:
    heard, also_heard = list[bytes](), list[bytes]()
    subject = f"viewers.{uuid4().hex}"
    await any_journal.tell(subject, b"before anybody listens")
    await any_journal.listen(subject, heard.append)
    await any_journal.listen(subject, also_heard.append)
    before = await any_journal.state()
    await any_journal.tell(subject, b"now")
    await until(lambda: bool(heard and also_heard))
    assert (heard, also_heard) == ([b"now"], [b"now"])
    assert (await any_journal.state()).last_sequence == before.last_sequence


async def test_a_subscriber_receives_the_facts_stored_from_then_on(any_journal: Journal, fresh_id: str) -> None:
    await any_journal.append("default", accepted(fresh_id))
    received: list[Record] = []
    subscription = await any_journal.subscribe([f"deliberations.default.{fresh_id}.>"], received.append)
    await any_journal.publish_view("default", Story(fresh_id).started("dev-001"))
    await any_journal.publish_view("default", delta(fresh_id, 0, "é"))
    end = (await any_journal.append("default", Completed(deliberation_id=fresh_id, ts=NOW))).record
    await until(lambda: len(received) == 3)
    assert [event_type(record.data) for record in received] == ["call.started", "call.delta", "deliberation.completed"]
    assert received[-1] == end
    assert received == await every(any_journal, f"deliberations.default.{fresh_id}.>", after=received[0].sequence - 1)
    await subscription.close()
    await subscription.close()


async def test_a_subscription_delivers_only_matching_subjects(any_journal: Journal, fresh_id: str) -> None:
    received: list[Record] = []
    tail = f"default.{fresh_id}"
    subscription = await any_journal.subscribe(
        [f"deliberations.{tail}.cancel", f"deliberations.{tail}.end"], received.append
    )
    for fact in (
        accepted(fresh_id),
        CancelRequested(deliberation_id=fresh_id, ts=NOW),
        Completed(deliberation_id=fresh_id, ts=NOW),
    ):
        await any_journal.append("default", fact)
    await until(lambda: len(received) == 2)
    assert [record.tokens[3] for record in received] == ["cancel", "end"]
    await subscription.close()


async def test_events_under_several_patterns_arrive_in_the_order_of_the_log(
    any_journal: Journal, fresh_id: str
) -> None:
    received: list[Record] = []
    tails = ("*.cancel", "*.end", "*.call.*.delta", "*.call.*.started", "*.deleted")
    subscription = await any_journal.subscribe([f"deliberations.{fresh_id}.{tail}" for tail in tails], received.append)

    async def write_one(number: int) -> None:
        id = f"{fresh_id}-{number}"
        for offset in range(5):
            await any_journal.publish_view(fresh_id, delta(id, offset, "x"))
            await any_journal.publish_view(fresh_id, Story(id).started("dev-001"))
        await any_journal.append(fresh_id, CancelRequested(deliberation_id=id, ts=NOW))
        await any_journal.append(fresh_id, Completed(deliberation_id=id, ts=NOW))
        await any_journal.append(fresh_id, Deleted(deliberation_id=id, ts=NOW))

    await asyncio.gather(*map(write_one, range(60)))
    await until(lambda: len(received) == 60 * 13)
    assert [record.sequence for record in received] == sorted(record.sequence for record in received)
    await subscription.close()


async def test_state_returns_epoch_and_bounds(any_journal: Journal, fresh_id: str) -> None:
    record = (await any_journal.append("default", accepted(fresh_id))).record
    state = await any_journal.state()
    assert state.first_sequence <= record.sequence <= state.last_sequence
    assert state == await any_journal.state()
    assert state.epoch and state.epoch == state.epoch.lower() and state.epoch.isalnum()


@pytest.mark.parametrize("hostile", ["*", ">", "..", "a b", "", "A", "x" * 65, "é", "a.b", "a\r\nPUB x 1"])
async def test_hostile_tokens_never_reach_the_log(any_journal: Journal, hostile: str) -> None:
    fact = accepted("x").model_copy(update={"deliberation_id": hostile})
    with pytest.raises(InvalidToken):
        await any_journal.append("default", fact)
    with pytest.raises(InvalidToken):
        await any_journal.facts(hostile, "x")


async def test_keys_have_a_stream_of_their_own_written_once_and_delivered_live(
    any_journal: Journal, fresh_id: str
) -> None:
    received: list[Record] = []
    subject = f"keys.{fresh_id}.created"
    subscription = await any_journal.subscribe(["keys.*.*"], received.append)
    first = await any_journal.write(subject, b"first")
    second = await any_journal.write(subject, b"second")
    assert (first.created, second.created, second.record) == (True, False, first.record)
    await any_journal.append("default", accepted(fresh_id))
    await until(lambda: bool(received))
    await subscription.close()
    assert [record for record in received if record.subject == subject] == [first.record]
    assert [record for record in await every(any_journal, "keys.>") if record.subject == subject] == [first.record]
    assert all(record.tokens[0] == "keys" for record in await every(any_journal, "keys.>"))
