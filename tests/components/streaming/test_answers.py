import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from app.api.event_schemas import UnfinishedCall
from app.deliberation.facts import CallDelta, Fact, View
from app.deliberation.ports import Record
from app.sse import Frame
from app.streaming.answers import AnswerFrames, finished_answer, growing_answer, unfinished_answer
from app.streaming.frames import EventFrame, frame_of
from tests.components.routes.listening import TENANT, Gateway, following, listening
from tests.fakes import InMemoryJournal
from tests.story import Story

ANSWER = 'Grüße "x" \\ \n\t😀 end'
RAW = json.dumps({"reasoning": 'say "answer"', "answer": ANSWER, "confidence": 7})
CRITIQUE = json.dumps({"issues": [], "verdict": "accept"})
SIZES = [1, 2, 3, 7, 1_000]


@pytest.fixture(scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with listening() as made:
        yield made


def growing(story: Story, agent: str, raw: str, size: int) -> list[CallDelta]:
    return [story.delta(agent, at, raw[at : at + size]) for at in range(0, len(raw), size)]


def events(story: Story, size: int) -> list[Fact | View]:
    first, second = story.agents
    return [
        story.accepted(),
        story.opened(),
        story.started(first),
        story.started(second),
        *growing(story, first, RAW, size),
        *growing(story, second, CRITIQUE, size),
        story.finished(first, RAW),
        story.finished(second, CRITIQUE),
        story.closed(),
        story.completed(),
    ]


def text_of(frames: list[Frame], agent: str, text: str = "") -> str:
    for frame in frames:
        fields = frame.fields() if frame.event == "call.delta" else {}
        if fields.get("agent_id") == agent:
            assert fields["offset"] == len(text) and fields["text"]
            text += str(fields["text"])
    return text


@pytest.mark.parametrize("raw", [RAW, json.dumps({"code": ANSWER}), json.dumps({"answer": ANSWER}, ensure_ascii=False)])
def test_an_answer_only_grows_while_its_output_does(raw: str) -> None:
    found = [growing_answer(raw[:end]) for end in range(len(raw) + 1)]
    assert all(later.startswith(earlier) for earlier, later in pairwise(found))
    assert found[-1] == finished_answer(raw) == ANSWER


@pytest.mark.parametrize(
    ("raw", "answer"),
    [(CRITIQUE, None), ("no JSON", None), ('{"answer": {"a": [1, "é"]}}', '{"a":[1,"é"]}'), ("[1]", None), ("", None)],
)
def test_outputs_without_a_text_have_no_growing_answer(raw: str, answer: str | None) -> None:
    assert growing_answer(raw) == ""
    assert finished_answer(raw) == answer


@pytest.mark.parametrize("size", SIZES)
async def test_deltas_rebuild_the_answer_and_other_outputs_come_whole(
    gateway: Gateway, story: Story, size: int
) -> None:
    await gateway.write(*events(story, size))
    first, second = story.agents
    frames = await gateway.watched(story.id, after="0", text="answer")
    assert text_of(frames, first) == ANSWER and text_of(frames, second) == ""
    finished = {
        frame.fields()["agent_id"]: frame.fields()["text"] for frame in frames if frame.event == "call.finished"
    }
    assert finished == {first: ANSWER, second: CRITIQUE}
    page = (await gateway.page(story.id, after="0", text="answer", limit=1_000)).json()
    assert [item["text"] for item in page["items"] if item["type"] == "call.delta"] == [
        frame.fields()["text"] for frame in frames if frame.event == "call.delta"
    ]


async def test_a_viewer_resumes_within_an_answer_at_every_delta(gateway: Gateway, story: Story) -> None:
    written = events(story, 9)
    await gateway.write(*written)
    ids = [gateway.id_of(place) for place in range(-len(written), 0)]
    first, _ = story.agents
    for place, cursor in enumerate(ids[:-1]):
        raw = "".join(
            each.text for each in written[: place + 1] if isinstance(each, CallDelta) and each.agent_id == first
        )
        frames = await gateway.watched(story.id, cursor, text="answer")
        assert text_of(frames, first, growing_answer(raw)) == ANSWER


async def test_a_snapshot_has_the_answer_so_far_and_live_deltas_go_on_from_it(gateway: Gateway, story: Story) -> None:
    written, first = events(story, 9), story.agents[0]
    await gateway.write(*written[:9])
    async with gateway.watching(story.id, text="answer") as frames:
        _, snapshot, _ = await following(frames, 3)
        (begun, _) = snapshot.fields()["unfinished"]
        assert begun["text"] and begun["offset"] == len(begun["text"]) and ANSWER.startswith(begun["text"])
        await gateway.write(*written[9:])
        assert text_of([frame async for frame in frames], first, begun["text"]) == ANSWER


async def test_both_kinds_of_stream_and_both_texts_agree(gateway: Gateway, story: Story) -> None:
    await gateway.write(*events(story, 9))
    raw = await gateway.watched(story.id, after="0", text="raw")
    assert text_of(raw, story.agents[0]) == RAW
    async with gateway.watching_several(story.id, deltas="true", after="0", text="answer") as several:
        assert text_of([frame async for frame in several], story.agents[0]) == ANSWER


async def answering(story: Story) -> tuple[InMemoryJournal, list[EventFrame]]:
    journal = InMemoryJournal()
    for delta in growing(story, story.agents[0], RAW, 5):
        await journal.publish_view(TENANT, delta)
    return journal, [frame for record in journal.records if (frame := frame_of("e", record)) is not None]


async def test_kept_answers_are_bounded_by_their_bytes(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, frames = await answering(story)
    answers = AnswerFrames(journal)
    made = [frame for frame in await answers.of(TENANT, frames, takes) if frame.data]
    monkeypatch.setattr("app.streaming.answers.FRAMES_BYTES_MAX", sum(len(frame.data) for frame in made[-3:]))
    answers = AnswerFrames(journal)
    await answers.of(TENANT, frames, takes)
    kept = [frame for frame in answers._frames.values() if frame.data]  # pyright: ignore[reportPrivateUsage]
    assert kept == made[-3:]
    assert await AnswerFrames(journal).of(TENANT, frames, takes) == await answers.of(TENANT, frames, takes)


async def test_a_tenants_read_of_the_log_holds_up_no_other_tenant(story: Story) -> None:
    journal, frames = await answering(story)
    reading, goes_on = asyncio.Event(), asyncio.Event()

    class SlowJournal(InMemoryJournal):
        async def read(self, *_: Any) -> AsyncIterator[Record]:
            reading.set()
            await goes_on.wait()
            for record in journal.records:
                yield record

    answers = AnswerFrames(SlowJournal())
    async with asyncio.TaskGroup() as group:
        slow = group.create_task(answers.of("acme", frames[3:], takes))
        await reading.wait()
        assert await answers.of("globex", frames, takes) == await AnswerFrames(journal).of("globex", frames, takes)
        assert not slow.done()
        goes_on.set()


async def test_an_attempt_without_its_beginning_adds_no_pieces(story: Story) -> None:
    journal, first = InMemoryJournal(), story.agents[0]
    for delta in growing(story, first, RAW, 5)[3:]:
        await journal.publish_view(TENANT, delta)
    frames = [frame for record in journal.records if (frame := frame_of("e", record)) is not None]
    assert {frame.data for frame in await AnswerFrames(journal).of(TENANT, frames, takes)} == {b""}
    cut = UnfinishedCall(call_id="c", agent_id="a", attempt=1, text='"answer": "x', offset=40)
    assert unfinished_answer(cut).text == "" and unfinished_answer(cut).offset == 0


async def test_a_new_attempt_begins_its_answer_again(gateway: Gateway, story: Story) -> None:
    first = story.agents[0]
    again = [story.delta(first, at, RAW[at : at + 30], attempt=2) for at in range(0, len(RAW), 30)]
    opening = [story.accepted(), story.opened(), story.started(first), story.delta(first, 0, RAW[:50])]
    await gateway.write(*opening, story.started(first, attempt=2), *again, story.completed())
    frames = await gateway.watched(story.id, after="0", text="answer")
    second = [frame for frame in frames if frame.event == "call.delta" and frame.fields()["attempt"] == 2]
    assert text_of(second, first) == ANSWER


def takes(frame: EventFrame) -> bool:
    return True
