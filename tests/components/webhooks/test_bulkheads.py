"""Bounds of attempts at once: to one host for one tenant, for one tenant, in all; and who waits for whom."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from app.api.webhook_targets import Target
from app.webhooks.sender.bulkheads import AILING_WAITING_MAX, FAILURES_TOLERATED, Bounds, Bulkheads, Crowded
from tests.conditions import until

A, B = Target("https", "a.example", 443), Target("https", "b.example", 443)
SMALL = Bounds(total_max=6, tenant_max=4, lane_max=2, waiting_max=3, patience_s=0.05)


@asynccontextmanager
async def holding(lanes: Bulkheads, *places: tuple[str, Target]) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for tenant, target in places:
            await stack.enter_async_context(lanes.place(tenant, target))
        yield


@pytest.mark.parametrize(
    ("held", "wished", "admitted"),
    [
        ([("x", A)], ("x", A), True),
        ([("x", A)] * 2, ("x", A), False),
        ([("x", A)] * 2, ("x", B), True),
        ([("x", A)] * 2, ("y", A), True),
        ([("x", A)] * 2 + [("x", B)] * 2, ("x", Target("https", "c.example", 443)), False),
        ([("x", A)] * 2 + [("x", B)] * 2 + [("y", A)], ("y", A), True),
        ([("x", A)] * 2 + [("x", B)] * 2 + [("y", A)] * 2, ("z", A), False),
        ([("x", A)] * 2, ("x", Target("https", "a.example", 8443)), True),
    ],
)
async def test_each_bound_holds_and_no_other(
    held: list[tuple[str, Target]], wished: tuple[str, Target], admitted: bool
) -> None:
    lanes = Bulkheads(SMALL)
    async with holding(lanes, *held):
        assert lanes.in_flight == len(held)
        if admitted:
            async with lanes.place(*wished):
                assert lanes.in_flight == len(held) + 1
        else:
            with pytest.raises(Crowded):
                async with lanes.place(*wished):
                    pass
        assert lanes.in_flight == len(held)
    assert (lanes.in_flight, lanes.waiting) == (0, 0)


async def test_who_waits_gets_the_place_that_is_left() -> None:
    lanes = Bulkheads(Bounds(lane_max=1, patience_s=5))
    order: list[int] = []

    async def attempt(number: int) -> None:
        async with lanes.place("x", A):
            order.append(number)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        async with lanes.place("x", A):
            for number in range(3):
                group.create_task(attempt(number))
            await until(lambda: lanes.waiting == 3)
            assert order == []
    assert order == [0, 1, 2]


async def test_no_more_than_so_many_wait_in_one_lane() -> None:
    lanes = Bulkheads(Bounds(lane_max=1, waiting_max=1, patience_s=5))
    async with asyncio.timeout(5), asyncio.TaskGroup() as group, lanes.place("x", A):

        async def waiting() -> None:
            async with lanes.place("x", A):
                pass

        waiter = group.create_task(waiting())
        await until(lambda: lanes.waiting == 1)
        with pytest.raises(Crowded):
            async with lanes.place("x", A):
                pass
        async with lanes.place("x", B):
            pass
        waiter.cancel()


async def test_of_a_receiver_that_keeps_failing_one_attempt_at_a_time_is_made() -> None:
    lanes = Bulkheads(SMALL)
    for _ in range(FAILURES_TOLERATED):
        async with lanes.place("x", A) as lane:
            lane.note(answered=False, duration_s=1)
    async with lanes.place("x", A):
        with pytest.raises(Crowded):
            async with lanes.place("x", A):
                pass
        async with lanes.place("y", A), lanes.place("x", B):
            pass
    async with lanes.place("x", A) as lane:
        lane.note(answered=True, duration_s=1)
    async with lanes.place("x", A), lanes.place("x", A):
        pass


async def test_few_wait_for_a_receiver_that_keeps_failing() -> None:
    lanes = Bulkheads(Bounds(patience_s=5))
    for _ in range(FAILURES_TOLERATED):
        async with lanes.place("x", A) as lane:
            lane.note(answered=False, duration_s=15)

    async def attempt() -> None:
        async with lanes.place("x", A):
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(attempt()) for _ in range(1 + AILING_WAITING_MAX)]
    await until(lambda: lanes.waiting == AILING_WAITING_MAX)
    with pytest.raises(Crowded):
        await attempt()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.parametrize(
    ("answered", "took_s", "least_s", "most_s"), [(True, 0.001, 1, 2), (True, 2.0, 6, 12), (False, 15.0, 60, 120)]
)
async def test_who_finds_no_place_comes_back_when_those_before_will_be_through(
    answered: bool, took_s: float, least_s: float, most_s: float
) -> None:
    lanes = Bulkheads(Bounds(lane_max=1, waiting_max=3, patience_s=5))
    for _ in range(40):
        async with lanes.place("x", A) as lane:
            lane.note(answered=answered, duration_s=took_s)
    waiting = 3 if answered else AILING_WAITING_MAX

    async def attempt() -> None:
        async with lanes.place("x", A):
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(attempt()) for _ in range(1 + waiting)]
    await until(lambda: lanes.waiting == waiting)
    with pytest.raises(Crowded) as crowded:
        await attempt()
    assert least_s * 0.99 <= crowded.value.delay_s <= most_s
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_cancelled_attempt_leaves_its_place() -> None:
    lanes = Bulkheads(Bounds(lane_max=1, patience_s=5))

    async def attempt() -> None:
        async with lanes.place("x", A):
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(attempt()) for _ in range(2)]
    await until(lambda: lanes.in_flight == 1 and lanes.waiting == 1)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    async with asyncio.timeout(1), lanes.place("x", A):
        assert (lanes.in_flight, lanes.waiting) == (1, 0)


async def test_a_million_hosts_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.webhooks.sender.bulkheads._IDLE_LANES_MAX", 10)
    lanes = Bulkheads(SMALL)
    for number in range(100):
        async with lanes.place(f"t{number}", Target("https", f"h{number}.example", 443)):
            pass
    assert len(lanes._lanes) <= 11 and not lanes._tenants  # pyright: ignore[reportPrivateUsage]
