import asyncio

from app.streaming.feed import Feed, RingLimits
from tests.components.streaming.test_feed import A, LossyJournal, begun, write
from tests.story import Story


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
