import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from app.deliberation.roles import EngineSpec, Role
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from tests.engines.forms import OUTPUTS, assert_valid, calls_for
from tests.fakes import InMemoryJournal
from tests.integration.agent.stage_runs import outcomes, request
from tests.integration.simulator.server_process import Simulator, running


@dataclass(frozen=True)
class Shape:
    lacks: tuple[str, ...] = ()
    structured: str = "json_schema"
    refusals: int = 0
    estimated: bool = False


SHAPES = {
    "vLLM": Shape(),
    "without schemas": Shape(("json-schema",), "json_object", 1),
    "without JSON": Shape(("json-schema", "json-object"), "prompt", 3),
    "max_completion_tokens": Shape(("max-tokens",), refusals=1),
    "without stream_options": Shape(("stream-options", "usage"), refusals=1, estimated=True),
    "without usage": Shape(("usage",), estimated=True),
    "without seed": Shape(("seed",), refusals=1),
    "fixed temperature": Shape(("temperature",), refusals=1),
    "without system messages": Shape(("system",), refusals=1),
    "without any of it": Shape(
        ("json-schema", "json-object", "max-tokens", "stream-options", "seed", "temperature", "system", "usage"),
        "prompt",
        8,
        estimated=True,
    ),
}


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    with running("--seed", "3") as simulator:
        yield simulator


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
async def shape(request: pytest.FixtureRequest, simulator: Simulator) -> Shape:
    found: Shape = request.param
    await shaped(simulator, found.lacks)
    return found


async def shaped(simulator: Simulator, lacks: tuple[str, ...]) -> None:
    async with httpx.AsyncClient(base_url=simulator.url) as client:
        (await client.post("/simulator/script", json={"lacks": lacks, "faults": []})).raise_for_status()
        (await client.delete("/simulator/calls")).raise_for_status()


async def requests_to(simulator: Simulator) -> int:
    async with httpx.AsyncClient(base_url=simulator.url) as client:
        return (await client.get("/simulator/calls")).raise_for_status().json()["requests"]


@pytest.fixture
async def agent(simulator: Simulator) -> AsyncIterator[AgentReplica]:
    engines = Engines([EngineSpec(url=simulator.url)])
    yield AgentReplica(
        "DEV", Role(persona="p"), engines, InMemoryJournal(), stream_deltas=True, engine_away_timeout_s=30
    )
    await engines.close()


async def test_every_form_is_answered_and_how_is_recorded(shape: Shape, agent: AgentReplica) -> None:
    asked = calls_for(OUTPUTS)
    found = await outcomes(agent, request(asked))
    assert_valid(asked, found)
    assert {outcome.structured for outcome in found} == {shape.structured}
    assert {outcome.usage_estimated for outcome in found} == {shape.estimated}
    assert all(outcome.usage.prompt_tokens and outcome.usage.completion_tokens for outcome in found)
    assert {(outcome.usage.calls, outcome.attempt) for outcome in found} == {(1, 1)}, "refusals cost no attempt"


async def test_what_an_engine_lacks_is_found_out_once(shape: Shape, agent: AgentReplica, simulator: Simulator) -> None:
    await outcomes(agent, request(calls_for(OUTPUTS[:1])))
    assert await requests_to(simulator) == 1 + shape.refusals
    asked = calls_for(OUTPUTS, first=2)
    assert_valid(asked, await outcomes(agent, request(asked)))
    assert await requests_to(simulator) == 1 + shape.refusals + len(asked)


async def test_unstreamed_answers_hold_the_same_contract(shape: Shape, agent: AgentReplica) -> None:
    agent.stream_deltas = False
    asked = calls_for(OUTPUTS)
    found = await outcomes(agent, request(asked))
    assert_valid(asked, found)
    assert {outcome.usage_estimated for outcome in found} == {shape.estimated or "stream-options" in shape.lacks}


async def test_an_engine_that_ignores_forms_gets_the_schema_in_the_second_prompt(
    agent: AgentReplica, simulator: Simulator
) -> None:
    await shaped(simulator, ("response-format",))
    asked = calls_for(OUTPUTS)
    found = await outcomes(agent, request(asked))
    assert_valid(asked, found)
    # What a model writes teaches nothing of its engine: `structured: prompt` saves the first request.
    assert {(outcome.structured, outcome.attempt) for outcome in found} == {("json_schema", 2)}
    assert await requests_to(simulator) == 2 * len(asked)


@pytest.mark.parametrize("structured", ["json_schema", "json_object", "prompt"])
async def test_a_declared_way_is_kept(simulator: Simulator, agent: AgentReplica, structured: Any) -> None:
    await shaped(simulator, ("system",))
    spec = EngineSpec(url=simulator.url, structured=structured)
    agent.engines = Engines([spec])
    asked = calls_for(OUTPUTS)
    found = await outcomes(agent, request(asked))
    assert_valid(asked, found)
    assert {outcome.structured for outcome in found} == {structured}
    await shaped(simulator, ("json-schema", "json-object"))
    agent.engines = Engines([spec])
    (outcome,) = await outcomes(agent, request(calls_for([OUTPUTS[0]], first=100)))
    if structured == "prompt":
        assert outcome.problem is None
    else:
        assert outcome.problem is not None and outcome.problem.code == "engine_rejected"


async def test_a_schema_is_shown_where_the_engine_takes_none(agent: AgentReplica, simulator: Simulator) -> None:
    await shaped(simulator, ("json-schema",))
    (asked,) = calls_for([OUTPUTS[0]])
    await outcomes(agent, request((asked,)))
    async with httpx.AsyncClient(base_url=simulator.url) as client:
        shown = (await client.get("/simulator/calls", params={"detail": "true"})).text
    assert "satisfies this JSON Schema" in shown


async def test_calls_at_once_find_out_the_same(agent: AgentReplica, simulator: Simulator) -> None:
    await shaped(simulator, ("json-schema", "max-tokens", "seed"))
    asked = calls_for(OUTPUTS * 3)
    stages = await asyncio.gather(*(outcomes(agent, request(asked[at::3])) for at in range(3)))
    for at, found in enumerate(stages):
        assert_valid(asked[at::3], found)
    (engine,) = agent.engines.engines
    assert {(dialect.structured, dialect.lacking) for dialect in engine.dialects.values()} == {
        ("json_object", frozenset(("max_tokens", "seed")))
    }
