import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import httpx
import pytest

from app.client import (
    AnyEvent,
    EventStream,
    Frame,
    MultiplexedStream,
    Retry,
    StreamLost,
    StreamRefused,
    Texts,
    TextsOfSeveral,
    UnknownEvent,
    Waits,
)
from app.client.events import event_of
from app.client.stream import Follower
from app.deliberation.facts import CallDelta, CallFinished
from tests.components.client.scripted_streams import NAMES, ScriptedStream, fixture, scripted
from tests.components.routes.listening import listening, whole
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.story import Story

QUICK = Waits(first_s=0.001, idle_s=5.0, timeout_s=5.0)


def text_fields(texts: Texts | TextsOfSeveral) -> dict[str, dict[str, Any]]:
    if isinstance(texts, TextsOfSeveral):
        return {deliberation_id: text_fields(texts[deliberation_id]) for deliberation_id in texts}
    found = {call_id: asdict(text) for call_id, text in texts.items()}
    return {call_id: {k: v for k, v in text.items() if not k.endswith("_id")} for call_id, text in found.items()}


@asynccontextmanager
async def following(name: str) -> AsyncGenerator[tuple[ScriptedStream, EventStream | MultiplexedStream], None]:
    script = fixture(name)
    options: dict[str, Any] = {name: script[name] for name in ("after", "deltas") if name in script} | {"waits": QUICK}
    async with scripted(script) as (served, url), httpx.AsyncClient(base_url=url) as http, asyncio.timeout(10):
        several = MultiplexedStream(http, script["of"], **options) if "of" in script else None
        async with several or EventStream(http, "d-1", **options) as stream:
            yield served, stream


@asynccontextmanager
async def refused_as(expected: dict[str, Any] | None) -> AsyncGenerator[None, None]:
    refused = None
    try:
        yield
    except StreamRefused as exc:
        refused = {"status": exc.response.status_code, "code": exc.problem and exc.problem.code}
    assert refused == expected


@pytest.mark.parametrize("name", NAMES)
async def test_yields_every_event_once_and_in_order_despite_faults(name: str) -> None:
    script, received = fixture(name), list[list[str | None]]()
    async with following(name) as (served, stream):
        async with refused_as(script.get("refused")):
            async for frame in stream.frames():
                received.append([frame.id, frame.event])
        assert received == script["events"]
        assert served.asked == served.expected
        assert stream.duplicates == script.get("duplicates", 0)
        for (before_s, after_s), least_ms in zip(pairwise(served.at_s), script.get("waits_ms", ()), strict=False):
            assert after_s - before_s >= least_ms / 1_000


@pytest.mark.parametrize("name", NAMES)
async def test_rebuilds_every_text_despite_faults(name: str) -> None:
    script, unknown = fixture(name), list[str]()
    async with following(name) as (_, stream):
        async with refused_as(script.get("refused")):
            async for event in stream:
                if isinstance(event, UnknownEvent):
                    unknown.append(event.type)
        assert text_fields(stream.texts) == script["texts"]
    assert unknown == script.get("unknown", [])


@pytest.mark.parametrize(
    ("retry_ms", "attempt", "retry_after_s", "chance", "delay_s"),
    [
        (None, 1, None, 0.0, 1.0),
        (None, 3, None, 0.0, 4.0),
        (None, 99, None, 0.0, 30.0),
        (None, 1, None, 0.5, 1.25),
        (200, 4, None, 0.0, 1.6),
        (200, 2, 7.0, 0.0, 7.0),
        (45_000, 9, None, 0.0, 45.0),
    ],
)
def test_the_gateway_sets_the_minimum_delay(
    retry_ms: int | None, attempt: int, retry_after_s: float | None, chance: float, delay_s: float
) -> None:
    follower = Follower(Waits(first_s=1.0, most_s=30.0))
    assert not follower.feed(Frame("message", "", retry_ms=retry_ms))
    assert follower.delay_s(attempt, retry_after_s, chance) == pytest.approx(delay_s)


async def test_retry_after_of_a_refusal_sets_the_delay() -> None:
    retries: list[Retry] = []

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503, headers={"Retry-After": "7"})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://gateway") as http:
        waits = Waits(first_s=0.001, timeout_s=None)
        async with EventStream(http, "d-1", waits=waits, on_retry=retries.append) as stream:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(aiter(stream))
    assert [retry.attempt for retry in retries] == [1]
    assert 7.0 <= retries[0].delay_s <= 10.5
    assert retries[0].reason == "the gateway answered 503"


@pytest.mark.parametrize("answers", [True, False])
async def test_gives_up_after_the_timeout(answers: bool) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if answers:
            return httpx.Response(502)
        raise httpx.ConnectError("refused")

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://gateway") as http:
        async with EventStream(http, "d-1", waits=Waits(first_s=0.001, timeout_s=0.01)) as stream:
            with pytest.raises(StreamLost) as lost:
                await anext(aiter(stream))
    assert (lost.value.response is not None) == answers


async def test_a_stream_resumes_at_another_streams_cursor() -> None:
    story = Story("d-1")
    async with listening() as gateway:
        await gateway.write(*whole(story)[:8])
        async with EventStream(gateway.client, "d-1", after="0", waits=QUICK) as first:
            seen = [event.type async for event in _until(first, "call.finished")]
        await gateway.write(*whole(story)[8:])
        async with EventStream(gateway.client, "d-1", after=first.cursor, waits=QUICK) as second:
            seen += [event.type async for event in second if not event.type.startswith("stream.")]
    assert seen == ["stream.opened", *(event.type for event in whole(story))]
    assert {call: text.text for call, text in second.texts.items()} == {"s1-dev-002": "blue"}


async def test_follows_several_deliberations_to_the_last_end_with_one_cursor() -> None:
    stories, retries = {"d-1": Story("d-1"), "d-2": Story("d-2")}, list[Retry]()
    expected = {deliberation_id: [event.type for event in whole(story)] for deliberation_id, story in stories.items()}
    seen: dict[str, list[str]] = {deliberation_id: [] for deliberation_id in stories}
    async with listening() as gateway:
        await gateway.write(*whole(stories["d-2"])[:5], *whole(stories["d-1"]))
        stream = MultiplexedStream(
            gateway.client, stories, after="0", deltas=True, waits=QUICK, on_retry=retries.append
        )
        async with stream, asyncio.timeout(10):
            async for event in stream:
                if isinstance(event, UnknownEvent) or event.deliberation_id is None:
                    continue
                seen[event.deliberation_id].append(event.type)
                if seen["d-1"] == expected["d-1"] and len(seen["d-2"]) == 5:
                    await gateway.write(*whole(stories["d-2"])[5:])
    assert (seen, retries) == (expected, [])
    assert {each: stream.texts[each]["s1-dev-002"].text for each in stories} == {"d-1": "blue", "d-2": "blue"}


async def test_follows_a_tenants_new_deliberations() -> None:
    async with listening() as gateway:
        await gateway.write(*whole(Story("d-1")))
        async with MultiplexedStream(gateway.client, statuses=["in_progress"], waits=QUICK) as stream:
            events = aiter(stream)
            assert [(await anext(events)).type for _ in range(2)] == ["stream.opened", "deliberations.snapshot"]
            await gateway.write(*whole(Story("d-2")))
            seen = [event async for event in _until(stream, "deliberation.completed")]
            assert stream.texts["d-2"]["s1-dev-002"].text == "blue"
    shown = [event.type for event in whole(Story("d-2")) if event.type != "call.delta"]
    # The status filter passes a deliberation from the event that sets it in progress.
    assert [event.type for event in seen] == [each for each in shown if each != "deliberation.accepted"]


async def _until(stream: EventStream | MultiplexedStream, kind: str) -> AsyncGenerator[AnyEvent, None]:
    async for event in stream:
        yield event
        if event.type == kind:
            return


async def test_leaving_the_context_only_closes_the_connection() -> None:
    async with listening() as gateway:
        await gateway.write(*whole(Story("d-1"))[:3])
        async with EventStream(gateway.client, "d-1", waits=QUICK) as stream:
            assert (await anext(aiter(stream))).type == "stream.opened"
            assert gateway.feed.streams == 1
        await until(lambda: gateway.feed.streams == 0)
        assert [record.subject.rpartition(".")[2] for record in gateway.journal.records][-1] == "started"


async def test_reconnects_after_a_gateway_drains() -> None:
    story, journal = Story("d-1"), InMemoryJournal()
    async with listening(journal) as gateway:
        await gateway.write(*whole(story)[:5])
        async with EventStream(gateway.client, "d-1", after="0", waits=QUICK) as stream:
            events = aiter(stream)
            seen = [(await anext(events)).type for _ in range(6)]
            gateway.feed.drain()
            assert (await anext(events)).type == "stream.reconnect"
    assert seen == ["stream.opened", *(event.type for event in whole(story)[:5])]
    assert stream.cursor == gateway.id_of(4)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([(1, 0, "ab"), (1, 2, "cd")], "abcd"),
        ([(1, 0, "ab"), (1, 0, "ab"), (1, 2, "cd"), (1, 1, "bc")], "abcd"),
        ([(1, 0, "abc"), (1, 1, "bcde")], "abcde"),
        ([(1, 2, "cd"), (1, 4, "ef")], "cdef"),
        ([(1, 0, "old"), (2, 0, "new")], "new"),
        ([(2, 0, "new"), (1, 3, "late")], "new"),
    ],
)
def test_texts_place_pieces_by_their_offset(pieces: list[tuple[int, int, str]], text: str) -> None:
    texts = Texts()
    delta = next(event for event in whole(Story("d-1")) if isinstance(event, CallDelta))
    for attempt, offset, piece in pieces:
        texts.apply(delta.model_copy(update={"attempt": attempt, "offset": offset, "text": piece}))
    assert [each.text for each in texts.values()] == [text]


@pytest.mark.parametrize("streamed", ["", "bl", "something else", "blue and more"])
def test_the_recorded_text_replaces_the_streamed_one(streamed: str) -> None:
    texts, events = Texts(), whole(Story("d-1"))
    delta = next(event for event in events if isinstance(event, CallDelta))
    finished = next(event for event in events if isinstance(event, CallFinished) and event.call_id == delta.call_id)
    texts.apply(delta.model_copy(update={"offset": 0, "text": streamed}))
    texts.apply(finished)
    assert texts[delta.call_id].text == finished.text


@pytest.mark.parametrize("data", ["", "{", "[]", '{"type":"call.delta"}', '{"type":"agent.pondered","depth":3}'])
def test_yields_unknown_events_unchanged(data: str) -> None:
    event = event_of(Frame("call.delta", data))
    assert isinstance(event, UnknownEvent)
    assert event.type == "call.delta"
    assert event.fields == (json.loads(data) if data.startswith('{"') else {})
