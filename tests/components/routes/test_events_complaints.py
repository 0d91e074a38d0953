"""Complaints of users of other services, and the tests that rule each of them out here.

docs/streaming.md lists them in a table: complaint, sources, what is different here, tests.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.components.routes.listening import following, listening, types, whole
from tests.conditions import until
from tests.story import Story

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "streaming.md"
COMPLAINTS = (
    "Events are lost on reconnect",
    "The replay window is shorter than the work",
    "Ids come twice, the whole tape is replayed, filters are forgotten",
    "Cancelled work burns on, and ends as completed",
    "A stop is lost in a race, or a disconnect is taken for one",
    "A crash leaves a ghost that runs for ever",
    "Silence kills streams, and half-open ones go unnoticed",
    "One slow reader eats the memory",
    "A retry starts paid work twice",
    "Errors hide in a 200, tokens in URLs",
    "Generated SDKs are broken",
)


@cache
def rows() -> dict[str, str]:
    found = re.search(r"<!-- complaints -->\n(.*?)<!-- /complaints -->", PAGE.read_text(), re.DOTALL)
    assert found is not None, f"{PAGE.name} has the markers <!-- complaints --> and <!-- /complaints -->"
    return {row.split("|")[1].strip(): row for row in found[1].splitlines()[2:]}


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_docs_table_lists_every_complaint() -> None:
    assert tuple(rows()) == COMPLAINTS


@pytest.mark.parametrize("complaint", COMPLAINTS)
def test_every_complaint_names_existing_tests(complaint: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", rows()[complaint])
    assert named, "no test is named"
    assert [f"{path}::{name}" for path, name in named if name not in names_in(path)] == []


async def test_no_event_is_lost_when_a_connection_breaks_after_any_event() -> None:
    story = Story("a")
    events = whole(story)
    async with listening() as gateway:
        received, cursor = list[str](), "0"
        await gateway.write(events[0])
        for event in events[1:]:
            async with gateway.watching("a", cursor) as frames:
                _, frame = await following(frames, 2)
                received, cursor = [*received, frame.event], str(frame.id)
            await gateway.write(event)  # without a viewer
        received += types(await gateway.watched("a", cursor))[1:]
    assert received == [event.type for event in events]


async def test_the_replay_window_is_as_long_as_the_retention_of_the_result() -> None:
    """Deltas are kept for ten minutes, and every fact with its full text as long as the verdict."""
    story = Story("a")
    async with listening() as gateway:
        await gateway.write(*whole(story))
        records = gateway.journal.records
        records[:] = [record for record in records if record.tokens[-1] != "delta"]
        opened, *replayed = await gateway.watched("a", after="0")
        resource = (await gateway.client.get("/deliberations/a")).json()
    assert opened.fields()["retention_until"] == resource["retention_until"]
    assert types(replayed) == [event.type for event in whole(story) if event.type != "call.delta"]
    texts = {frame.fields()["call_id"]: frame.fields()["text"] for frame in replayed if frame.event == "call.finished"}
    assert texts == {"s1-dev-001": "red", "s1-dev-002": "blue"}


async def test_ids_at_one_time_are_distinct_and_a_reconnect_replays_only_missing_events() -> None:
    """All events of the story have the same time, so that ids from the clock would repeat."""
    async with listening() as gateway:
        await gateway.write(*whole(Story("a")))
        _, *everything = await gateway.watched("a", after="0")
        assert len({frame.id for frame in everything}) == len(everything) == len(whole(Story("a")))
        _, first, *rest = await gateway.watched("a", after="0", types="call.finished")
        _, *again = await gateway.watched("a", str(first.id), after="0", types="call.finished")
    assert again == rest and types(rest)[0] == "call.finished"


async def test_a_disconnect_cancels_nothing_and_an_early_cancel_is_kept() -> None:
    async with listening() as gateway:
        await gateway.write(Story("a").accepted())
        async with gateway.watching("a") as frames:
            await following(frames, 2)
        await until(lambda: gateway.feed.streams == 0)
        assert [record.tokens[-1] for record in gateway.journal.records] == ["accepted"]
        response = await gateway.client.post("/deliberations/a/cancel", json={"reason": "enough"})
        assert (response.status_code, response.json()["status"]) == (202, "cancelling")
        async with gateway.watching("a", after="0") as frames:
            assert types(await following(frames, 3))[1:] == ["deliberation.accepted", "deliberation.cancelling"]
