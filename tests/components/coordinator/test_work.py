"""The life of a work: its transitions, and its place among suspects."""

import asyncio
from itertools import product

import pytest

from serve_deployments.coordinator.work import Life, Work
from tests.components.coordinator.works import running

WAITING, RUNNING, STOPPING, ENDING, RELEASED = Life
ALLOWED = {
    (WAITING, RUNNING),
    (WAITING, ENDING),
    (RUNNING, STOPPING),
    (RUNNING, ENDING),
    (STOPPING, ENDING),
    *((life, RELEASED) for life in Life),
    *((life, life) for life in Life),
}


@pytest.mark.parametrize(("before", "after"), product(Life, Life))
def test_a_work_enters_only_allowed_lives(before: Life, after: Life) -> None:
    work = running()
    work.life = before
    if (before, after) in ALLOWED:
        work.enter(after)
        assert work.life is after
    else:
        with pytest.raises(AssertionError, match="cannot follow"):
            work.enter(after)


async def test_a_suspect_holds_its_slot_until_it_is_cleared_or_released() -> None:
    slots = asyncio.Semaphore(1)

    async def suspect() -> Work:
        work = running()
        await work.isolate(slots)
        return work

    first = await suspect()
    second = asyncio.create_task(suspect())
    await asyncio.sleep(0)
    assert not second.done()
    first.clear_suspicion()
    first.clear_suspicion()
    work = await second
    assert slots.locked()
    work.release(0.0)
    work.release(0.0)
    assert not slots.locked()
