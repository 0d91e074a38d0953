"""The contract over real servers that nobody here wrote: what each gives, and by name what it cannot do.

Their weights are RANDOM and their words noise: only forms, counts and protocol are looked at. A server that learns what
it lacked fails here too, so that the table of docs/engines.md stays true.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import jsonschema
import pytest

from app.deliberation.outputs import Output, json_schema
from app.deliberation.roles import EngineSpec, Role
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from tests.engines.forms import OUTPUTS, assert_valid, calls_for
from tests.engines.servers import KEY, gguf_server, litellm_server, llama_server
from tests.environments import ROOT
from tests.fakes import InMemoryJournal
from tests.integration.agent.stage_runs import outcomes, request
from tests.vllm.protocol import CHAT, TASK
from tests.vllm.server import Engine

SCHEMA = json_schema(Output(kind="pair"))
FORM = {"type": "json_schema", "json_schema": {"name": "pair", "schema": SCHEMA, "strict": True}}


@dataclass(frozen=True)
class Server:
    structured: str
    cannot: frozenset[str]
    key: str | None = KEY
    at_once: int | None = None


SERVERS = {
    "vLLM": Server("json_schema", frozenset(), key=None),
    "llama.cpp": Server("json_schema", frozenset({"refuses an unknown model"})),
    "llama-cpp-python": Server(
        "json_object",
        frozenset({"json_schema", "tokens of a stream", "cached tokens", "refuses an unknown model"}),
        at_once=1,
    ),
    "LiteLLM": Server("json_object", frozenset({"json_schema", "cached tokens"}), at_once=1),
}
FIXTURES = {
    "vLLM": "vllm_engine",
    "llama.cpp": "gguf_engine",
    "llama-cpp-python": "llama_engine",
    "LiteLLM": "litellm_engine",
}
MARKS = {
    "vLLM": pytest.mark.vllm,
    "llama.cpp": pytest.mark.vllm,
    "llama-cpp-python": pytest.mark.engines,
    "LiteLLM": pytest.mark.engines,
}


@pytest.fixture(scope="session")
def gguf_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with gguf_server(tmp_path_factory.mktemp("gguf") / "gguf.log") as engine:
        yield engine


@pytest.fixture(scope="session")
def llama_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with llama_server(tmp_path_factory.mktemp("llama") / "llama.log") as engine:
        yield engine


@pytest.fixture(scope="session")
def litellm_engine(llama_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with litellm_server(tmp_path_factory.mktemp("litellm") / "litellm.log", llama_engine) as engine:
        yield engine


@pytest.fixture(params=[pytest.param(name, marks=MARKS[name]) for name in SERVERS])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def server(name: str) -> Server:
    return SERVERS[name]


@pytest.fixture
def engine(name: str, request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue(FIXTURES[name])


@pytest.fixture
async def agent(server: Server, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AgentReplica]:
    monkeypatch.setenv("SERVER_KEY", server.key or "")
    spec = EngineSpec(
        url=engine.url,
        api_key_env="SERVER_KEY" if server.key else None,
        max_in_flight=server.at_once,
        idle_timeout_s=120,
    )
    engines = Engines([spec])
    yield AgentReplica(
        "DEV", Role(persona="p"), engines, InMemoryJournal(), stream_deltas=True, engine_away_timeout_s=300
    )
    await engines.close()


@pytest.fixture
async def client(server: Server, engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    async with httpx.AsyncClient(base_url=engine.url, headers=headers, timeout=120) as client:
        yield client


def body(engine: Engine, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": TASK}]
    return {"model": engine.model, "messages": messages, "max_tokens": 2_048, "seed": 1, "temperature": 0.7, **fields}


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_every_form_is_answered_and_how_is_recorded(agent: AgentReplica, server: Server, streamed: bool) -> None:
    agent.stream_deltas = streamed
    asked = calls_for(OUTPUTS)
    found = await outcomes(agent, request(asked, deadline_s=300))
    assert_valid(asked, found)
    assert {outcome.structured for outcome in found} == {server.structured}
    assert {outcome.usage_estimated for outcome in found} == {streamed and "tokens of a stream" in server.cannot}
    assert all(outcome.usage.prompt_tokens and outcome.usage.completion_tokens for outcome in found)


async def test_what_a_server_lacks_is_found_out_once(agent: AgentReplica, server: Server) -> None:
    first, second = calls_for(OUTPUTS[:1]), calls_for(OUTPUTS[:2], first=2)
    assert_valid(first, await outcomes(agent, request(first, deadline_s=300)))
    (known,) = agent.engines.engines[0].dialects.values()
    assert_valid(second, await outcomes(agent, request(second, deadline_s=300)))
    assert [*agent.engines.engines[0].dialects.values()] == [known]
    assert known.structured == server.structured


async def test_a_prompt_that_does_not_fit_ends_its_call(agent: AgentReplica) -> None:
    (asked,) = calls_for(OUTPUTS[:1])
    long = asked.messages[-1].model_copy(update={"content": "word " * 20_000})
    asked = asked.model_copy(update={"messages": (*asked.messages[:-1], long)})
    (outcome,) = await outcomes(agent, request((asked,), deadline_s=120))
    assert outcome.problem is not None and outcome.text is None
    after = calls_for(OUTPUTS[:1], first=2)
    assert_valid(after, await outcomes(agent, request(after, deadline_s=300)))


async def gives(client: httpx.AsyncClient, engine: Engine, form: dict[str, Any]) -> bool:
    response = await client.post(CHAT, json=body(engine, response_format=form))
    if response.status_code != 200:
        return False
    jsonschema.validate(json.loads(response.json()["choices"][0]["message"]["content"]), SCHEMA)
    return True


async def takes_schema(client: httpx.AsyncClient, engine: Engine) -> bool:
    return await gives(client, engine, FORM)


async def counts_tokens_of_a_stream(client: httpx.AsyncClient, engine: Engine) -> bool:
    asked = body(engine, stream=True, stream_options={"include_usage": True}, max_tokens=16)
    lines = (await client.post(CHAT, json=asked)).raise_for_status().text.splitlines()
    events = [json.loads(line[5:]) for line in lines if line.startswith("data: {")]
    return any((event.get("usage") or {}).get("completion_tokens") for event in events)


async def counts_cached_tokens(client: httpx.AsyncClient, engine: Engine) -> bool:
    asked = body(engine, max_tokens=1, messages=[{"role": "user", "content": TASK * 40}])
    for _ in range(2):
        usage = (await client.post(CHAT, json=asked)).raise_for_status().json()["usage"]
    return bool((usage.get("prompt_tokens_details") or {}).get("cached_tokens"))


async def repeats_itself(client: httpx.AsyncClient, engine: Engine) -> bool:
    texts = [
        (await client.post(CHAT, json=body(engine, seed=seed, temperature=0.9))).raise_for_status().json()["choices"]
        for seed in (5, 5, 6)
    ]
    same, again, other = (found[0]["message"]["content"] for found in texts)
    return same == again and same != other


async def refuses_an_unknown_model(client: httpx.AsyncClient, engine: Engine) -> bool:
    return (await client.post(CHAT, json=body(engine, model="nobody", max_tokens=1))).status_code in (400, 404)


FEATURES: dict[str, Callable[[httpx.AsyncClient, Engine], Awaitable[bool]]] = {
    "json_schema": takes_schema,
    "tokens of a stream": counts_tokens_of_a_stream,
    "cached tokens": counts_cached_tokens,
    "seed": repeats_itself,
    "refuses an unknown model": refuses_an_unknown_model,
}


@pytest.mark.parametrize("feature", FEATURES)
async def test_a_server_gives_what_it_is_not_said_to_lack(
    client: httpx.AsyncClient, engine: Engine, server: Server, feature: str
) -> None:
    assert await FEATURES[feature](client, engine) is (feature not in server.cannot)


async def test_calls_at_once_are_all_answered(agent: AgentReplica) -> None:
    asked = calls_for(OUTPUTS[:1] * 6)
    stages = await asyncio.gather(*(outcomes(agent, request(asked[at::2], deadline_s=300)) for at in range(2)))
    for at, found in enumerate(stages):
        assert_valid(asked[at::2], found)


@pytest.mark.engines
@pytest.mark.parametrize(("name", "code"), [("llama-cpp-python", "engine_rejected"), ("LiteLLM", "engine_unavailable")])
async def test_a_wrong_key_ends_its_call(
    agent: AgentReplica, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    """LiteLLM without a database answers 400 "No connected db." where others answer 401, also to probes."""
    monkeypatch.setenv("SERVER_KEY", "sk-wrong")
    engines = Engines([agent.engines.engines[0].spec])
    monkeypatch.setattr(agent, "engines", engines)
    (asked,) = calls_for(OUTPUTS[:1])
    (outcome,) = await outcomes(agent, request((asked,), deadline_s=10))
    await engines.close()
    assert outcome.problem is not None and outcome.problem.code == code
    assert (engines.engines[0].key_rejected is not None) is (code == "engine_rejected")


def test_the_documentation_lists_what_each_server_cannot_do() -> None:
    text = (ROOT / "docs" / "engines.md").read_text()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    rows = {first.strip("`"): rest for first, *rest in cells}
    for feature in FEATURES:
        lacking = [cell.startswith("no") for cell in rows[feature]]
        assert lacking == [feature in server.cannot for server in SERVERS.values()], feature


def test_every_lack_is_a_feature_that_is_tested() -> None:
    assert set().union(*(server.cannot for server in SERVERS.values())) <= set(FEATURES)
