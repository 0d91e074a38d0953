import asyncio
import signal
import socket
from collections.abc import AsyncIterator

import pytest

from app.log.paging import of_deliberation
from app.sse import SseDecoder
from tests.components.routes.listening import TENANT, Gateway, following, listening, types, whole
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.story import Story


@pytest.fixture(scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with listening() as made:
        yield made


@pytest.fixture
def story(fresh_id: str) -> Story:
    return Story(fresh_id)


async def test_a_viewer_that_leaves_releases_its_slot_and_its_watch(gateway: Gateway, story: Story) -> None:
    await gateway.write(*whole(story)[:4])
    stored = len(gateway.journal.records)
    async with gateway.feed.watch(of_deliberation(TENANT, story.id)) as watch:
        async with gateway.watching(story.id) as frames:
            await following(frames, 3)
            await until(lambda: watch.viewers == 2)
            assert gateway.feed.streams == 1
        await until(lambda: watch.viewers == 1 and gateway.feed.streams == 0)
    assert len(gateway.journal.records) == stored


async def test_a_stream_stays_open_while_the_log_is_unavailable_and_catches_up() -> None:
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


async def test_draining_asks_viewers_to_reconnect_and_the_server_exits() -> None:
    story = Story("a")
    async with listening() as gateway:
        await gateway.write(*whole(story)[:2])
        async with gateway.watching("a", after="0") as frames:
            await following(frames, 3)
            gateway.server.handle_exit(signal.SIGTERM, None)
            [reconnect] = [frame async for frame in frames]
            assert reconnect.event == "stream.reconnect" and reconnect.fields()["reason"] == "draining"
            assert reconnect.id is None and 1_000 <= (reconnect.retry_ms or 0) <= 3_000
        async with asyncio.timeout(4):
            await gateway.serving


async def test_a_stream_at_its_maximum_age_is_asked_to_reconnect() -> None:
    async with listening(stream_age_max_s=0.05) as gateway:
        await gateway.write(*whole(Story("a"))[:2])
        *_, reconnect = await gateway.watched("a", after="0")
        assert reconnect.event == "stream.reconnect" and reconnect.fields()["reason"] == "max_age"


async def test_a_replaced_log_ends_the_stream_and_the_next_one_sends_a_gap() -> None:
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


async def test_a_stalled_viewer_is_disconnected_and_releases_its_slot() -> None:
    story = Story("a", size=1)
    async with listening(stream_send_timeout_s=0.3) as gateway:
        await gateway.write(story.accepted(), story.opened())
        port = gateway.client.base_url.port
        async with gateway.feed.watch(of_deliberation(TENANT, "a")) as watch:
            with socket.create_connection(("127.0.0.1", port)) as stalled:
                stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                stalled.sendall(b"GET /deliberations/a/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await until(lambda: watch.viewers == 2)
                for offset in range(200):
                    await gateway.write(story.delta("dev-001", offset, "x" * 60_000))
                    await asyncio.sleep(0)
                await until(lambda: watch.viewers == 1 and gateway.feed.streams == 0)
