import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.client import Frame
from app.deliberation.facts import Cancelled, CancelRequested, Event, encode
from tests.components.access.keyed import PEPPER, accepted, bearer, make_key, play
from tests.components.routes.listening import Gateway, following, listening, types, whole
from tests.components.routes.served import served
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.story import NOW, Story


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with listening(lists=True) as made:
        yield made


def interleaved(*stories: Story) -> list[Any]:
    return [event for turn in zip(*map(whole, stories), strict=True) for event in turn]


def ids_and_types(frames: list[Frame]) -> list[tuple[str, str]]:
    return [(str(frame.fields()["deliberation_id"]), frame.event) for frame in frames if frame.data]


def ids_and_types_of(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.deliberation_id, event.type) for event in events]


def without_deltas(events: list[Any]) -> list[Any]:
    return [event for event in events if event.type != "call.delta"]


async def rest(frames: AsyncIterator[Frame]) -> list[Frame]:
    return [frame async for frame in frames]


@pytest.mark.parametrize("deltas", [False, True])
async def test_a_replay_of_several_follows_the_log_and_ends_with_the_last_terminal_event(
    gateway: Gateway, deltas: bool
) -> None:
    events = interleaved(Story("a"), Story("b"), Story("c"))
    await gateway.write(*events)
    async with gateway.watching_several("a", "b", after="0", deltas=deltas) as frames:
        opened, *replayed = await rest(frames)
    own = [event for event in events if event.deliberation_id in ("a", "b")]
    own = own if deltas else without_deltas(own)
    assert opened.event == "stream.opened" and opened.id is None
    assert opened.fields()["deliberation_id"] is None and opened.fields()["retention_until"] is None
    assert [frame.data.encode() for frame in replayed] == [encode(event) for event in own]
    places = [int(str(frame.id).partition("-")[2]) for frame in replayed]
    assert places == sorted(set(places))


async def test_frames_equal_those_of_the_single_streams(gateway: Gateway) -> None:
    await gateway.write(*interleaved(Story("a"), Story("b")))
    async with gateway.watching_several("a", "b", after="0", deltas=True) as frames:
        _, *several = await rest(frames)
    single = [frame for id in ("a", "b") for frame in (await gateway.watched(id, after="0"))[1:]]
    assert sorted(several, key=lambda frame: str(frame.id)) == sorted(single, key=lambda frame: str(frame.id))


@pytest.mark.parametrize("ids", [("a", "b"), ()], ids=["named", "tenant"])
@pytest.mark.parametrize("deltas", [False, True])
async def test_repeated_reconnects_lose_and_duplicate_nothing(
    gateway: Gateway, ids: tuple[str, ...], deltas: bool
) -> None:
    """The connection ends after every third frame, and resumes with the last id."""
    events = interleaved(Story("a"), Story("b"))
    wanted = events if deltas else without_deltas(events)
    await gateway.write(*events[:9])
    received, last = list[tuple[str, str]](), "0"
    written = 9
    while len(received) < len(wanted):
        async with gateway.watching_several(*ids, last_event_id=last, deltas=deltas) as frames:
            assert (await anext(frames)).event == "stream.opened"
            taken = 0
            while taken < 3 and len(received) < len(wanted):
                if written < len(events):
                    await gateway.write(events[written])
                    written += 1
                frame = await anext(frames)
                last = frame.id or last
                if frame.data:
                    received += ids_and_types([frame])
                    taken += 1
    assert received == ids_and_types_of(wanted)


async def test_a_stream_of_named_deliberations_begins_with_their_snapshots(gateway: Gateway) -> None:
    a, b = Story("a"), Story("b")
    await gateway.write(*whole(a)[:6], *whole(b)[:2])
    async with gateway.watching_several("a", "b") as frames:
        opened, first, second, cursor_update = await following(frames, 4)
        assert types([opened, first, second, cursor_update]) == ["stream.opened", *["deliberation.snapshot"] * 2, "-"]
        assert cursor_update.id == gateway.id_of() == opened.fields()["last"]
        for id, snapshot in (("a", first), ("b", second)):
            assert snapshot.fields()["deliberation"] == (await gateway.client.get(f"/deliberations/{id}")).json()
        assert [call["text"] for call in first.fields()["unfinished"]] == ["red", ""]
        await gateway.write(*whole(a)[6:], *whole(b)[2:])
        following_events = without_deltas([*whole(a)[6:], *whole(b)[2:]])
        assert ids_and_types(await rest(frames)) == ids_and_types_of(following_events)


async def test_a_stream_of_the_tenant_begins_with_a_list_of_the_newest(gateway: Gateway) -> None:
    await gateway.write(*whole(Story("a")), *whole(Story("b"))[:3], Story("c").accepted())
    async with gateway.watching_several() as frames:
        opened, listed, cursor_update = await following(frames, 3)
        assert types([opened, listed, cursor_update]) == ["stream.opened", "deliberations.snapshot", "-"]
        assert cursor_update.id == gateway.id_of()
        page = (await gateway.client.get("/deliberations")).json()
        assert listed.fields()["items"] == page["items"] and listed.fields()["next_cursor"] is None
        assert [(item["id"], item["status"]) for item in page["items"]] == [
            ("c", "pending"),
            ("b", "in_progress"),
            ("a", "completed"),
        ]
        await gateway.write(Story("d").accepted(), Story("c").opened())
        assert ids_and_types(await following(frames, 2)) == [("d", "deliberation.accepted"), ("c", "stage.opened")]


async def test_a_list_of_an_archive_that_is_behind_is_followed_by_all_later_events(gateway: Gateway) -> None:
    await gateway.write(Story("a").accepted())
    await gateway.client.get("/deliberations")
    copied = gateway.id_of()
    gateway.client.event_hooks["request"].clear()
    await gateway.write(Story("a").opened(), Story("b").accepted())
    async with gateway.watching_several() as frames:
        _, listed, cursor_update, *events = await following(frames, 5)
    assert [(item["id"], item["status"]) for item in listed.fields()["items"]] == [("a", "pending")]
    assert cursor_update.id == copied
    assert ids_and_types(events) == [("a", "stage.opened"), ("b", "deliberation.accepted")]


async def test_a_truncated_list_continues_in_get_deliberations(gateway: Gateway) -> None:
    for number in range(203):
        await gateway.write(Story(f"d{number}").accepted())
    async with gateway.watching_several() as frames:
        _, listed = await following(frames, 2)
    items, cursor = listed.fields()["items"], listed.fields()["next_cursor"]
    assert len(items) == 200
    more = (await gateway.client.get("/deliberations", params={"cursor": cursor})).json()
    assert [item["id"] for item in [*items, *more["items"]]] == [f"d{number}" for number in reversed(range(203))]


async def test_a_stream_of_ended_deliberations_sends_snapshots_and_then_answers_204(
    gateway: Gateway,
) -> None:
    await gateway.write(*interleaved(Story("a"), Story("b")), Story("c").accepted())
    async with gateway.watching_several("a", "b") as frames:
        *_, cursor_update = last = await rest(frames)
    assert types(last) == ["stream.opened", "deliberation.snapshot", "deliberation.snapshot", "-"]
    response = await gateway.client.get(
        "/events", params={"deliberation": ["a", "b"]}, headers={"Last-Event-ID": str(cursor_update.id)}
    )
    assert response.status_code == 204 and response.content == b""
    async with gateway.watching_several("a", "c", last_event_id=str(cursor_update.id)) as frames:
        assert types(await following(frames, 1)) == ["stream.opened"]


STATUSES: list[tuple[list[str], list[str]]] = [
    (["pending"], ["deliberation.accepted", "stage.opened"]),
    (["in_progress"], ["stage.opened", "call.finished", "deliberation.cancelling"]),
    (["cancelling"], ["deliberation.cancelling", "call.finished", "deliberation.cancelled"]),
    (["cancelled"], ["deliberation.cancelled"]),
    (["pending", "cancelled"], ["deliberation.accepted", "stage.opened", "deliberation.cancelled"]),
    (["completed"], []),
]


@pytest.mark.parametrize(("statuses", "expected"), STATUSES, ids=lambda value: "+".join(value))
async def test_the_status_filter_selects_the_same_events_live_and_in_replay(
    gateway: Gateway, statuses: list[str], expected: list[str]
) -> None:
    """The event that leaves a status is included, so that viewers can drop the deliberation."""
    story = Story("a")
    events = [
        story.accepted(),
        story.opened(),
        story.finished("dev-001"),
        CancelRequested(deliberation_id="a", ts=NOW),
        story.finished("dev-002"),
        Cancelled(deliberation_id="a", ts=NOW),
    ]
    async with gateway.watching_several(status=statuses) as frames:
        await following(frames, 3)
        await gateway.write(*events, Story("z").accepted(), Cancelled(deliberation_id="z", ts=NOW))
        live = list[Frame]()
        while not live or live[-1].id != gateway.id_of():
            live.append(await anext(frames))
    assert [kind for id, kind in ids_and_types(live) if id == "a"] == expected
    page = (await gateway.page_of_several(status=statuses, after="0")).json()
    assert [item["type"] for item in page["items"] if item["deliberation_id"] == "a"] == expected
    async with gateway.watching_several("a", status=statuses, after="0") as frames:
        assert [kind for id, kind in ids_and_types(await rest(frames)) if id == "a"] == expected


async def test_the_status_filter_applies_to_lists_and_snapshots(gateway: Gateway) -> None:
    await gateway.write(*whole(Story("a")), *whole(Story("b"))[:2], Story("c").accepted())
    for statuses, ids in ((["in_progress"], ["b"]), (["completed", "pending"], ["c", "a"]), (["failed"], [])):
        async with gateway.watching_several(status=statuses) as frames:
            _, listed = await following(frames, 2)
            assert [item["id"] for item in listed.fields()["items"]] == ids
    async with gateway.watching_several("a", "b", status=["in_progress"]) as frames:
        assert ids_and_types(await following(frames, 3))[1:] == [("b", "deliberation.snapshot")]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"types": "stage.opened"}, {"stage.opened"}),
        ({"types": ["stage.opened,call.delta", "call.finished"]}, {"stage.opened", "call.finished"}),
        ({"types": "call.delta", "deltas": "true"}, {"call.delta"}),
    ],
)
async def test_filters_apply_to_reconnects_and_update_the_cursor(
    gateway: Gateway, query: dict[str, Any], wanted: set[str]
) -> None:
    events = interleaved(Story("a"), Story("b"))
    await gateway.write(*events)
    async with gateway.watching_several("a", "b", after="0", **query) as frames:
        _, *received = await rest(frames)
    assert ids_and_types(received) == [(event.deliberation_id, event.type) for event in events if event.type in wanted]
    assert received[-1].id == gateway.id_of()
    page = (await gateway.page_of_several("a", "b", **query)).json()
    assert [item["type"] for item in page["items"]] == [kind for _, kind in ids_and_types(received)] and page["ended"]


async def test_events_of_others_update_the_cursor_at_a_bounded_rate(gateway: Gateway) -> None:
    other = Story("other")
    await gateway.write(Story("a").accepted(), other.accepted(), other.opened())
    async with gateway.watching_several("a") as frames:
        await following(frames, 3)
        for stage in range(60):
            await gateway.write(other.finished("dev-001", stage=stage + 2))
            await asyncio.sleep(0)
        updates = [await anext(frames)]
        while updates[-1].id != gateway.id_of():
            updates.append(await anext(frames))
    assert all(not update.data for update in updates) and len(updates) <= 4


@pytest.mark.parametrize("limit", [1, 3, 200])
@pytest.mark.parametrize("ids", [("a",), ("a", "c")], ids=["one", "several"])
async def test_pages_hold_every_event_with_its_cursor_and_report_the_end(
    gateway: Gateway, ids: tuple[str, ...], limit: int
) -> None:
    events = interleaved(Story("a"), Story("b"), Story("c"))
    await gateway.write(*events)

    async def page(after: str) -> dict[str, Any]:
        asked = {"after": after, "limit": limit, "deltas": "true"}
        response = await (gateway.page(*ids, **asked) if len(ids) == 1 else gateway.page_of_several(*ids, **asked))
        assert response.headers["content-type"] == "application/json" and len(response.json()["items"]) <= limit
        return response.json()

    items, after, ended = list[dict[str, Any]](), "0", False
    while not ended:
        found = await page(after)
        items += found["items"]
        after, ended = found["next"], found["ended"]
    own = [event for event in events if event.deliberation_id in ids]
    assert [{k: v for k, v in item.items() if k != "id"} for item in items] == [json.loads(encode(e)) for e in own]
    async with gateway.watching_several(*ids, after="0", deltas=True) as frames:
        assert [item["id"] for item in items] == [frame.id for frame in (await rest(frames))[1:]]
    assert await page(after) == {"items": [], "next": after, "ended": True}


@pytest.mark.parametrize(
    ("cursor", "reason"), [("foreign-3", "epoch"), ("memory-999999", "beyond_end"), ("memory-3", "retention")]
)
@pytest.mark.parametrize("ids", [None, ("new",), ()], ids=["single", "named", "tenant"])
async def test_a_cursor_that_cannot_be_replayed_sends_a_gap_and_a_snapshot(
    ids: tuple[str, ...] | None, cursor: str, reason: str
) -> None:
    journal, story = InMemoryJournal(), Story("new")
    async with listening(journal) as gateway:
        await gateway.write(*whole(Story("old")))
        journal.forget(len(whole(Story("old"))))
        await gateway.write(*whole(story)[:4])
        kind = "deliberations.snapshot" if ids == () else "deliberation.snapshot"
        several = gateway.watching_several(*(ids or ()), last_event_id=cursor)
        async with gateway.watching("new", cursor) if ids is None else several as frames:
            _, gap, snapshot, cursor_update = await following(frames, 4)
            assert types([gap, snapshot, cursor_update]) == ["stream.gap", kind, "-"]
            assert gap.id is None and gap.fields()["deliberation_id"] == (None if ids is not None else "new")
            told = [gap.fields()[name] for name in ("from", "to", "reason")]
            assert told == [cursor, cursor_update.id, reason]
            await gateway.write(story.finished("dev-001"))
            assert ids_and_types(await following(frames, 1)) == [("new", "call.finished")]
        page = gateway.page("new", after=cursor) if ids is None else gateway.page_of_several(*ids, after=cursor)
        found = (await page).json()
        assert [item["type"] for item in found["items"]] == ["stream.gap", kind] and not found["ended"]


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
@pytest.mark.parametrize(
    ("query", "headers", "status", "code"),
    [
        ({"deliberation": "nothing-here"}, {}, 404, "not_found"),
        ({"deliberation": ["a", "nothing-here"]}, {}, 404, "not_found"),
        ({"deliberation": "A*"}, {}, 404, "not_found"),
        ({"deliberation": [f"d{number}" for number in range(65)]}, {}, 422, "invalid_request"),
        ({"status": "asleep"}, {}, 422, "invalid_request"),
        ({}, {"Accept": "text/html"}, 406, "not_acceptable"),
    ],
)
async def test_errors_are_answered_before_the_stream_opens(
    gateway: Gateway, accept: str, query: dict[str, Any], headers: dict[str, str], status: int, code: str
) -> None:
    await gateway.write(Story("a").accepted())
    response = await gateway.client.get("/events", params=query, headers={"Accept": accept, **headers})
    assert (response.status_code, response.json()["code"]) == (status, code)
    await until(lambda: gateway.feed.streams == 0)


async def test_a_deletion_is_sent_and_a_resumed_stream_goes_on_without_the_deliberation(gateway: Gateway) -> None:
    """A browser gives up a refused stream for good, so a deletion must not end the stream of the others."""
    a, b = Story("a"), Story("b")
    await gateway.write(*whole(a), b.accepted())
    async with gateway.watching_several("a", "b") as frames:
        *_, cursor_update = await following(frames, 4)
        assert (await gateway.client.delete("/deliberations/a")).status_code == 204
        assert ids_and_types(await following(frames, 1)) == [("a", "deliberation.deleted")]
    async with gateway.watching_several("a", "b", last_event_id=str(cursor_update.id)) as frames:
        assert ids_and_types(await following(frames, 2))[1:] == [("a", "deliberation.deleted")]
        await gateway.write(b.opened())
        assert ids_and_types(await following(frames, 1)) == [("b", "stage.opened")]
    async with gateway.watching_several("a", "b") as frames:
        assert ids_and_types(await following(frames, 2))[1:] == [("b", "deliberation.snapshot")]
    response = await gateway.client.get("/events", params={"deliberation": "a"})
    assert (response.status_code, response.json()["code"]) == (410, "gone")
    async with gateway.watching_several(status="in_progress", last_event_id=str(cursor_update.id)) as frames:
        received = ids_and_types(await following(frames, 3))
        assert received[1:] == [("a", "deliberation.deleted"), ("b", "stage.opened")]


async def test_streams_without_deltas_share_one_watch_per_tenant(gateway: Gateway) -> None:
    await gateway.write(Story("a").accepted(), Story("b").accepted())
    async with (
        gateway.watching_several() as all_of_them,
        gateway.watching_several("a") as one,
        gateway.watching_several("b", status="pending") as another,
    ):
        for frames in (all_of_them, one, another):
            await following(frames, 2)
        await until(lambda: gateway.feed.watched == 1)
        await gateway.write(Story("a").opened())
        assert ("a", "stage.opened") in ids_and_types([await anext(all_of_them), await anext(all_of_them)])
    async with gateway.watching_several("a", deltas="true") as several, gateway.watching("a") as single:
        await following(several, 2)
        await following(single, 2)
        await until(lambda: gateway.feed.watched == 2)


async def test_a_tenant_receives_no_event_of_another() -> None:
    journal = InMemoryJournal()
    own, foreign = await make_key(journal, "acme"), await make_key(journal, "other")
    async with served(journal=journal, key_pepper=PEPPER) as gateway:
        theirs = await accepted(gateway, foreign, {"Idempotency-Key": "k"})
        await play(gateway, "other", theirs)
        created = await accepted(gateway, own)
        json_of = {"Accept": "application/json"}
        for query in ({"deliberation": theirs}, {"deliberation": [created, theirs]}):
            for accept in ({}, json_of):
                refused = await gateway.client.get("/events", params=query, headers=bearer(own) | accept)
                assert refused.status_code == 404
        unknown = await gateway.client.get("/events", params={"deliberation": "nobodys"}, headers=bearer(own))
        refused = await gateway.client.get("/events", params={"deliberation": theirs}, headers=bearer(own))
        assert unknown.json()["detail"].replace("nobodys", theirs) == refused.json()["detail"]
        page = (await gateway.client.get("/events", params={"deltas": "true"}, headers=bearer(own) | json_of)).json()
        assert {item["deliberation_id"] for item in page["items"]} == {created}
