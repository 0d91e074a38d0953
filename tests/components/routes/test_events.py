import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import encode
from app.deliberation.ports import Record
from app.log.text_viewers import SUBJECT
from app.streaming.frames import EVENT_TYPES
from tests.components.routes.listening import Gateway, following, listening, types, whole
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.story import Story


@pytest.fixture(scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with listening() as made:
        yield made


LEASED = [
    ("/deliberations/ID/events", {}, b"default.ID"),
    ("/deliberations/ID/events", {"types": "call.delta"}, b"default.ID"),
    ("/deliberations/ID/events", {"types": "call.finished"}, None),
    ("/deliberations/ID/events", {"deltas": "false"}, None),
    ("/events", {"deliberation": "ID"}, None),
    ("/events", {"deliberation": "ID", "deltas": "true"}, b"default.ID"),
    ("/events", {"deltas": "true"}, b"default.*"),
]


@pytest.mark.parametrize(("path", "query", "leased"), LEASED)
async def test_a_stream_and_a_page_lease_the_texts_that_they_show(
    gateway: Gateway, story: Story, path: str, query: dict[str, str], leased: bytes | None
) -> None:
    await gateway.write(story.accepted(), story.opened())
    path, query = path.replace("ID", story.id), {key: each.replace("ID", story.id) for key, each in query.items()}
    wanted = [] if leased is None else [leased.replace(b"ID", story.id.encode())]
    heard: list[bytes] = []
    await gateway.journal.listen(SUBJECT, heard.append)
    await gateway.client.get(path, params=query, headers={"Accept": "application/json"})
    assert heard == wanted
    heard.clear()
    async with gateway.client.stream("GET", path, params=query, headers={"Accept": "text/event-stream"}) as response:
        await anext(response.aiter_bytes())
        await until(lambda: gateway.feed.watched > 0 and heard == wanted)


async def test_a_page_after_the_end_leases_nothing(gateway: Gateway, story: Story) -> None:
    await gateway.write(*whole(story))
    heard: list[bytes] = []
    await gateway.journal.listen(SUBJECT, heard.append)
    path = f"/deliberations/{story.id}/events"
    page = (await gateway.client.get(path, headers={"Accept": "application/json"})).json()
    await gateway.client.get(path, params={"after": page["next"]}, headers={"Accept": "application/json"})
    assert page["ended"] and heard == []


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
@pytest.mark.parametrize(
    ("path", "query", "headers", "status", "code"),
    [
        ("nothing-here", {}, {}, 404, "not_found"),
        ("A*", {}, {}, 404, "not_found"),
        ("x" * 8_000, {}, {}, 404, "not_found"),
        ("ID", {"after": "never"}, {}, 400, "invalid_cursor"),
        ("ID", {"after": "x" * 8_000}, {}, 400, "invalid_cursor"),
        ("ID", {"after": "0"}, {"Last-Event-ID": "x"}, 400, "invalid_cursor"),
        ("ID", {"types": "call.delta,call.exploded"}, {}, 422, "invalid_request"),
        ("ID", {"types": ""}, {}, 422, "invalid_request"),
        ("ID", {"deltas": "perhaps"}, {}, 422, "invalid_request"),
        ("ID", {"limit": "0"}, {}, 422, "invalid_request"),
        ("ID", {"limit": "1001"}, {}, 422, "invalid_request"),
        ("ID", {"cursor": "0"}, {}, 422, "invalid_request"),
        ("ID", {}, {"Accept": "text/html"}, 406, "not_acceptable"),
    ],
)
async def test_errors_are_answered_before_the_stream_opens(
    gateway: Gateway,
    story: Story,
    accept: str,
    path: str,
    query: dict[str, str],
    headers: dict[str, str],
    status: int,
    code: str,
) -> None:
    await gateway.write(story.accepted())
    path = f"/deliberations/{story.id if path == 'ID' else path}/events"
    response = await gateway.client.get(path, params=query, headers={"Accept": accept, **headers})
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.headers["content-type"] == "application/problem+json"
    assert gateway.feed.streams == 0


@pytest.mark.parametrize(
    ("query", "headers", "location", "named"),
    [
        ({"after": "5"}, {}, "query", "after"),
        ({"after": "0"}, {"Last-Event-ID": "5"}, "header", "Last-Event-ID"),
    ],
)
async def test_an_invalid_cursor_is_named_with_its_remedy(
    gateway: Gateway, story: Story, query: dict[str, str], headers: dict[str, str], location: str, named: str
) -> None:
    await gateway.write(story.accepted())
    path = f"/deliberations/{story.id}/events"
    [fault] = (await gateway.client.get(path, params=query, headers=headers)).json()["errors"]
    assert (fault["location"], fault["pointer"]) == (location, named)
    assert fault["detail"] == f"{named} must be 0 or <epoch>-<sequence>."
    assert fault["remedy"] == "Take the `id` of an event, 0 for the beginning, or leave it out."


async def test_a_log_that_stays_unavailable_is_answered_with_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.streaming.streams.LOG_TIMEOUT_S", 0.0)
    async with listening(InMemoryJournal(available=False)) as gateway:
        response = await gateway.client.get("/deliberations/a/events")
        assert response.status_code == 503 and int(response.headers["retry-after"]) > 0


@pytest.mark.parametrize("path", ["/deliberations/a/events?after=0", "/events?deliberation=a&after=0"])
async def test_a_stream_waits_for_a_log_that_is_briefly_unavailable(path: str) -> None:
    """A browser gives up a refused stream for good, so that a short outage must not refuse it."""
    async with listening() as gateway, asyncio.timeout(10):
        await gateway.write(*whole(Story("a")))
        gateway.journal.available = False
        assert (await gateway.page("a")).status_code == 503, "a client may repeat the request of a page"
        watching = asyncio.create_task(gateway.client.get(path))
        await until(lambda: gateway.feed.streams == 1)
        gateway.journal.available = True
        response = await watching
        assert response.status_code == 200 and "deliberation.completed" in response.text


class BusyJournal(InMemoryJournal):
    """A journal that fails the next `failures` reads of a range."""

    failures = 0

    async def read(self, pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        if self.failures:
            self.failures -= 1
            raise JournalUnavailable("no reply in time")
        async for record in super().read(pattern, after, limit=limit):
            yield record


async def test_a_stream_whose_snapshot_cannot_be_read_at_once_is_not_refused(story: Story) -> None:
    journal = BusyJournal()
    async with listening(journal) as gateway:
        await gateway.write(story.accepted(), story.opened())
        journal.failures = 2
        async with gateway.watching(story.id) as frames:
            assert types(await following(frames, 2)) == ["stream.opened", "deliberation.snapshot"]
        assert journal.failures == 0


async def test_a_replay_from_the_beginning_sends_every_stored_event_and_ends(gateway: Gateway, story: Story) -> None:
    events = whole(story)
    await gateway.write(*events)
    opened, *replayed = await gateway.watched(story.id, after="0")
    assert opened.event == "stream.opened" and opened.id is None and opened.retry_ms == 2_000
    assert opened.fields()["last"] == replayed[-1].id and opened.fields()["heartbeat_s"] == 10
    assert [frame.data.encode() for frame in replayed] == [encode(event) for event in events]
    assert types(replayed) == [event.type for event in events]
    sequences = [int(str(frame.id).partition("-")[2]) for frame in replayed]
    assert sequences == sorted(set(sequences))


async def test_the_response_headers_forbid_buffering(gateway: Gateway, story: Story) -> None:
    await gateway.write(*whole(story))
    response = await gateway.client.get(f"/deliberations/{story.id}/events?after=0")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert response.headers["x-accel-buffering"] == "no"


async def test_a_stream_resumes_after_any_cursor_and_answers_204_at_the_end(gateway: Gateway, story: Story) -> None:
    await gateway.write(*whole(story))
    _, *everything = await gateway.watched(story.id, after="0")
    for place, frame in enumerate(everything[:-1]):
        assert (await gateway.watched(story.id, frame.id))[1:] == everything[place + 1 :]
        assert (await gateway.watched(story.id, after=frame.id))[1:] == everything[place + 1 :]
    at_the_end = {"Last-Event-ID": str(everything[-1].id)}
    response = await gateway.client.get(f"/deliberations/{story.id}/events", headers=at_the_end)
    assert response.status_code == 204 and response.content == b""


async def test_a_replay_continues_live_without_gap(gateway: Gateway, story: Story) -> None:
    events = whole(story)
    await gateway.write(*events[:4])
    async with gateway.watching(story.id, after="0") as frames:
        assert types(await following(frames, 5)) == ["stream.opened", *(event.type for event in events[:4])]
        for event in events[4:]:
            await gateway.write(event)
            [frame] = await following(frames, 1)
            assert frame.data.encode() == encode(event) and frame.id == gateway.id_of()
        assert [frame async for frame in frames] == []


async def test_a_stream_without_a_cursor_begins_with_a_snapshot(gateway: Gateway, story: Story) -> None:
    events = whole(story)
    await gateway.write(*events[:6])
    async with gateway.watching(story.id) as frames:
        opened, snapshot, cursor_update = await following(frames, 3)
        assert [opened.event, snapshot.event, cursor_update.data] == ["stream.opened", "deliberation.snapshot", ""]
        assert opened.id is None and snapshot.id is None and cursor_update.id == gateway.id_of()
        fields = snapshot.fields()
        assert fields["deliberation"] == (await gateway.client.get(f"/deliberations/{story.id}")).json()
        assert fields["unfinished"] == [
            {"call_id": "s1-dev-001", "agent_id": "dev-001", "attempt": 1, "text": "red", "offset": 3},
            {"call_id": "s1-dev-002", "agent_id": "dev-002", "attempt": 1, "text": "", "offset": 0},
        ]
        await gateway.write(*events[6:])
        assert types([frame async for frame in frames]) == [event.type for event in events[6:]]


async def test_an_ended_deliberation_without_a_cursor_sends_snapshot_and_terminal_event(
    gateway: Gateway, story: Story
) -> None:
    await gateway.write(*whole(story))
    opened, snapshot, _, end = await gateway.watched(story.id)
    assert snapshot.fields()["deliberation"]["status"] == "completed" and snapshot.fields()["unfinished"] == []
    assert end.event == "deliberation.completed" and end.id == opened.fields()["last"]


async def test_no_event_follows_the_terminal_event(gateway: Gateway, story: Story) -> None:
    events = whole(story)
    late = events.pop(8)
    events[-2] = story.closed().model_copy(update={"seen": ("s1-dev-001",), "reason": "quorum"})
    await gateway.write(*events, late)
    assert (await gateway.watched(story.id, after="0"))[-1].event == "deliberation.completed"
    assert (await gateway.watched(story.id))[-1].event == "deliberation.completed"
    path, after_all = f"/deliberations/{story.id}/events", {"Last-Event-ID": gateway.id_of()}
    assert (await gateway.client.get(path, headers=after_all)).status_code == 204
    page = (await gateway.page(story.id)).json()
    assert page["items"][-1]["type"] == "deliberation.completed" and page["ended"]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"deltas": "false"}, EVENT_TYPES - {"call.delta"}),
        ({"types": "call.delta"}, {"call.delta"}),
        (
            {"types": ["call.finished,stage.opened", "stage.closed"]},
            {"call.finished", "stage.opened", "stage.closed"},
        ),
        ({"types": "call.delta,stage.opened", "deltas": "false"}, {"stage.opened"}),
    ],
)
async def test_filters_apply_to_streams_and_pages_and_update_the_cursor(
    gateway: Gateway, story: Story, query: dict[str, Any], wanted: set[str]
) -> None:
    events = whole(story)
    await gateway.write(*events)
    expected = [event.type for event in events if event.type in wanted]
    _, *frames = await gateway.watched(story.id, after="0", **query)
    assert [kind for kind in types(frames) if kind != "-"] == expected
    assert frames[-1].id == gateway.id_of()
    assert [item["type"] for item in (await gateway.page(story.id, **query)).json()["items"]] == expected
    at_the_end = {"Last-Event-ID": str(frames[-1].id)}
    response = await gateway.client.get(f"/deliberations/{story.id}/events", params=query, headers=at_the_end)
    assert response.status_code == 204


async def test_a_cursor_at_the_beginning_sends_no_gap() -> None:
    journal, story = InMemoryJournal(), Story("new")
    async with listening(journal) as gateway:
        await gateway.write(*whole(Story("old")), *whole(story))
        journal.forget(len(whole(story)))
        for cursor in ("0", "memory-0", f"memory-{len(whole(story))}"):
            assert types(await gateway.watched(story.id, cursor))[1:] == [event.type for event in whole(story)]
