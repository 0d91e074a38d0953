import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.streaming.frames import CHUNK_BYTES, chunked
from tests.components.routes.listening import following, listening, whole
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.story import Story


async def test_streams_of_several_take_a_connection_slot_too() -> None:
    async with listening(streams_per_client_max=2) as gateway:
        await gateway.write(*whole(Story("a"))[:2])
        async with gateway.watching_several("a") as several, gateway.watching("a") as single:
            await following(several, 1)
            await following(single, 1)
            refused = await gateway.client.get("/events", params={"deliberation": "a"})
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
            assert int(refused.headers["retry-after"]) > 0
            assert (await gateway.page_of_several("a")).status_code == 200, "pages need no slot"
        await until(lambda: gateway.feed.streams == 0)
        async with gateway.watching_several("a") as again:
            await following(again, 1)


@pytest.mark.parametrize("path", ["/events", "/events?deliberation=a", "/deliberations/a/events"])
async def test_a_silent_stream_sends_comments(path: str) -> None:
    async with listening(heartbeat_s=0.02) as gateway:
        await gateway.write(Story("a").accepted())
        async with asyncio.timeout(10), gateway.client.stream("GET", path) as response:
            seen = b""
            async for chunk in response.aiter_bytes():
                seen += chunk
                if seen.count(b": \n\n") >= 3:
                    break
        assert b'"heartbeat_s":0.02' in seen


@pytest.mark.parametrize("sizes", [[], [1], [10, 20, 30], [CHUNK_BYTES, 1, CHUNK_BYTES + 1, 2, 3]])
def test_frames_are_joined_into_chunks_and_large_ones_are_shared(sizes: list[int]) -> None:
    frames = [b"x" * size for size in sizes]
    pieces = list(chunked(frames))
    assert b"".join(pieces) == b"".join(frames)
    assert all(len(piece) <= CHUNK_BYTES or any(piece is frame for frame in frames) for piece in pieces)
    assert len(pieces) <= 1 + 2 * sum(size >= CHUNK_BYTES for size in sizes)


async def test_two_hundred_viewers_at_once_share_the_reads_of_the_log() -> None:
    """The texts of one deliberation with many deltas are read once for all of them."""
    journal, story = InMemoryJournal(), Story("a")
    async with listening(journal) as gateway:
        await gateway.write(story.accepted(), story.opened(), story.started("dev-001"))
        for offset in range(300):
            await gateway.write(story.delta("dev-001", offset, "x"))
        reads_of = {"facts": 0, "read": 0}
        facts, read = journal.facts, journal.read

        async def counted_facts(tenant: str, deliberation_id: str) -> Any:
            reads_of["facts"] += 1
            await asyncio.sleep(0.01)
            return await facts(tenant, deliberation_id)

        async def counted_read(pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Any]:
            reads_of["read"] += pattern.endswith(".call.*.*")
            await asyncio.sleep(0.01)
            async for record in read(pattern, after, limit=limit):
                yield record

        journal.facts, journal.read = counted_facts, counted_read  # pyright: ignore[reportAttributeAccessIssue]

        async def open_one() -> str:
            async with gateway.watching("a") as frames:
                _, snapshot = await following(frames, 2)
                return snapshot.fields()["unfinished"][0]["text"]

        texts = await asyncio.gather(*(open_one() for _ in range(200)))
        assert set(texts) == {"x" * 300}
        assert reads_of["facts"] <= 20 and reads_of["read"] <= 20, reads_of
