"""Views expire, but not before a successor may need them to count the attempts of a call."""

import base64
import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from app.deliberation.ports import Record
from app.log.journal import VIEW_TTL_S, JetStreamJournal
from tests.conditions import until
from tests.story import Story


async def _ttl_s(journal: JetStreamJournal, subject: str) -> int | None:
    """The TTL of the last message on a subject; None when the stream's retention applies."""
    reply = await journal.request(
        "$JS.API.STREAM.MSG.GET.DELIBERATIONS", json.dumps({"last_by_subj": subject}).encode()
    )
    headers = base64.b64decode(reply["message"].get("hdrs", "")).decode()
    found = re.search(r"^Nats-TTL: ([0-9]+)s\r$", headers, re.MULTILINE)
    return None if found is None else int(found[1])


@pytest.mark.parametrize(
    ("needed_s", "least_s", "most_s"),
    [(None, VIEW_TTL_S, VIEW_TTL_S), (-5, VIEW_TTL_S, VIEW_TTL_S), (60, VIEW_TTL_S, VIEW_TTL_S), (7_200, 7_190, 7_200)],
)
async def test_a_view_is_kept_for_ten_minutes_or_until_the_given_time(
    jetstream_journal: JetStreamJournal, fresh_id: str, needed_s: int | None, least_s: int, most_s: int
) -> None:
    story = Story(fresh_id)
    needed_until = None if needed_s is None else datetime.now(UTC) + timedelta(seconds=needed_s)
    received: list[Record] = []
    subscription = await jetstream_journal.subscribe([f"deliberations.default.{fresh_id}.>"], received.append)
    for view in (story.started("dev-001"), story.delta("dev-001", 0, "x")):
        await jetstream_journal.publish_view("default", view, needed_until)
    await until(lambda: len(received) == 2)
    for record in received:
        assert least_s <= (await _ttl_s(jetstream_journal, record.subject) or 0) <= most_s
    await subscription.close()


async def test_a_fact_is_kept_for_the_retention_of_the_stream(
    jetstream_journal: JetStreamJournal, fresh_id: str
) -> None:
    await jetstream_journal.append("default", Story(fresh_id).accepted())
    assert await _ttl_s(jetstream_journal, f"deliberations.default.{fresh_id}.accepted") is None
