import asyncio

import pytest

from app.deliberation.roles import EngineSpec, Role
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import PROBE_TIMEOUT_S, Engines
from serve_deployments.engine.replies import Meter
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.integration.agent.stage_runs import call, outcomes, request
from tests.integration.engine.streamed_replies import CALL, SALT
from tests.integration.simulator.server_process import running

CONCURRENCY = 2
# The connections that aiohttp makes where nothing else is said.
STREAMS = 100


async def test_a_role_that_uses_its_whole_concurrency_finds_its_engine_healthy() -> None:
    # Longer than a probe waits for anything.
    with running("--seed", "3", "--duration-ms", str(round(2 * PROBE_TIMEOUT_S * 1_000))) as simulator:
        role = Role(persona="p", concurrency=CONCURRENCY)
        engines = Engines([EngineSpec(url=simulator.url)])
        agent = AgentReplica("DEV", role, engines, InMemoryJournal(), stream_deltas=True, engine_away_timeout_s=30)
        await engines.probe()
        asked = tuple(call(number).model_copy(update={"max_tokens": 4_096}) for number in range(1, CONCURRENCY + 1))
        calls = asyncio.create_task(outcomes(agent, request(asked)))
        busiest = 0
        while not calls.done():
            (engine,) = (await agent.describe())["engines"]
            busiest = max(busiest, engine["in_flight"])
            assert (engine["healthy"], engine["circuit"], engine["trouble"]) == (True, "closed", None)
            await asyncio.wait({calls}, timeout=0.1)
        assert busiest == CONCURRENCY
        assert [outcome.problem for outcome in await calls] == [None] * CONCURRENCY
        await engines.close()


async def test_a_probe_is_answered_beside_any_number_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    # One that waits for a stream's end is then seen to wait, on a busy machine too.
    monkeypatch.setattr("serve_deployments.engine.client.PROBE_TIMEOUT_S", 60)
    streaming: set[int] = set()
    with running("--seed", "3", "--duration-ms", "120000") as simulator:
        engines = Engines([EngineSpec(url=simulator.url, idle_timeout_s=120)])
        await engines.probe()
        (engine,) = engines.engines

        async def stream(number: int) -> None:
            async def take(_: str) -> None:
                streaming.add(number)

            given = {"seed": 7, "on_text": take, "meter": Meter(), "salt": SALT}
            await engines.complete(engine, CALL, engine.models[0], trace=f"d.c{number}.1", **given)  # pyright: ignore

        tasks = [asyncio.create_task(stream(number)) for number in range(STREAMS)]
        try:
            await until(lambda: len(streaming) == STREAMS, timeout_s=30)
            async with asyncio.timeout(10):
                await engines.probe()
            assert engine.healthy and engine.outage is None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await engines.close()
