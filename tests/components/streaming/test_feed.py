import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.deliberation.facts import Fact, View
from app.deliberation.ports import Record, StreamState
from app.log.paging import of_deliberation
from app.log.text_viewers import SUBJECT, keys_of
from app.streaming.feed import READS_AT_ONCE, Feed, RingLimits, Viewer, Watch
from app.streaming.frames import VIEW_TYPES, EventFrame
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.story import Story

TENANT = "default"
A = of_deliberation(TENANT, "a")
SMALL = RingLimits(frames_max=4, bytes_max=100_000, page_records=3, linger_s=0, retry_s=0)


@dataclass
class LossyJournal(InMemoryJournal):
    live: bool = True
    opened: int = 0
    reads: int = field(default=0)

    async def subscribe(self, patterns: Sequence[str], deliver: Callable[[Record], None]):  # noqa: ANN201 -- as inherited
        self.opened += 1
        await asyncio.sleep(0)

        def through(record: Record) -> None:
            if self.live:
                deliver(record)

        return await super().subscribe(patterns, through)

    async def read(self, pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        self.reads += 1
        await asyncio.sleep(0)
        async for record in super().read(pattern, after, limit=limit):
            yield record
            await asyncio.sleep(0)

    async def state(self, subjects: str = "deliberations.>") -> StreamState:
        state = await super().state()
        await asyncio.sleep(0)
        return state

    @property
    def subscriptions(self) -> int:
        return len(self._subscriptions)

    def lose(self) -> None:
        self.live = False

    def heal(self) -> None:
        self.reconnect()
        self.live = True


async def begun(watch: Watch) -> Watch:
    await until(lambda: watch.ring is not None)
    return watch


async def gathered(viewer: Viewer, count: int) -> list[EventFrame]:
    frames: list[EventFrame] = []
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(5):
        while len(frames) < count:
            frames += await viewer.batch(loop.time() + 5)
    return frames


async def write(journal: InMemoryJournal, *events: Fact | View) -> list[int]:
    for event in events:
        if event.type in VIEW_TYPES:
            await journal.publish_view(TENANT, event)  # pyright: ignore[reportArgumentType]
        else:
            await journal.append(TENANT, event)  # pyright: ignore[reportArgumentType]
    return [record.sequence for record in journal.records[-len(events) :]]


@pytest.mark.parametrize("turns", range(6))
async def test_frames_dropped_from_the_ring_during_a_read_of_the_log_are_still_delivered(turns: int) -> None:
    journal, story = LossyJournal(), Story("a")
    await write(journal, story.accepted())
    async with Feed(journal, limits=SMALL) as feed, feed.watch(A) as watch:
        reading = asyncio.create_task(gathered(feed.viewer(await begun(watch), 0), 10))
        for _ in range(turns):
            await asyncio.sleep(0)
        await write(journal, *(story.delta("dev-001", offset, "x") for offset in range(9)))
        assert [each.sequence for each in await reading] == list(range(1, 11))


async def test_viewers_share_one_subscription_that_closes_after_the_last_one_left() -> None:
    journal, story = LossyJournal(), Story("a")
    await write(journal, story.accepted())
    async with Feed(journal, limits=SMALL) as feed:
        async with feed.watch(A) as first, feed.watch(A) as second:
            await begun(first)
            assert first is second and first.viewers == 2 and journal.subscriptions == 1
        await until(lambda: feed.watched == 0 and journal.subscriptions == 0)


@dataclass
class Held(InMemoryJournal):
    """A journal that answers one `state` at each release of `may_read`."""

    asked: int = 0
    read_states: int = 0
    may_read: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def state(self, subjects: str = "deliberations.>") -> StreamState:
        self.asked += 1
        await self.may_read.acquire()
        self.read_states += 1
        return await super().state(subjects)

    def have_read(self, states: int) -> bool:
        return self.read_states == states


async def test_tenants_take_turns_at_reads_of_the_log() -> None:
    journal = Held()
    async with Feed(journal, limits=SMALL) as feed, AsyncExitStack() as watches:

        async def begin(tenant: str, id: str) -> Watch:
            return await watches.enter_async_context(feed.watch(of_deliberation(tenant, id)))

        many = [await begin("many", f"m{number}") for number in range(3 * READS_AT_ONCE)]
        await until(lambda: journal.asked == READS_AT_ONCE)
        one = await begin("one", "o")
        while one.ring is None:
            journal.may_read.release()
            await until(partial(journal.have_read, 1 + journal.read_states))
        assert sum(watch.ring is not None for watch in many) == READS_AT_ONCE, "those that had begun"


async def test_texts_are_leased_when_a_watch_wants_them() -> None:
    journal, heard, texts = LossyJournal(), list[bytes](), keys_of(TENANT, ("a",))
    await journal.listen(SUBJECT, heard.append)
    async with Feed(journal, limits=SMALL) as feed:
        async with feed.watch(A):
            assert heard == []
            async with feed.watch(A, texts):
                assert heard == [b"default.a"]


@pytest.mark.parametrize("change", ["epoch", "tail"])
async def test_a_replaced_log_ends_the_watch_and_the_next_viewer_gets_a_new_one(change: str) -> None:
    journal, story = LossyJournal(), Story("a")
    await write(journal, story.accepted(), story.opened())
    async with Feed(journal, limits=SMALL) as feed, feed.watch(A) as watch:
        await begun(watch)
        if change == "epoch":
            journal.epoch = "another"
        else:
            journal.records.pop()
            journal._last_sequence -= 1  # pyright: ignore[reportPrivateUsage] -- a crash took what was not on disk yet
        journal.heal()
        await until(lambda: watch.replaced and journal.subscriptions == 0)
        async with feed.watch(A) as anew:
            await begun(anew)
            assert anew is not watch and anew.epoch == journal.epoch
    assert journal.subscriptions == 0


@pytest.mark.parametrize(
    ("before", "during", "expected"),
    [
        ([], [], False),
        (["fact"], [], True),
        (["view"], [], False),
        ([], ["fact"], True),
        ([], ["view"], False),
        ([], ["view", "fact"], True),
        ([], ["missed"], True),
    ],
)
async def test_changed_detects_facts_stored_before_and_during_the_call(
    before: list[str], during: list[str], expected: bool
) -> None:
    journal, story = LossyJournal(), Story("a")
    events: dict[str, Fact | View] = {"fact": story.opened(), "view": story.started("dev-001")}
    [known] = await write(journal, story.accepted())
    async with Feed(journal, limits=SMALL) as feed:
        for kind in before:
            await write(journal, events[kind])
        waiting = asyncio.create_task(feed.changed(TENANT, "a", known, 60 if expected else 0.05))
        await until(lambda: waiting.done() or journal.subscriptions == 1)
        for kind in during:
            if kind == "missed":
                journal.lose()
                await write(journal, events["fact"])
                journal.heal()
            else:
                await write(journal, events[kind])
        async with asyncio.timeout(5):
            assert await waiting is expected


async def test_facts_within_a_moment_are_one_change_and_the_end_is_a_change_at_once() -> None:
    journal, story = LossyJournal(), Story("a")
    await write(journal, story.accepted())
    async with Feed(journal, limits=replace(SMALL, together_s=60)) as feed, feed.watch(A) as watch:
        known = (await begun(watch)).begin
        waiting = asyncio.create_task(feed.changed(TENANT, "a", known, 120))
        await write(journal, story.opened())
        await until(lambda: watch.last_fact_sequence > known)
        await asyncio.wait([waiting], timeout=0.01)
        assert not waiting.done()
        await write(journal, story.completed())
        async with asyncio.timeout(5):
            assert await waiting


def test_connection_slots_are_limited_per_client_and_in_total() -> None:
    feed = Feed(InMemoryJournal(), streams_max=3, streams_per_client_max=2)
    assert [feed.acquire_slot(client) for client in ("a", "a", "a", "b", "c")] == [True, True, False, True, False]
    feed.release_slot("a")
    assert feed.streams == 2 and feed.acquire_slot("c") and not feed.acquire_slot("c")


async def test_a_page_is_bounded_in_bytes_and_loses_no_frame() -> None:
    journal, story = LossyJournal(), Story("a")
    limits = RingLimits(frames_max=1, page_records=16, page_bytes=4_000, linger_s=0, retry_s=0)
    stored = await write(journal, story.accepted())
    sizes = [*([10] * 40), *([1_500] * 12), 9_000, *([10] * 40), 1]
    async with Feed(journal, limits=limits) as feed, feed.watch(A) as watch:
        viewer = feed.viewer(await begun(watch), 0)
        stored += await write(journal, *(story.delta("dev-001", place, "x" * size) for place, size in enumerate(sizes)))
        seen, pages = list[int](), list[int]()
        while viewer.position < stored[-2]:
            frames = await viewer.batch(asyncio.get_running_loop().time() + 5)
            seen += [frame.sequence for frame in frames]
            pages.append(sum(len(frame.data) for frame in frames) if len(frames) > 1 else 0)
    assert seen == stored[:-1] and max(pages) <= limits.page_bytes


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 7)),
        st.tuples(st.just("other"), st.integers(1, 7)),
        st.tuples(st.just("turns"), st.integers(1, 9)),
        st.tuples(st.sampled_from(["outage", "overrun"]), st.integers(0, 12 * 7)),
        st.tuples(st.sampled_from(["lose", "heal", "reconnect", "away", "back", "join", "leave"]), st.integers(0, 40)),
        st.tuples(st.sampled_from(["read", "resume"]), st.integers(0, 5)),
    ),
    max_size=60,
)


@dataclass(eq=False)
class Reader:
    viewer: Viewer
    after: int
    received: list[int] = field(default_factory=list[int])
    reading_task: asyncio.Task[None] | None = None

    def read(self) -> None:
        if self.reading_task is None or self.reading_task.done():
            self.reading_task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        self.received += [each.sequence for each in await self.viewer.batch(asyncio.get_running_loop().time() + 0.001)]

    async def stop(self) -> None:
        if self.reading_task is not None:
            self.reading_task.cancel()
            await asyncio.wait([self.reading_task])


@settings(max_examples=150, deadline=None)
@given(operations=OPERATIONS, begins=st.booleans(), tail=st.integers(0, 5))
async def test_every_viewer_receives_every_event_exactly_once_in_order(
    operations: list[tuple[str, int]], begins: bool, tail: int
) -> None:
    journal, story, other = LossyJournal(), Story("a"), Story("b")
    await write(journal, story.accepted(), other.accepted())
    offset = 0

    async def store(writer: Story, count: int) -> None:
        nonlocal offset
        was, journal.available = journal.available, True
        for _ in range(count):
            offset += 1
            await write(journal, writer.delta("dev-001", offset, "x"))
        journal.available = was

    async def turns(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async with Feed(journal, limits=SMALL) as feed, feed.watch(A) as watch:
        readers = [Reader(feed.viewer(watch, 0), 0)]
        if begins:
            await begun(watch)
        for operation, number in [*operations, ("back", 0), ("heal", 0), ("write", tail)]:
            match operation:
                case "write":
                    await store(story, number)
                case "other":
                    await store(other, number)
                case "turns":
                    await turns(number)
                case "outage":
                    journal.lose()
                    await store(story, 3)
                    journal.heal()
                    await turns(number % 12)
                    await store(story, 1 + number // 12)  # during the resync
                    await turns(12)
                    await store(story, 1)
                case "overrun":
                    readers[-1].read()
                    await turns(number % 12)
                    await store(story, 1 + number // 12)  # during the read
                case "lose":
                    journal.lose()
                case "heal":
                    journal.heal()
                case "reconnect":
                    journal.reconnect()
                case "away" | "back":
                    journal.available = operation == "back"
                case "join":
                    after = min(number, len(journal.records))
                    readers.append(Reader(feed.viewer(watch, after), after))
                case "leave":
                    for reader in readers[1:2]:
                        await reader.stop()
                    del readers[1:2]
                case "resume":
                    reader = readers[number % len(readers)]
                    await reader.stop()
                    seen = reader.received[-1] if reader.received else reader.after
                    reader.viewer = feed.viewer(watch, seen)
                case _:
                    readers[number % len(readers)].read()
        stored = [record.sequence for record in journal.records if record.tokens[2] == "a"]
        async with asyncio.timeout(2):
            for reader in readers:
                while sum(sequence > reader.after for sequence in stored) > len(reader.received):
                    reader.read()
                    await asyncio.sleep(0)
        for reader in readers:
            await reader.stop()
            assert reader.received == [sequence for sequence in stored if sequence > reader.after]
