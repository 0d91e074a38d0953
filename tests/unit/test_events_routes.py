"""The stream and its pages: what is refused, what is replayed, what ends them, and what they leave behind."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn

from app.cli.sse import Frame, SseDecoder
from app.cursor import BEGINNING, Cursor, parse_cursor
from app.deliberation.errors import InvalidCursor
from app.deliberation.facts import Fact, View, encode
from app.deliberation.fold import fold
from app.feed import Feed
from app.frames import EVENT_TYPES
from app.main import create_app
from app.openings import negotiated
from app.problems import NotAcceptable
from app.settings import Settings
from app.testing import FakeClock, InMemoryJournal
from app.unfinished import unfinished_calls
from tests.conditions import until
from tests.story import Story

TENANT = "default"


@dataclass
class Gateway:
    """A gateway on a socket, and what it stands on."""

    client: httpx.AsyncClient
    journal: InMemoryJournal
    feed: Feed
    server: uvicorn.Server
    serving: asyncio.Task[None]

    async def write(self, *events: Fact | View) -> None:
        for event in events:
            if event.type in ("call.started", "call.delta"):
                await self.journal.publish_view(TENANT, event)  # pyright: ignore[reportArgumentType]
            else:
                await self.journal.append(TENANT, event)  # pyright: ignore[reportArgumentType]

    def id_of(self, place: int = -1) -> str:
        """The SSE id of a stored event."""
        return f"{self.journal.epoch}-{self.journal.records[place].sequence}"

    async def page(self, deliberation_id: str, **query: Any) -> httpx.Response:
        return await self.client.get(
            f"/deliberations/{deliberation_id}/events", params=query, headers={"Accept": "application/json"}
        )

    @asynccontextmanager
    async def watching(
        self, deliberation_id: str, last_event_id: str | None = None, **query: Any
    ) -> AsyncGenerator[AsyncGenerator[Frame, None], None]:
        headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        path = f"/deliberations/{deliberation_id}/events"
        async with asyncio.timeout(10), self.client.stream("GET", path, params=query, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            async with aclosing(frames_of(response)) as frames:
                yield frames

    async def watched(self, deliberation_id: str, last_event_id: str | None = None, **query: Any) -> list[Frame]:
        """Everything until the stream ends by itself."""
        async with self.watching(deliberation_id, last_event_id, **query) as frames:
            return [frame async for frame in frames]


async def frames_of(response: httpx.Response) -> AsyncGenerator[Frame, None]:
    decoder = SseDecoder()
    async for chunk in response.aiter_bytes():
        for frame in decoder.feed(chunk):
            yield frame


async def following(frames: AsyncIterator[Frame], count: int) -> list[Frame]:
    return [await anext(frames) for _ in range(count)]


@asynccontextmanager
async def listening(journal: InMemoryJournal | None = None, **settings: Any) -> AsyncGenerator[Gateway, None]:
    journal = journal or InMemoryJournal()
    app = create_app(Settings(**settings), journal=journal, clock=FakeClock())
    config = uvicorn.Config(app, port=0, lifespan="on", ws="none", log_config=None, timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started or serving.done())
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
        yield Gateway(client, journal, server.lifespan.state["feed"], server, serving)
    server.should_exit = True
    await serving


@pytest.fixture(scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    """One gateway for all tests that need no settings of their own."""
    async with listening() as made:
        yield made


@pytest.fixture
def story(fresh_id: str) -> Story:
    return Story(fresh_id)


def whole(story: Story) -> list[Fact | View]:
    """A deliberation from beginning to end."""
    first, second = story.agents
    return [
        story.accepted(),
        story.opened(),
        story.started(first),
        story.delta(first, 0, "re"),
        story.started(second),
        story.delta(first, 2, "d"),
        story.finished(first, "red"),
        story.delta(second, 0, "blue"),
        story.finished(second, "blue"),
        story.closed(),
        story.completed(),
    ]


def types(frames: list[Frame]) -> list[str]:
    return [frame.event if frame.data else "-" for frame in frames]


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        (None, "text/event-stream"),
        ("", "text/event-stream"),
        ("*/*", "text/event-stream"),
        ("text/*", "text/event-stream"),
        ("text/event-stream", "text/event-stream"),
        ("TEXT/Event-Stream; charset=utf-8", "text/event-stream"),
        ("application/json", "application/json"),
        ("application/json, text/plain, */*", "application/json"),
        ("application/json, text/event-stream;q=0.1", "text/event-stream"),
        ("text/event-stream;q=0, application/*", "application/json"),
        ("text/html, */*;q=0.8", "text/event-stream"),
    ],
)
def test_the_accepted_media_type_is_answered(accept: str | None, media: str) -> None:
    assert negotiated(accept) == media


@pytest.mark.parametrize("accept", ["text/html", "image/*, text/plain", "*/*;q=0", "application/json;q=0.0"])
def test_what_cannot_be_answered_is_refused(accept: str) -> None:
    with pytest.raises(NotAcceptable):
        negotiated(accept)


@pytest.mark.parametrize(
    ("text", "cursor"),
    [
        ("0", BEGINNING),
        ("ab12-7", Cursor("ab12", 7)),
        ("e-0", Cursor("e", 0)),
        ("e-" + "9" * 19, Cursor("e", 10**19 - 1)),
    ],
)
def test_a_cursor_is_read_as_it_is_written(text: str, cursor: Cursor) -> None:
    assert parse_cursor(text, "after") == cursor
    assert cursor == BEGINNING or str(cursor) == text


BAD_CURSORS = ["", "1", "00", "-", "e-", "-5", "e--5", "E-5", "e-5 ", "e-٣", "é-5", "e" * 17 + "-5", "e-" + "9" * 20]


@pytest.mark.parametrize("text", BAD_CURSORS)
def test_a_malformed_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor):
        parse_cursor(text, "after")


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
@pytest.mark.parametrize(
    ("path", "query", "headers", "status", "code"),
    [
        ("nothing-here", {}, {}, 404, "not_found"),
        ("A*", {}, {}, 404, "not_found"),
        ("x" * 10_000, {}, {}, 404, "not_found"),
        ("ID", {"after": "never"}, {}, 400, "invalid_cursor"),
        ("ID", {"after": "x" * 10_000}, {}, 400, "invalid_cursor"),
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
async def test_what_is_wrong_is_told_before_anything_opens(
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


async def test_facts_without_their_beginning_are_gone(gateway: Gateway, story: Story) -> None:
    await gateway.write(story.opened())
    assert (await gateway.page(story.id)).status_code == 410


async def test_a_log_that_is_away_refuses_before_the_stream_opens() -> None:
    async with listening(InMemoryJournal(available=False)) as gateway:
        response = await gateway.client.get("/deliberations/a/events")
        assert response.status_code == 503 and int(response.headers["retry-after"]) > 0


async def test_a_replay_from_the_beginning_is_every_stored_event_and_ends(gateway: Gateway, story: Story) -> None:
    events = whole(story)
    await gateway.write(*events)
    opened, *replayed = await gateway.watched(story.id, after="0")
    assert opened.event == "stream.opened" and opened.id is None and opened.retry_ms == 2_000
    assert opened.fields()["last"] == replayed[-1].id and opened.fields()["heartbeat_s"] == 10
    assert [frame.data.encode() for frame in replayed] == [encode(event) for event in events]
    assert types(replayed) == [event.type for event in events]
    sequences = [int(str(frame.id).partition("-")[2]) for frame in replayed]
    assert sequences == sorted(set(sequences))


async def test_the_answer_forbids_buffering(gateway: Gateway, story: Story) -> None:
    await gateway.write(*whole(story))
    response = await gateway.client.get(f"/deliberations/{story.id}/events?after=0")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert response.headers["x-accel-buffering"] == "no"


async def test_a_cursor_goes_on_after_it_and_at_the_end_there_is_nothing(gateway: Gateway, story: Story) -> None:
    await gateway.write(*whole(story))
    _, *everything = await gateway.watched(story.id, after="0")
    for place, frame in enumerate(everything[:-1]):
        assert (await gateway.watched(story.id, frame.id))[1:] == everything[place + 1 :]
        assert (await gateway.watched(story.id, after=frame.id))[1:] == everything[place + 1 :]
    at_the_end = {"Last-Event-ID": str(everything[-1].id)}
    response = await gateway.client.get(f"/deliberations/{story.id}/events", headers=at_the_end)
    assert response.status_code == 204 and response.content == b""


async def test_the_header_beats_the_query(gateway: Gateway, story: Story) -> None:
    await gateway.write(*whole(story))
    _, *everything = await gateway.watched(story.id, after="0")
    _, *rest = await gateway.watched(story.id, everything[6].id, after="0")
    assert rest == everything[7:]


async def test_replay_then_live_without_gap(gateway: Gateway, story: Story) -> None:
    events = whole(story)
    await gateway.write(*events[:4])
    async with gateway.watching(story.id, after="0") as frames:
        assert types(await following(frames, 5)) == ["stream.opened", *(event.type for event in events[:4])]
        for event in events[4:]:
            await gateway.write(event)
            [frame] = await following(frames, 1)
            assert frame.data.encode() == encode(event) and frame.id == gateway.id_of()
        assert [frame async for frame in frames] == []


async def test_without_a_cursor_a_snapshot_comes_first_then_what_is_new(gateway: Gateway, story: Story) -> None:
    events = whole(story)
    await gateway.write(*events[:6])
    async with gateway.watching(story.id) as frames:
        opened, snapshot, moved = await following(frames, 3)
        assert [opened.event, snapshot.event, moved.data] == ["stream.opened", "deliberation.snapshot", ""]
        assert opened.id is None and snapshot.id is None and moved.id == gateway.id_of()
        told = snapshot.fields()
        assert told["deliberation"] == (await gateway.client.get(f"/deliberations/{story.id}")).json()
        assert told["unfinished"] == [
            {"call_id": "s1-dev-001", "agent_id": "dev-001", "attempt": 1, "text": "red", "offset": 3},
            {"call_id": "s1-dev-002", "agent_id": "dev-002", "attempt": 1, "text": "", "offset": 0},
        ]
        await gateway.write(*events[6:])
        assert types([frame async for frame in frames]) == [event.type for event in events[6:]]


async def test_without_a_cursor_what_has_ended_is_told_and_ends(gateway: Gateway, story: Story) -> None:
    await gateway.write(*whole(story))
    opened, snapshot, _, end = await gateway.watched(story.id)
    assert snapshot.fields()["deliberation"]["status"] == "completed" and snapshot.fields()["unfinished"] == []
    assert end.event == "deliberation.completed" and end.id == opened.fields()["last"]


async def test_nothing_is_shown_after_the_terminal_event(gateway: Gateway, story: Story) -> None:
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
async def test_filters_hold_for_stream_and_pages_and_the_cursor_moves_past_what_they_drop(
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


async def test_the_cursor_moves_past_live_events_that_are_filtered_out(gateway: Gateway, story: Story) -> None:
    await gateway.write(story.accepted(), story.opened())
    async with gateway.watching(story.id, gateway.id_of(), deltas="false") as frames:
        await following(frames, 1)
        for offset in range(20):
            await gateway.write(story.delta("dev-001", offset, "x"))
        moves = [await anext(frames)]
        while moves[-1].id != gateway.id_of():
            moves.append(await anext(frames))
        assert all(move.data == "" for move in moves) and len(moves) <= 20


@pytest.mark.parametrize(
    ("cursor", "reason"), [("foreign-3", "epoch"), ("memory-999999", "epoch"), ("memory-3", "retention")]
)
async def test_a_cursor_that_cannot_be_followed_is_told_and_a_snapshot_follows(cursor: str, reason: str) -> None:
    journal, story, old = InMemoryJournal(), Story("new"), Story("old")
    async with listening(journal) as gateway:
        await gateway.write(*whole(old))
        journal.forget(len(whole(old)))
        await gateway.write(*whole(story)[:4])
        async with gateway.watching(story.id, cursor) as frames:
            opened, gap, snapshot, moved = await following(frames, 4)
            assert types([opened, gap, snapshot]) == ["stream.opened", "stream.gap", "deliberation.snapshot"]
            told = gap.fields()
            assert (told["from"], told["to"], told["reason"]) == (cursor, gateway.id_of(), reason)
            assert moved.id == gateway.id_of() and gap.id is None
            await gateway.write(story.finished("dev-001"))
            assert types(await following(frames, 1)) == ["call.finished"]
        page = (await gateway.page(story.id, after=cursor)).json()
        assert [item["type"] for item in page["items"]] == ["stream.gap", "deliberation.snapshot"]
        assert page["next"] == gateway.id_of() and not page["ended"]


async def test_the_beginning_is_never_a_gap() -> None:
    journal, story = InMemoryJournal(), Story("new")
    async with listening(journal) as gateway:
        await gateway.write(*whole(Story("old")), *whole(story))
        journal.forget(len(whole(story)))
        for cursor in ("0", "memory-0", f"memory-{len(whole(story))}"):
            assert types(await gateway.watched(story.id, cursor))[1:] == [event.type for event in whole(story)]


@pytest.mark.parametrize("limit", [1, 3, 11, 200])
async def test_pages_hold_every_event_as_it_is_stored_with_its_cursor(
    gateway: Gateway, story: Story, limit: int
) -> None:
    events = whole(story)
    await gateway.write(*events)
    items: list[dict[str, Any]] = []
    after, ended = "0", False
    while not ended:
        response = await gateway.page(story.id, after=after, limit=limit)
        page = response.json()
        assert response.headers["content-type"] == "application/json" and len(page["items"]) <= limit
        items += page["items"]
        after, ended = page["next"], page["ended"]
    assert [json.loads(encode(event)) for event in events] == [
        {key: value for key, value in item.items() if key != "id"} for item in items
    ]
    assert [item["id"] for item in items] == [frame.id for frame in await gateway.watched(story.id, after="0")][1:]
    assert (await gateway.page(story.id, after=after)).json() == {"items": [], "next": after, "ended": True}


async def test_a_page_of_what_is_under_way_can_be_asked_for_again(gateway: Gateway, story: Story) -> None:
    events = whole(story)
    await gateway.write(*events[:2])
    page = (await gateway.page(story.id)).json()
    assert len(page["items"]) == 2 and not page["ended"]
    assert (await gateway.page(story.id, after=page["next"])).json() == {
        "items": [],
        "next": page["next"],
        "ended": False,
    }
    await gateway.write(events[2])
    assert len((await gateway.page(story.id, after=page["next"])).json()["items"]) == 1


async def test_a_viewer_that_leaves_gives_back_its_seat_and_its_watch_and_stops_nothing(
    gateway: Gateway, story: Story
) -> None:
    await gateway.write(*whole(story)[:4])
    stored = len(gateway.journal.records)
    async with gateway.feed.watch(TENANT, story.id) as watch:
        async with gateway.watching(story.id) as frames:
            await following(frames, 3)
            await until(lambda: watch.viewers == 2)
            assert gateway.feed.streams == 1
        await until(lambda: watch.viewers == 1 and gateway.feed.streams == 0)
    assert len(gateway.journal.records) == stored


async def test_streams_of_one_client_are_bounded() -> None:
    story = Story("a")
    async with listening(streams_per_client_max=2) as gateway:
        await gateway.write(*whole(story)[:2])
        async with gateway.watching("a") as first, gateway.watching("a") as second:
            await following(first, 1)
            await following(second, 1)
            refused = await gateway.client.get("/deliberations/a/events")
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
            assert int(refused.headers["retry-after"]) > 0
            assert (await gateway.page("a")).status_code == 200
        await until(lambda: gateway.feed.streams == 0)
        async with gateway.watching("a") as again:
            await following(again, 1)


async def test_a_lost_log_leaves_the_stream_open_and_is_caught_up_with() -> None:
    story = Story("a")
    events = whole(story)
    async with listening(heartbeat_s=0.02) as gateway:
        await gateway.write(*events[:3])
        path = "/deliberations/a/events?after=0"
        async with asyncio.timeout(10), gateway.client.stream("GET", path) as response:
            chunks = response.aiter_bytes()
            seen = await anext(chunks)
            gateway.journal.available = False
            gateway.journal.reconnect()
            while not seen.endswith(b": \n\n"):
                seen += await anext(chunks)
            gateway.journal.available = True
            await gateway.write(*events[3:])
            gateway.journal.reconnect()
            async for chunk in chunks:
                seen += chunk
        frames = SseDecoder().feed(seen)
        assert types(frames) == ["stream.opened", *(event.type for event in events)]


async def test_draining_tells_viewers_to_reconnect_and_the_server_ends() -> None:
    story = Story("a")
    async with listening() as gateway:
        await gateway.write(*whole(story)[:2])
        async with gateway.watching("a", after="0") as frames:
            await following(frames, 3)
            gateway.server.should_exit = True  # as uvicorn's own handler of SIGTERM does
            [farewell] = [frame async for frame in frames]
            assert farewell.event == "stream.reconnect" and farewell.fields()["reason"] == "draining"
            assert farewell.id is None and 1_000 <= (farewell.retry_ms or 0) <= 3_000
        async with asyncio.timeout(4):
            await gateway.serving


async def test_a_drained_feed_tells_viewers_at_once() -> None:
    async with listening() as gateway:
        await gateway.write(*whole(Story("a"))[:2])
        async with gateway.watching("a", after="0") as frames:
            await following(frames, 3)
            gateway.feed.drain()
            assert types([frame async for frame in frames]) == ["stream.reconnect"]


async def test_an_old_stream_is_told_to_reconnect() -> None:
    async with listening(stream_age_max_s=0.05) as gateway:
        await gateway.write(*whole(Story("a"))[:2])
        *_, farewell = await gateway.watched("a", after="0")
        assert farewell.event == "stream.reconnect" and farewell.fields()["reason"] == "max_age"


async def test_a_foreign_log_ends_the_stream_so_that_the_next_one_tells_the_gap() -> None:
    story, anew = Story("a"), InMemoryJournal(epoch="anew")
    async with listening() as gateway:
        journal = gateway.journal
        await gateway.write(*whole(story)[:4])
        async with gateway.watching("a", after="0") as frames:
            *_, last = await following(frames, 5)
            await anew.append(TENANT, story.accepted())
            journal.epoch, journal.records[:], journal._last_sequence = anew.epoch, anew.records, 1  # pyright: ignore[reportPrivateUsage]
            journal.reconnect()
            assert [frame async for frame in frames] == []
        async with gateway.watching("a", last.id) as frames:
            assert types(await following(frames, 3)) == ["stream.opened", "stream.gap", "deliberation.snapshot"]
            await gateway.write(story.opened())
            assert types(await following(frames, 2)) == ["-", "stage.opened"]


async def test_a_stalled_viewer_is_dropped_and_holds_nothing() -> None:
    story = Story("a", size=1)
    async with listening(stream_send_timeout_s=0.3) as gateway:
        await gateway.write(story.accepted(), story.opened())
        port = gateway.client.base_url.port
        async with gateway.feed.watch(TENANT, "a") as watch:
            with socket.create_connection(("127.0.0.1", port)) as stalled:
                stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                stalled.sendall(b"GET /deliberations/a/events?after=0 HTTP/1.1\r\nHost: g\r\n\r\n")
                await until(lambda: watch.viewers == 2)
                for offset in range(200):
                    await gateway.write(story.delta("dev-001", offset, "x" * 60_000))
                    await asyncio.sleep(0)
                await until(lambda: watch.viewers == 1 and gateway.feed.streams == 0)


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        ([], []),
        (["started 1"], [(1, "", 0)]),
        (["started 1", "1 0 ab", "1 2 c"], [(1, "abc", 3)]),
        (["1 0 ab", "1 2 c"], [(1, "abc", 3)]),
        (["started 1", "1 0 ab", "started 2"], [(2, "", 0)]),
        (["started 1", "1 0 ab", "started 2", "1 2 c", "2 0 x"], [(2, "x", 1)]),
        (["1 0 ab", "1 5 f", "1 6 g"], [(1, "fg", 7)]),
        (["1 0 abc", "1 0 ab", "1 2 x"], [(1, "abx", 3)]),
        (["1 0 aé𝄞", "1 3 !"], [(1, "aé𝄞!", 4)]),
    ],
)
def test_unfinished_texts_are_the_newest_attempts_by_offset(
    views: list[str], expected: list[tuple[int, str, int]]
) -> None:
    story = Story("a")
    state = fold([(1, story.accepted()), (2, story.opened())])
    assert state is not None
    told: list[Any] = []
    for view in views:
        words = view.split()
        if words[0] == "started":
            told.append(story.started("dev-001", int(words[1])))
        else:
            told.append(story.delta("dev-001", int(words[1]), words[2], int(words[0])))
    assert [(each.attempt, each.text, each.offset) for each in unfinished_calls(state, told)] == expected


def test_no_text_is_unfinished_once_its_outcome_or_the_end_is_there() -> None:
    story = Story("a")
    views = [story.delta(agent, 0, "x") for agent in story.agents]
    facts: list[Any] = [story.accepted(), story.opened(), story.finished("dev-001")]
    state = fold(enumerate(facts, 1))
    assert state is not None
    assert [each.agent_id for each in unfinished_calls(state, views)] == ["dev-002"]
    closed = story.closed().model_copy(update={"seen": ("s1-dev-001",), "reason": "quorum"})
    for more in ([closed], [story.completed()]):
        state = fold(enumerate([*facts, *more], 1))
        assert state is not None and unfinished_calls(state, views) == ()
