import asyncio
import socket

from structlog.testing import capture_logs

from app.log.paging import of_deliberation
from tests.components.routes.listening import TENANT, following, listening, types, whole
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.story import Story


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


async def test_a_viewer_that_has_left_before_the_answer_is_no_crash() -> None:
    async with listening() as gateway:
        await gateway.write(Story("a").accepted())
        address = ("127.0.0.1", gateway.client.base_url.port)
        with capture_logs() as logged:
            with socket.create_connection(address) as viewer:
                viewer.sendall(b"GET /deliberations/a/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await until(lambda: any(line["event"] == "request" for line in logged))
        assert [line["event"] for line in logged] == ["request"]
        assert gateway.feed.streams == 0
