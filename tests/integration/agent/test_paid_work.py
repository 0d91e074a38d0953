"""Work is paid however it ends, also at an engine that reports its usage only at the end of a stream, or never."""

import asyncio
from random import Random

import pytest

from app.deliberation.facts import CallFinished, decode
from app.deliberation.roles import EngineSpec, Role
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from tests.fakes import InMemoryJournal
from tests.integration.agent.stage_runs import PERSONA, call, request
from tests.integration.simulator.server_process import simulating

CALLS = 200


@pytest.mark.parametrize("lacks", ["usage", "stream-options"])
async def test_calls_that_end_at_any_moment_cost_what_the_engine_wrote(lacks: str) -> None:
    draw = Random(7)
    async with simulating("--model", "simulated-m", "--duration-ms", "500", "--lacks", lacks) as (simulator, client):
        engines = Engines([EngineSpec(url=simulator.url)])
        journal = InMemoryJournal()
        agent = AgentReplica(
            "DEV", Role(persona=PERSONA), engines, journal, stream_deltas=True, engine_away_timeout_s=5
        )
        await engines.probe()
        room = asyncio.Semaphore(10)

        async def run(number: int) -> None:
            async with room:
                # Out of time at a random moment; some calls have the time that they need.
                deadline_s = draw.uniform(0.2, 1.2)
                await agent.run_stage(request((call(number),), deadline_s=deadline_s, deliberation_id=f"d{number}"))

        await asyncio.gather(*map(run, range(1, CALLS + 1)))
        await engines.close()

        async def counted() -> dict[str, int]:
            return (await client.get("/simulator/calls")).json()

        async def ended() -> bool:
            found = await counted()
            return found["requests"] == found["finished"] + found["aborted"] + found["failed"]

        async with asyncio.timeout(20):
            while not await ended():
                await asyncio.sleep(0.05)
        found = await counted()
    outcomes = [each for record in journal.records if isinstance(each := decode(record.data), CallFinished)]
    recorded = sum(outcome.usage.completion_tokens for outcome in outcomes)
    written = found["completion_tokens"] + found["aborted_tokens"]
    assert found["aborted"] > CALLS / 10 and found["finished"] > CALLS / 10
    assert recorded >= 0.95 * written > 0
    assert all(outcome.usage.prompt_tokens > 0 for outcome in outcomes if outcome.usage.calls)
    print(f"recorded {recorded} of {written} tokens")
