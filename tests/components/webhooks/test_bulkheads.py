import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from app.api.webhook_targets import Target
from app.webhooks.sender.bulkheads import FAILING_WAITING_MAX, FAILURES_TOLERATED, AttemptDeferred, Bounds, Bulkheads
from tests.conditions import until

A, B = Target("https", "a.example", 443), Target("https", "b.example", 443)
SMALL = Bounds(total_max=6, tenant_max=4, host_max=2, waiting_max=3, wait_max_s=0.05)


@asynccontextmanager
async def holding(bulkheads: Bulkheads, *slots: tuple[str, Target]) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for tenant, target in slots:
            await stack.enter_async_context(bulkheads.slot(tenant, target))
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
async def test_applies_the_bounds_per_host_per_tenant_and_in_all(
    held: list[tuple[str, Target]], wished: tuple[str, Target], admitted: bool
) -> None:
    bulkheads = Bulkheads(SMALL)
    async with holding(bulkheads, *held):
        assert bulkheads.in_flight == len(held)
        if admitted:
            async with bulkheads.slot(*wished):
                assert bulkheads.in_flight == len(held) + 1
        else:
            with pytest.raises(AttemptDeferred):
                async with bulkheads.slot(*wished):
                    pass
        assert bulkheads.in_flight == len(held)
    assert (bulkheads.in_flight, bulkheads.waiting) == (0, 0)


async def test_waiting_attempts_get_freed_slots_in_order() -> None:
    bulkheads = Bulkheads(Bounds(host_max=1, wait_max_s=5))
    order: list[int] = []

    async def attempt(number: int) -> None:
        async with bulkheads.slot("x", A):
            order.append(number)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        async with bulkheads.slot("x", A):
            for number in range(3):
                group.create_task(attempt(number))
            await until(lambda: bulkheads.waiting == 3)
            assert order == []
    assert order == [0, 1, 2]


async def test_makes_one_attempt_at_a_time_to_a_failing_receiver() -> None:
    bulkheads = Bulkheads(SMALL)
    for _ in range(FAILURES_TOLERATED):
        async with bulkheads.slot("x", A) as bulkhead:
            bulkhead.note(answered=False, duration_s=1)
    async with bulkheads.slot("x", A):
        with pytest.raises(AttemptDeferred):
            async with bulkheads.slot("x", A):
                pass
        async with bulkheads.slot("y", A), bulkheads.slot("x", B):
            pass
    async with bulkheads.slot("x", A) as bulkhead:
        bulkhead.note(answered=True, duration_s=1)
    async with bulkheads.slot("x", A), bulkheads.slot("x", A):
        pass


@pytest.mark.parametrize(
    ("answered", "duration_s", "least_s", "most_s"), [(True, 0.001, 1, 2), (True, 2.0, 6, 12), (False, 15.0, 60, 120)]
)
async def test_defers_by_the_time_that_waiting_attempts_need(
    answered: bool, duration_s: float, least_s: float, most_s: float
) -> None:
    bulkheads = Bulkheads(Bounds(host_max=1, waiting_max=3, wait_max_s=5))
    for _ in range(40):
        async with bulkheads.slot("x", A) as bulkhead:
            bulkhead.note(answered=answered, duration_s=duration_s)
    waiting = 3 if answered else FAILING_WAITING_MAX

    async def attempt() -> None:
        async with bulkheads.slot("x", A):
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(attempt()) for _ in range(1 + waiting)]
    await until(lambda: bulkheads.waiting == waiting)
    with pytest.raises(AttemptDeferred) as deferred:
        await attempt()
    assert least_s * 0.99 <= deferred.value.delay_s <= most_s
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_cancelled_attempt_frees_its_slot() -> None:
    bulkheads = Bulkheads(Bounds(host_max=1, wait_max_s=5))

    async def attempt() -> None:
        async with bulkheads.slot("x", A):
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(attempt()) for _ in range(2)]
    await until(lambda: bulkheads.in_flight == 1 and bulkheads.waiting == 1)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    async with asyncio.timeout(1), bulkheads.slot("x", A):
        assert (bulkheads.in_flight, bulkheads.waiting) == (1, 0)


async def test_evicts_idle_bulkheads_and_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.webhooks.sender.bulkheads._IDLE_MAX", 10)
    bulkheads = Bulkheads(SMALL)
    for number in range(100):
        async with bulkheads.slot(f"t{number}", Target("https", f"h{number}.example", 443)):
            pass
    assert len(bulkheads._bulkheads) <= 11 and not bulkheads._tenants  # pyright: ignore[reportPrivateUsage]
