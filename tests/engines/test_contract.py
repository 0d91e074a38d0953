import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from app.deliberation.calls import Call
from app.deliberation.facts import CallFinished
from app.deliberation.outputs import Output, parse_output
from app.deliberation.roles import EngineSpec, Role
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from tests.fakes import InMemoryJournal
from tests.integration.agent.test_agent_replica import call, outcomes, request
from tests.integration.simulator.test_simulator_server import Simulator, running

OUTPUTS = [
    Output(kind="answer"),
    Output(kind="critique"),
    Output(kind="revision", issues=3),
    Output(kind="score", labels=("A", "B"), criteria=("correctness", "clarity")),
    Output(kind="pair"),
    Output(kind="turn"),
    Output(kind="choice", labels=("A", "B")),
    Output(kind="analysis"),
    Output(kind="tests"),
]


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


def calls_for(outputs: list[Output], first: int = 1) -> tuple[Call, ...]:
    enough = {"max_tokens": 4_096, "top_p": 0.9}
    return tuple(call(number, output).model_copy(update=enough) for number, output in enumerate(outputs, start=first))


def assert_valid(asked: tuple[Call, ...], found: list[CallFinished]) -> None:
    by_id = {outcome.call_id: outcome for outcome in found}
    for each in asked:
        outcome = by_id[each.call_id]
        assert outcome.problem is None, outcome.problem
        assert outcome.text is not None
        parse_output(each.output, outcome.text)


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


async def test_a_reply_in_prose_teaches_nothing_and_the_remedy_is_named(
    agent: AgentReplica, simulator: Simulator
) -> None:
    await shaped(simulator, ("response-format",))
    for first in (1, 2):
        (outcome,) = await outcomes(agent, request(calls_for([OUTPUTS[0]], first=first)))
        assert outcome.problem is not None and outcome.problem.code == "invalid_output"
        assert "declare `structured: prompt`" in outcome.problem.detail and outcome.structured is None
    assert {dialect.structured for dialect in agent.engines.engines[0].dialects.values()} == {"json_schema"}
    agent.engines = Engines([EngineSpec(url=simulator.url, structured="prompt")])
    asked = calls_for(OUTPUTS, first=3)
    found = await outcomes(agent, request(asked))
    assert_valid(asked, found)
    assert await requests_to(simulator) == 4 + len(asked)


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


async def test_identical_samples_are_answered_by_every_engine(
    shape: Shape, agent: AgentReplica, simulator: Simulator
) -> None:
    first, *_ = calls_for(OUTPUTS[:1])
    ids = [f"s1-dev-{number:03d}" for number in range(1, 6)]
    asked = tuple(
        first.model_copy(update={"call_id": each, "seed": seed}) for seed, each in enumerate(ids, start=first.seed)
    )
    assert_valid(asked, await outcomes(agent, request(asked)))
    # An engine of another kind is not known to count the tokens of each choice.
    assert (await requests_to(simulator) == 1) is (shape == SHAPES["vLLM"])
