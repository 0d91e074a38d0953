import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

import pytest

from app.deliberation.calls import BATCH_AFTER
from app.deliberation.roles import EngineSpec
from serve_deployments.engine.limits import OPEN_MAX_S
from serve_deployments.engine.pool import EnginePool
from serve_deployments.engine.state import EngineState
from tests.conditions import until

BATCH, INTERACTIVE = BATCH_AFTER, 0


class Calls:
    def __init__(self, *specs: EngineSpec, concurrency: int = 1_024) -> None:
        self.pool = EnginePool(specs, concurrency=concurrency)
        self.begun: list[str] = []
        self.at: dict[str, EngineState] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.ends: dict[str, asyncio.Event] = {}

    async def ask(
        self, name: str, priority: int = INTERACTIVE, avoid: Sequence[EngineState] = (), tenant: str = "acme"
    ) -> None:
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._call(name, priority, avoid, tenant))
        await asyncio.sleep(0)

    async def _call(self, name: str, order: int, avoid: Sequence[EngineState], tenant: str) -> None:
        engine = await self.pool.wait_for_engine(name, avoid, order, tenant)
        with self.pool.requesting(engine, tenant):
            self.begun.append(name)
            self.at[name] = engine
            await self.ends[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
        await asyncio.wait([self.tasks[name] for name in names])

    async def cancel(self, *names: str) -> None:
        for name in names:
            self.tasks[name].cancel()
        for name in names:
            with suppress(asyncio.CancelledError):
                await self.tasks[name]

    async def close(self) -> None:
        await self.cancel(*self.tasks)


def engine(name: str, max_in_flight: int | None = None) -> EngineSpec:
    return EngineSpec(url=f"http://{name}", max_in_flight=max_in_flight)


async def test_a_full_engine_takes_a_call_of_another_tenant_next_however_many_older_ones_wait() -> None:
    calls = Calls(engine("a", max_in_flight=2))
    for number in range(64):
        await calls.ask(f"large {number}", INTERACTIVE + number)
    for number in range(2):
        await calls.ask(f"small {number}", INTERACTIVE + 100, tenant="globex")
    await calls.end("large 0", "large 1")
    await until(lambda: len(calls.begun) == 4)
    assert sorted(calls.begun[2:]) == ["large 2", "small 0"]
    await calls.end("small 0")
    await until(lambda: len(calls.begun) == 5)
    assert calls.begun[-1] == "small 1"
    await calls.close()


async def test_an_interactive_call_is_next_however_many_batch_calls_wait() -> None:
    calls = Calls(engine("a", max_in_flight=2))
    for number in range(52):
        await calls.ask(f"batch {number}", BATCH)
    await calls.ask("interactive")
    assert calls.begun == ["batch 0", "batch 1"]
    await calls.end("batch 1")
    await until(lambda: len(calls.begun) == 3)
    assert calls.begun[-1] == "interactive"
    await calls.end("interactive", "batch 0")
    await until(lambda: len(calls.begun) == 5)
    assert calls.begun[-2:] == ["batch 2", "batch 3"], "then the oldest"
    await calls.close()


async def test_a_batch_call_of_an_idle_tenant_waits_for_the_interactive_calls_of_a_busy_one() -> None:
    calls = Calls(engine("a", max_in_flight=2))
    for number in range(4):
        await calls.ask(f"interactive {number}")
    await calls.ask("batch", BATCH, tenant="globex")
    await calls.end("interactive 0", "interactive 1")
    await until(lambda: len(calls.begun) == 4)
    assert calls.begun[2:] == ["interactive 2", "interactive 3"]
    await calls.end("interactive 2")
    await until(lambda: calls.begun[4:] == ["batch"])
    await calls.close()


async def test_a_turn_costs_the_same_however_many_calls_of_several_tenants_wait() -> None:
    async def seconds(waiting: int) -> float:
        """Of 200 turns, while so many calls wait."""
        calls = Calls(engine("a", max_in_flight=1))
        await calls.ask("first")
        for number in range(waiting):
            await calls.ask(str(number), INTERACTIVE + number, tenant=str(number % 4))
        begun_s = time.perf_counter()
        for number in range(200):
            await calls.end(calls.begun[-1])
            await until(lambda number=number: len(calls.begun) == number + 2)
        took_s = time.perf_counter() - begun_s
        await calls.close()
        return took_s

    few_s = min([await seconds(250) for _ in range(3)])
    many_s = min([await seconds(5_000) for _ in range(3)])
    assert many_s < 3 * few_s, f"{few_s:.3f} s with 250 calls, {many_s:.3f} s with 5,000"


async def test_the_oldest_call_is_next_while_the_role_has_as_many_at_engines_as_it_may() -> None:
    calls = Calls(engine("a"), engine("b"), concurrency=2)
    for name, order in (("one", 9), ("two", 9), ("young", 7), ("old", 3), ("batch", BATCH)):
        await calls.ask(name, order)
    assert calls.begun == ["one", "two"]
    for number, name in enumerate(("one", "old", "two", "young"), start=3):
        await calls.end(name)
        await until(lambda number=number: len(calls.begun) == min(number, 5))
    assert calls.begun == ["one", "two", "old", "young", "batch"]
    await calls.close()


async def test_the_end_of_a_request_wakes_one_call() -> None:
    calls = Calls(engine("a", max_in_flight=1))
    chosen = 0
    choose = calls.pool.choose

    def counted(deliberation: str, avoid: Sequence[EngineState]) -> EngineState | None:
        nonlocal chosen
        chosen += 1
        return choose(deliberation, avoid)

    calls.pool.choose = counted
    for number in range(20):
        await calls.ask(str(number))
    for number in range(19):
        await calls.end(str(number))
        await until(lambda number=number: len(calls.begun) == number + 2)
    assert chosen == 20
    await calls.close()


async def test_a_call_that_comes_does_not_overtake_one_that_is_about_to_go_on() -> None:
    calls = Calls(engine("a", max_in_flight=1))
    await calls.ask("first")
    await calls.ask("waits", INTERACTIVE)
    # It ends in the same turn of the loop in which another call comes.
    calls.ends["first"].set()
    await calls.ask("comes", BATCH)
    await until(lambda: len(calls.begun) == 2)
    assert calls.begun == ["first", "waits"]
    await calls.close()


async def test_a_cancelled_call_loses_no_room() -> None:
    calls = Calls(engine("a", max_in_flight=1))
    for name in ("first", "second", "third", "fourth"):
        await calls.ask(name)
    await calls.cancel("second")
    # The third has its turn and is cancelled before it goes on.
    calls.ends["first"].set()
    await asyncio.sleep(0)
    await calls.cancel("third")
    await until(lambda: calls.begun == ["first", "fourth"])
    await calls.close()


async def test_a_call_goes_on_where_an_earlier_one_cannot() -> None:
    """The earlier one waits for another engine than the one that it has failed on."""
    calls = Calls(engine("a", max_in_flight=1), engine("b", max_in_flight=1))
    first, second = calls.pool.engines
    await calls.ask("at a", avoid=[second])
    await calls.ask("at b", avoid=[first])
    await calls.ask("failed on a", avoid=[first])
    await calls.ask("new")
    await calls.end("at a")
    await until(lambda: calls.at.get("new") is first)
    assert "failed on a" not in calls.at
    await calls.end("at b")
    await until(lambda: calls.at.get("failed on a") is second)
    await calls.close()


async def test_all_calls_go_on_when_an_engine_without_a_bound_is_back() -> None:
    calls = Calls(engine("a"))
    (one,) = calls.pool.engines
    one.circuit.failed(time.monotonic(), unreachable=True)
    for number in range(20):
        await calls.ask(str(number))
    await until(lambda: len(calls.begun) == 1)
    assert one.circuit.probing, "half open: one request at a time"
    # As when the engine answers: the client closes the circuit, and a request ends.
    one.circuit.reached()
    await calls.end("0")
    await until(lambda: len(calls.begun) == 20)
    assert calls.begun == [*map(str, range(20))]
    await calls.close()


def test_a_probing_request_that_breaks_in_any_way_lets_another_one_probe() -> None:
    pool = EnginePool([EngineSpec(url="http://a")])
    (engine,) = pool.engines
    while engine.healthy:
        engine.circuit.failed(time.monotonic() - OPEN_MAX_S, unreachable=False)
    with pytest.raises(RuntimeError, match="a defect"), pool.requesting(engine):
        assert not engine.admits(time.monotonic()), "one request probes"
        raise RuntimeError("a defect")
    assert engine.admits(time.monotonic())
