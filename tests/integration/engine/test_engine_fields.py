import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import respx
from hypothesis import given, settings
from hypothesis import strategies as st

from app.deliberation.calls import BATCH_AFTER, Call, ChatMessage
from app.deliberation.errors import CallTimeout, EngineUnavailable
from app.deliberation.roles import EngineSpec, Role
from app.operations.survey import INQUIRY_TIMEOUT_S
from app.operations.surveyor import PROBED_WITHIN_S as SURVEYED_WITHIN_S
from serve_deployments.agent.agent import PROBE_WITHIN_S, PROBED_WITHIN_S, AgentReplica
from serve_deployments.agent.call import cache_salt
from serve_deployments.engine.client import PROBE_TIMEOUT_S, Engines
from serve_deployments.engine.replies import Meter
from serve_deployments.engine.request_body import request_body
from serve_deployments.engine.state import EngineUnreachable
from tests.fakes import InMemoryJournal
from tests.integration.agent.scripted_engine import ANSWER, ScriptedEngine, streamed
from tests.integration.agent.stage_runs import call, outcomes, replica, request
from tests.integration.engine.streamed_replies import CALL, CHAT, SALT, URL, WHOLE_STREAM, Pieces

# Fields that other engines might refuse, and all allowed fields.
VLLM_ONLY = {"cache_salt", "stream_interval", "priority"}
ALLOWED = VLLM_ONLY | set(
    "model messages temperature top_p max_tokens seed response_format stream stream_options".split()
)
HOSTILE = st.text(max_size=40) | st.sampled_from(['", "cache_salt": "x', '{"cache_salt": "x"}', "\x00\u2028</s>"])


@pytest.fixture
def router() -> respx.MockRouter:
    return respx.MockRouter(assert_all_called=False)


@pytest.fixture
def engines(router: respx.MockRouter) -> Engines:
    return Engines([EngineSpec(url=URL)], transport=httpx.MockTransport(router.async_handler))


async def ask(engines: Engines, priority: int = 0) -> None:
    async def take(_: str) -> None:
        return

    given = {"seed": 7, "trace": "d.c.1", "salt": SALT, "priority": priority}
    await engines.complete(engines.engines[0], CALL, "m", on_text=take, meter=Meter(), **given)  # pyright: ignore


@settings(max_examples=60)
@given(
    calls=st.builds(
        Call,
        call_id=st.just(CALL.call_id),
        agent_id=st.just(CALL.agent_id),
        role=st.just(CALL.role),
        model=st.none() | st.text(min_size=1, max_size=8),
        messages=st.lists(
            st.builds(ChatMessage, role=st.sampled_from(["system", "user"]), content=HOSTILE), min_size=1, max_size=3
        ).map(tuple),
        output=st.just(CALL.output),
        temperature=st.floats(0, 2),
        top_p=st.none() | st.floats(0.1, 1),
        max_tokens=st.integers(1, 32_768),
        seed=st.integers(0, 2**31),
    ),
    stream=st.booleans(),
    salt=st.none() | st.just(SALT),
)
def test_client_input_adds_no_request_field_and_sets_no_salt(calls: Call, stream: bool, salt: str | None) -> None:
    body = json.loads(request_body(calls, "m", 9, stream=stream, salt=salt))
    assert body.keys() <= ALLOWED and (salt is not None or not VLLM_ONLY & body.keys())
    assert body.get("cache_salt") == salt
    assert [set(message) for message in body["messages"]] == [{"role", "content"}] * len(calls.messages)
    assert [message["content"] for message in body["messages"]] == [message.content for message in calls.messages]
    assert set(body.get("stream_options", ())) <= {"include_usage", *(("continuous_usage_stats",) if salt else ())}


def test_a_tenants_salt_is_unique_stable_and_not_its_name() -> None:
    tenants = ["default", "acme", "acme2", "a", "deliberation-gateway"]
    salts = [cache_salt(tenant) for tenant in tenants]
    assert salts == [cache_salt(tenant) for tenant in tenants] and len(set(salts)) == len(tenants)
    assert all(tenant not in salt and len(salt) == 32 for tenant, salt in zip(tenants[1:3], salts[1:3], strict=True))


@pytest.mark.parametrize(("owned_by", "salted"), [("vllm", True), ("simulator", True), ("another", False)])
async def test_probes_each_engine_first_and_sends_a_salt_only_where_it_is_known(
    router: respx.MockRouter, engines: Engines, owned_by: str, salted: bool
) -> None:
    """Also where the role names its model, so that the probe is not needed for it."""
    models = {"data": [{"id": "m", "owned_by": owned_by}]}
    asked = router.get(f"{URL}/v1/models").mock(return_value=httpx.Response(200, json=models))
    router.get(f"{URL}/version").mock(return_value=httpx.Response(200, json={"version": "0.32.0"}))
    route = router.post(CHAT).mock(return_value=httpx.Response(200, stream=Pieces(WHOLE_STREAM)))
    for _ in range(2):
        assert await engines.model_of(engines.engines[0], "named") == "named"
    await ask(engines, priority=3)
    body: dict[str, object] = json.loads(route.calls.last.request.content)
    assert (body.get("cache_salt") == SALT, bool(VLLM_ONLY & body.keys())) == (salted, salted)
    assert engines.engines[0].version == ("0.32.0" if salted else None)
    assert len(asked.calls) == 1, "once"


async def test_sends_nothing_to_an_engine_of_unknown_kind(router: respx.MockRouter, engines: Engines) -> None:
    router.get(f"{URL}/v1/models").mock(side_effect=httpx.ConnectError("refused"))
    with pytest.raises(EngineUnreachable):
        await engines.model_of(engines.engines[0], "named")


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_an_engine_without_a_model_list_takes_a_named_model(
    router: respx.MockRouter, engines: Engines, status: int
) -> None:
    router.get(f"{URL}/v1/models").mock(return_value=httpx.Response(status))
    (engine,) = engines.engines
    assert await engines.model_of(engine, "named") == "named" and engine.healthy and not engine.extended
    with pytest.raises(EngineUnavailable, match="names no model"):
        await engines.model_of(engine, None)


@pytest.mark.parametrize("body", ["<html>", "[]", "{}", "7"])
async def test_an_unreadable_version_is_none(router: respx.MockRouter, engines: Engines, body: str) -> None:
    models = {"data": [{"id": "m", "owned_by": "vllm"}]}
    router.get(f"{URL}/v1/models").mock(return_value=httpx.Response(200, json=models))
    router.get(f"{URL}/version").mock(return_value=httpx.Response(200, text=body))
    await engines.probe()
    assert engines.engines[0].healthy and engines.engines[0].version is None


async def test_brief_probes_of_a_hanging_engine_return_in_time_and_share_one_request() -> None:
    asked: list[httpx.Request] = []

    async def hangs(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        await asyncio.Event().wait()
        raise AssertionError

    engines = Engines([EngineSpec(url=URL)], transport=httpx.MockTransport(hangs))
    async with asyncio.timeout(5):
        await asyncio.gather(*(engines.probe_briefly(0.01) for _ in range(8)))
        await engines.probe_briefly(0.01)
    assert len(asked) == 1
    await engines.close()


async def test_an_agent_with_a_hanging_engine_describes_itself_in_time() -> None:
    async def hangs(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    engines = Engines([EngineSpec(url=URL)], transport=httpx.MockTransport(hangs))
    agent = AgentReplica(
        "DEV", Role(persona="p"), engines, InMemoryJournal(), stream_deltas=True, engine_away_timeout_s=30
    )
    assert PROBE_WITHIN_S < INQUIRY_TIMEOUT_S and PROBED_WITHIN_S < SURVEYED_WITHIN_S
    async with asyncio.timeout(PROBE_TIMEOUT_S):
        described = await agent.describe()
    assert (described["role"], described["in_flight"], described["concurrency"]) == ("DEV", 0, agent.role.concurrency)
    assert described["application"] is None and described["versions"]["ray"] is None
    await engines.close()


class Vllm(ScriptedEngine):
    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"data": [{"id": "scripted", "owned_by": "vllm"}]})
        if request.url.path == "/version":
            return httpx.Response(200, json={"version": "0.32.0"})
        return await super().__call__(request)


async def test_every_request_and_retry_carries_the_tenants_salt() -> None:
    engine = Vllm(lambda _, number: httpx.Response(500, stream=Pieces([])) if number == 1 else streamed(ANSWER))
    agent = replica(engine, InMemoryJournal())
    for tenant, deliberation_id in (("acme", "d1"), ("rival", "d2")):
        asked = request((call(),)).model_copy(update={"tenant": tenant, "deliberation_id": deliberation_id})
        assert [outcome.text for outcome in await outcomes(agent, asked)] == [ANSWER]
    assert [body["cache_salt"] for body in engine.bodies] == [cache_salt("acme")] * 2 + [cache_salt("rival")]


@pytest.mark.parametrize("streamed_refusal", [False, True])
@pytest.mark.parametrize("priority", [3, BATCH_AFTER + 3])
async def test_an_engine_that_refuses_priorities_is_asked_once_more_without_and_then_never(
    router: respx.MockRouter, engines: Engines, *, priority: int, streamed_refusal: bool
) -> None:
    models = {"data": [{"id": "m", "owned_by": "vllm"}]}
    router.get(f"{URL}/v1/models").mock(return_value=httpx.Response(200, json=models))
    router.get(f"{URL}/version").mock(return_value=httpx.Response(404))
    error = {"error": {"message": "Got priority 3 but Priority scheduling is not enabled.", "code": 400}}

    def answer(request: httpx.Request) -> httpx.Response:
        if "priority" not in json.loads(request.content):
            return httpx.Response(200, stream=Pieces(WHOLE_STREAM))
        if streamed_refusal:
            return httpx.Response(200, stream=Pieces([f"data: {json.dumps(error)}\n\n".encode()]))
        return httpx.Response(400, stream=Pieces([json.dumps(error).encode()]))

    route = router.post(CHAT).mock(side_effect=answer)
    (engine,) = engines.engines
    await engines.model_of(engine, None)
    for _ in range(2):
        await ask(engines, priority=priority)
    sent = [json.loads(call.request.content).get("priority") for call in route.calls]
    assert sent == [priority, None, None] and engine.healthy and not engine.prioritises


class Stalled(Pieces):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
        await asyncio.Event().wait()


async def test_a_batch_call_may_wait_for_its_first_text_beyond_the_idle_time_and_not_for_its_next(
    router: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It yields in the engine's queue; counted as failures, such waits would open the circuit for interactive calls."""
    spec = EngineSpec(url=URL, idle_timeout_s=1)
    engines = Engines([spec], transport=httpx.MockTransport(router.async_handler))
    models = {"data": [{"id": "m", "owned_by": "vllm"}]}
    router.get(f"{URL}/v1/models").mock(return_value=httpx.Response(200, json=models))
    router.get(f"{URL}/version").mock(return_value=httpx.Response(404))
    (engine,) = engines.engines
    await engines.model_of(engine, None)
    engine.paces.append(0.0)
    route = router.post(CHAT).mock(return_value=httpx.Response(200, stream=Pieces(WHOLE_STREAM)))
    for priority in (1, BATCH_AFTER + 1):
        await ask(engines, priority=priority)
    assert [call.request.extensions["timeout"]["read"] for call in route.calls] == [1, None]
    assert len(engine.paces) == 1, "small prompts tell no pace"
    monkeypatch.setattr("serve_deployments.engine.state.PACED_TOKENS_MIN", 1)
    await ask(engines, priority=BATCH_AFTER + 1)
    assert len(engine.paces) == 1, "what waits behind all others tells no pace"
    await ask(engines, priority=1)
    assert len(engine.paces) == 2
    engine.paces.clear()
    engine.paces.append(0.0)
    router.post(CHAT).mock(return_value=httpx.Response(200, stream=Stalled(WHOLE_STREAM[:1])))
    with pytest.raises(CallTimeout, match="was silent for 1 seconds"):
        await ask(engines, priority=BATCH_AFTER + 1)
    await engines.close()


@pytest.mark.parametrize(
    ("told", "slots"), [({"total_slots": 4}, 4), ({"total_slots": None}, None), ({}, None), ([], None)]
)
async def test_llama_cpps_server_gets_as_many_calls_at_once_as_it_has_slots(
    router: respx.MockRouter, told: object, slots: int | None
) -> None:
    """A call that waits in the queue of the server is silent there, and so counts as lost."""
    engines = Engines([EngineSpec(url=URL)], transport=httpx.MockTransport(router.async_handler))
    listed = {"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 4_096, "n_ctx_train": 32_768}}
    router.get(f"{URL}/v1/models").mock(return_value=httpx.Response(200, json={"data": [listed]}))
    router.get(f"{URL}/props").mock(return_value=httpx.Response(200, json=told))
    (engine,) = engines.engines
    await engines.model_of(engine, None)
    assert engine.slots == slots and engine.listed == {"m": 4_096}
    engine.in_flight = 4
    assert engine.full is (slots == 4)
    await engines.close()
