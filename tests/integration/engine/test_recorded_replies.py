"""The replies of engines as public reports show them, each with its right value, over a real socket."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from app.deliberation.facts import CallFinished
from app.deliberation.roles import EngineSpec, Role
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from tests.fakes import InMemoryJournal
from tests.integration.agent.test_agent_replica import PERSONA, call, outcomes, request
from tests.integration.engine.raw_engine import RECORDED, RawEngine, recorded, whole
from tests.integration.simulator.test_simulator_server import simulating

ANSWERED = (
    "1a 2a 2b 2c 2e 2f 3a 4a 4b 5a 6a 8a 8c 9 13a 13b 13e 13f 15 16a 18a 20a 20c 20d 21a 32a 33a 33d 33e 33f".split()
)


async def outcome_of(engine: RawEngine, path: str = "/v1", *, max_tokens: int = 512, **spec: str) -> CallFinished:
    engines = Engines([EngineSpec.model_validate({"url": engine.url + path, "model": "m", **spec})])
    agent = AgentReplica(
        "DEV", Role(persona=PERSONA), engines, InMemoryJournal(), stream_deltas=True, engine_away_timeout_s=5
    )
    asked = call().model_copy(update={"max_tokens": max_tokens})
    try:
        (outcome,) = await outcomes(agent, request((asked,), deadline_s=25))
    finally:
        await engines.close()
    return outcome


@pytest.mark.parametrize("case", ANSWERED)
async def test_a_readable_answer_is_taken_at_its_first_request(case: str) -> None:
    played = RECORDED[case]
    async with recorded(case).serving() as engine:
        outcome = await outcome_of(engine, played["url_ends_with"], **played["engine"])
    right = "x = 1\n\ty = 2" if case == "9" else "42"
    assert outcome.problem is None and json.loads(outcome.text or "")["answer"] == right, played["right"]
    assert len(engine.bodies) == outcome.usage.calls == 1


@pytest.mark.parametrize(
    ("case", "code", "words", "requests"),
    [
        ("6c", "engine_unavailable", "broke its stream off", 3),
        ("14a", "answer_withheld", 'the model refused: "I can\'t assist."', 1),
        ("14b", "answer_withheld", "a content filter of the engine stopped the answer", 1),
        ("21b", "engine_unavailable", "quota", 3),
        ("29", "invalid_output", "stopped at 196 of 4,096 tokens: its context is full", 2),
    ],
)
async def test_a_reply_without_an_answer_says_why(case: str, code: str, words: str, requests: int) -> None:
    async with recorded(case).serving() as engine:
        outcome = await outcome_of(engine, max_tokens=4_096)
    assert outcome.problem is not None
    assert (outcome.problem.code, len(engine.bodies)) == (code, requests)
    assert words in outcome.problem.detail


@pytest.mark.parametrize("case", ["17a", "17c"])
async def test_a_retry_after_is_waited_for_once(case: str) -> None:
    told = {"17a": "2", "17c": "1.5"}[case]
    refusal = whole(b"{}", "429 Too Many Requests", headers=f"Retry-After: {told}\r\n")
    answer = [piece.encode("latin-1") for piece in RECORDED["6a"]["replies"][0]["pieces"]]
    async with RawEngine([[refusal], answer]).serving() as engine:
        began = datetime.now(UTC)
        outcome = await outcome_of(engine)
    assert outcome.problem is None and len(engine.bodies) == 2
    assert datetime.now(UTC) - began >= timedelta(seconds=float(told))


async def test_a_wait_beyond_the_deadline_ends_the_call_at_once() -> None:
    refusal = whole(b"{}", "429 Too Many Requests", headers="Retry-After: 600\r\n")
    async with RawEngine([[refusal]]).serving() as engine:
        began = datetime.now(UTC)
        outcome = await outcome_of(engine)
    assert outcome.problem is not None and "429" in outcome.problem.detail and len(engine.bodies) == 1
    assert datetime.now(UTC) - began < timedelta(seconds=10)


@pytest.mark.parametrize("case", ["2a", "2b", "2c", "2e", "2f"])
async def test_a_list_of_models_that_is_of_no_use_is_described(case: str) -> None:
    async with recorded(case).serving() as engine:
        engines = Engines([EngineSpec(url=engine.url, model="m")])
        await engines.probe()
        await engines.close()
    state = engines.engines[0]
    assert state.healthy and state.models == ("m",)
    assert bool(state.list_problem) == (case not in ("2a", "2c")), state.list_problem


async def test_an_engine_without_a_list_and_without_a_named_model_is_named() -> None:
    async with recorded("2f").serving() as engine:
        engines = Engines([EngineSpec(url=engine.url)])
        await engines.probe()
        await engines.close()
    assert not engines.engines[0].healthy and "500" in engines.engines[0].list_problem


async def test_the_simulator_plays_each_recorded_reply_by_name() -> None:
    async with simulating("--model", "simulated-m") as (simulator, client):
        for name in ("4a", "16a", "32a", "33e", "21a"):
            (await client.post("/simulator/script", json={"reply": name})).raise_for_status()
            outcome = await outcome_of(RawEngine([], url=simulator.url))
            assert outcome.problem is None and json.loads(outcome.text or "")["answer"] == "42", name
        refused = await client.post("/simulator/script", json={"reply": "nobody's"})
        assert refused.status_code == 400 and "33e" in refused.text
