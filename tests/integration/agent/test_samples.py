import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from decimal import Decimal
from typing import Any

import httpx
import pytest

from app.deliberation.calls import Call, Usage
from app.deliberation.facts import CallDelta, CallFinished
from app.deliberation.roles import EnginePrices, EngineSpec, Role
from app.log.stream_settings import PUBLICATIONS
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from tests.conditions import until
from tests.integration.agent.test_agent_replica import (
    PRICES,
    STOPS,
    AnsweringJournal,
    call,
    outcomes,
    request,
    views,
)
from tests.integration.simulator.test_simulator_server import Simulator, running

INSTANT: dict[str, Any] = {
    **{"behaviour": "normal", "faults": [], "lacks": [], "tokens": None, "jitter": 0, "chunk_tokens": 1},
    **{"ttft_ms": 0, "per_token_ms": 0, "duration_ms": None},
}


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    with running("--seed", "7") as simulator:
        yield simulator


@pytest.fixture
async def engine(simulator: Simulator) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=simulator.url) as client:
        await script(client, **INSTANT)
        await client.delete("/simulator/calls")
        yield client


@pytest.fixture
async def agent(simulator: Simulator) -> AsyncIterator[AgentReplica]:
    agent = replica(simulator)
    yield agent
    await agent.engines.close()


def replica(simulator: Simulator, *, prices: EnginePrices | None = None, **spec: Any) -> AgentReplica:
    engines = Engines([EngineSpec(url=simulator.url, prices=prices, **spec)])
    options: dict[str, Any] = {"stream_deltas": True, "publications": PUBLICATIONS, "engine_away_timeout_s": 30}
    return AgentReplica("DEV", Role(persona="p"), engines, AnsweringJournal(), **options)


async def script(client: httpx.AsyncClient, **changes: Any) -> None:
    (await client.post("/simulator/script", json=changes)).raise_for_status()


async def counts(client: httpx.AsyncClient) -> dict[str, Any]:
    return (await client.get("/simulator/calls")).raise_for_status().json()


def samples(number: int, **changes: Any) -> tuple[Call, ...]:
    alike = {"messages": call(1).messages, "max_tokens": 4_096, **changes}
    return tuple(call(at).model_copy(update={"seed": 100 + at, **alike}) for at in range(1, number + 1))


def total(found: Sequence[CallFinished]) -> Usage:
    return sum((outcome.usage for outcome in found), Usage())


def texts(found: Sequence[CallFinished]) -> dict[str, str | None]:
    return {outcome.call_id: outcome.text for outcome in found}


@pytest.mark.parametrize("number", [2, 9, 32])
async def test_identical_calls_are_one_request_with_the_answers_of_single_ones(
    agent: AgentReplica, engine: httpx.AsyncClient, number: int
) -> None:
    together = await outcomes(agent, request(samples(number)))
    counted = await counts(engine)
    assert counted["requests"] == 1
    assert (counted["prompt_tokens"], counted["completion_tokens"]) == (
        total(together).prompt_tokens,
        total(together).completion_tokens,
    )
    assert {(outcome.usage.calls, outcome.attempt, outcome.problem) for outcome in together} == {(1, 1, None)}
    agent.engines.engines[0].takes_n = False
    alone = await outcomes(agent, request(samples(number), deliberation_id="d2"))
    assert (await counts(engine))["requests"] == 1 + number
    assert texts(together) == texts(alone) and len(set(texts(alone).values())) > 1
    tokens = [{outcome.call_id: outcome.usage.completion_tokens for outcome in each} for each in (together, alone)]
    assert tokens[0] == tokens[1]


async def test_each_call_ends_with_its_own_choice(agent: AgentReplica, engine: httpx.AsyncClient) -> None:
    await script(engine, per_token_ms=8)
    running = asyncio.create_task(outcomes(agent, request(samples(9))))
    await until(lambda: bool(views(agent.journal, CallFinished)))
    assert len(views(agent.journal, CallFinished)) < 9 and not running.done()
    found = sorted(await running, key=lambda outcome: outcome.ts)
    carrying = [outcome.call_id for outcome in found if outcome.usage.prompt_tokens]
    assert carrying == [found[-1].call_id], "the prompt is counted once, with the choice that ends last"


async def test_cost_is_that_of_the_tokens_that_the_engine_counts(
    simulator: Simulator, engine: httpx.AsyncClient
) -> None:
    agent = replica(simulator, prices=PRICES)
    found = total(await outcomes(agent, request(samples(5))))
    counted = await counts(engine)
    assert found.cost is not None and found.cost.unpriced_calls == 0
    exact = (counted["prompt_tokens"] * PRICES.prompt + counted["completion_tokens"] * PRICES.completion) / 10**6
    assert abs(found.cost.amount - exact) <= 5 * Decimal("0.0000005"), "each call is rounded to a millionth"
    await agent.engines.close()


DIFFERENT = {
    "another seed": {"seed": 7},
    "another temperature": {"temperature": 0.9},
    "another model": {"model": "simulated-council-8b"},
    "another limit": {"max_tokens": 4_000},
    "other messages": {"messages": call(2).messages},
}


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT)
async def test_only_equal_calls_share_a_request(
    agent: AgentReplica, engine: httpx.AsyncClient, change: dict[str, Any]
) -> None:
    *others, last = samples(4)
    found = await outcomes(agent, request((*others, last.model_copy(update=change))))
    assert all(outcome.problem is None for outcome in found)
    assert (await counts(engine))["requests"] == 2


@pytest.mark.parametrize("unlike", ["temperature 0", "unstreamed", "another kind of engine"])
async def test_calls_that_cannot_share_a_request_are_sent_alone(
    agent: AgentReplica, engine: httpx.AsyncClient, unlike: str
) -> None:
    agent.stream_deltas = unlike != "unstreamed"
    await script(engine, lacks=["usage"] if unlike == "another kind of engine" else [])
    asked = samples(3, temperature=0.0) if unlike == "temperature 0" else samples(3)
    found = await outcomes(agent, request(asked))
    assert all(outcome.problem is None for outcome in found)
    assert (await counts(engine))["requests"] == 3


@pytest.mark.parametrize(("lack", "wasted"), [("n", 1), ("choices", 0)])
async def test_an_engine_that_refuses_or_ignores_n_is_asked_so_once(
    agent: AgentReplica, engine: httpx.AsyncClient, lack: str, wasted: int
) -> None:
    await script(engine, lacks=[lack])
    first = await outcomes(agent, request(samples(4)))
    assert {(outcome.attempt, outcome.usage.calls, outcome.problem) for outcome in first} == {(1, 1, None)}
    assert (await counts(engine))["requests"] == 4 + wasted
    second = await outcomes(agent, request(samples(4), deliberation_id="d2"))
    assert texts(first) == texts(second)
    counted, spent = await counts(engine), total([*first, *second])
    assert counted["requests"] == 8 + wasted
    assert (counted["prompt_tokens"], counted["completion_tokens"]) == (spent.prompt_tokens, spent.completion_tokens)


async def test_a_refusal_for_another_reason_says_nothing_about_n(
    agent: AgentReplica, engine: httpx.AsyncClient
) -> None:
    await script(engine, faults=["bad-request:first=1"])
    found = await outcomes(agent, request(samples(3)))
    assert all(outcome.problem is None for outcome in found)
    assert (await counts(engine))["requests"] == 1 + 3 and agent.engines.engines[0].takes_n


async def test_calls_whose_request_breaks_off_are_tried_again_alone(
    agent: AgentReplica, engine: httpx.AsyncClient
) -> None:
    await script(engine, faults=["broken-stream:first=1"])
    found = await outcomes(agent, request(samples(4)))
    assert {(outcome.attempt, outcome.usage.calls, outcome.problem) for outcome in found} == {(2, 2, None)}
    assert (await counts(engine))["requests"] == 1 + 4


async def test_an_invalid_choice_is_asked_for_again_alone(agent: AgentReplica, engine: httpx.AsyncClient) -> None:
    await script(engine, faults=["bad-json:first=1"])
    found = await outcomes(agent, request(samples(3)))
    assert {(outcome.attempt, outcome.problem) for outcome in found} == {(2, None)}
    counted = await counts(engine)
    assert counted["requests"] == 1 + 3
    assert counted["prompt_tokens"] == total(found).prompt_tokens


async def test_a_stop_closes_the_shared_connection_and_each_call_records_it(
    agent: AgentReplica, engine: httpx.AsyncClient
) -> None:
    await script(engine, per_token_ms=20)
    running = asyncio.create_task(outcomes(agent, request(samples(6))))
    await until(lambda: bool(views(agent.journal, CallDelta)))
    await agent.journal.append("default", STOPS["cancel"])
    cut = await running
    assert {outcome.problem and outcome.problem.code for outcome in cut} == {"call_cancelled"}
    assert [outcome.usage.prompt_tokens > 0 for outcome in cut].count(True) == 1
    assert total(cut).completion_tokens > 0
    while (await counts(engine))["aborted"] == 0:
        await asyncio.sleep(0)
    counted = await counts(engine)
    assert (counted["requests"], counted["aborted"]) == (1, 1)
    assert agent.engines.engines[0].in_flight == 0


async def test_a_stop_closes_the_shared_connection_of_an_engine_that_is_silent(
    agent: AgentReplica, engine: httpx.AsyncClient
) -> None:
    await script(engine, ttft_ms=60_000)
    running = asyncio.create_task(outcomes(agent, request(samples(6))))
    async with asyncio.timeout(20):
        while (await counts(engine))["requests"] == 0:
            await asyncio.sleep(0)
        await agent.journal.append("default", STOPS["cancel"])
        cut = await running
        while (await counts(engine))["aborted"] == 0:
            await asyncio.sleep(0)
    assert {outcome.problem and outcome.problem.code for outcome in cut} == {"call_cancelled"}
    assert agent.engines.engines[0].in_flight == 0


@pytest.mark.parametrize("bound", ["slots", "max_in_flight"])
async def test_no_more_choices_are_asked_for_at_once_than_calls_may_run(
    simulator: Simulator, engine: httpx.AsyncClient, bound: str
) -> None:
    agent = replica(simulator, max_in_flight=4 if bound == "max_in_flight" else None)
    if bound == "slots":
        agent = AgentReplica(
            "DEV",
            Role(persona="p", concurrency=4),
            agent.engines,
            agent.journal,
            stream_deltas=True,
            engine_away_timeout_s=30,
        )
    await script(engine, per_token_ms=0.2)
    running = asyncio.create_task(outcomes(agent, request(samples(9))))
    while (await counts(engine))["requests"] == 0:
        await asyncio.sleep(0)
    assert agent.engines.engines[0].in_flight <= 4
    found = await running
    assert len(found) == 9 and all(outcome.problem is None for outcome in found)
    counted = await counts(engine)
    assert 2 <= counted["requests"] <= 6
    assert counted["prompt_tokens"] == total(found).prompt_tokens
    await agent.engines.close()


async def test_calls_that_were_tried_before_are_sent_alone(agent: AgentReplica, engine: httpx.AsyncClient) -> None:
    asked = samples(4)
    await outcomes(agent, request(asked[:2]))
    found = await outcomes(agent, request(asked, resumed=True))
    assert len(found) == 4
    assert (await counts(engine))["requests"] == 2, "the recorded ones are not asked for again, the others together"


async def test_a_request_that_reaches_no_engine_counts_for_none_of_its_calls(
    agent: AgentReplica, engine: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.engines.probe()
    transport = agent.engines._transports[None]  # pyright: ignore[reportPrivateUsage]
    send, refused = transport.handle_async_request, list[httpx.Request]()

    async def refuse_once(request: httpx.Request) -> httpx.Response:
        if not refused:
            refused.append(request)
            raise httpx.ConnectError("refused")
        return await send(request)

    monkeypatch.setattr(transport, "handle_async_request", refuse_once)
    found = await outcomes(agent, request(samples(4)))
    assert refused and {(each.attempt, each.usage.calls, each.problem) for each in found} == {(1, 1, None)}
    assert (await counts(engine))["requests"] <= 4


async def test_deliberations_at_once_keep_their_requests_apart(agent: AgentReplica, engine: httpx.AsyncClient) -> None:
    ids = [f"d{number}" for number in range(1, 9)]
    stages = await asyncio.gather(*(outcomes(agent, request(samples(5), deliberation_id=each)) for each in ids))
    counted = await counts(engine)
    assert counted["requests"] == len(ids)
    assert counted["prompt_tokens"] == sum(total(found).prompt_tokens for found in stages)
    assert counted["completion_tokens"] == sum(total(found).completion_tokens for found in stages)
