import asyncio
import traceback
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.deliberation.errors import EngineRejected, EngineUnavailable, InvalidRequest
from app.deliberation.roles import EngineSpec
from serve_deployments.engine import client
from serve_deployments.engine.client import Engines
from serve_deployments.engine.replies import EngineReply, Meter
from serve_deployments.engine.state import EngineFull, KeyRefused
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.integration.agent.scripted_engine import ANSWER, ScriptedEngine, streamed
from tests.integration.agent.stage_runs import call, outcomes, replica, request
from tests.integration.engine.streamed_replies import CALL, SALT, Pieces

OLD, NEW = "sk-old-0123456789", "sk-new-0123456789"


def replace(path: Path, key: str | None) -> None:
    if key is None:
        path.unlink()
    else:
        path.write_text(key)


class KeyedEngine:
    def __init__(self, key: str = OLD, *, public_models: bool = False, status: int = 401) -> None:
        self.key = key
        self.public_models = public_models
        self.status = status
        self.sent: list[str | None] = []
        self.headers: list[httpx.Headers] = []
        self.reply: httpx.Response | None = None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        given = request.headers.get("authorization")
        models = request.url.path == "/v1/models"
        if not models:
            self.sent.append(given)
            self.headers.append(request.headers)
        if given != f"Bearer {self.key}" and not (models and self.public_models):
            return httpx.Response(self.status, stream=Pieces([f"no such key: {given}".encode()]))
        if models:
            return httpx.Response(200, json={"data": [{"id": "m", "owned_by": "them"}]})
        return self.reply or streamed(ANSWER)


def engines_of(engine: KeyedEngine, *specs: EngineSpec, **more: Any) -> Engines:
    return Engines(specs, transport=httpx.MockTransport(engine), **more)


async def ask(engines: Engines) -> EngineReply:
    async def take(_: str) -> None:
        return

    state = engines.engines[0]
    model = await engines.model_of(state, None)
    return await engines.complete(state, CALL, model, seed=7, trace="d.c.1", on_text=take, meter=Meter(), salt=SALT)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{OLD}\n")
    return path


@pytest.fixture
def spec(key_file: Path) -> EngineSpec:
    return EngineSpec(name="hosted", url="http://engine", api_key_file=str(key_file), headers={"X-Team": "council"})


async def test_every_request_carries_the_key_and_the_headers_of_its_engine(spec: EngineSpec) -> None:
    engine = KeyedEngine()
    assert (await ask(engines_of(engine, spec))).text == ANSWER
    assert engine.sent == [f"Bearer {OLD}"]
    assert [headers["x-team"] for headers in engine.headers] == ["council"]


async def test_a_key_of_the_environment_is_read_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTED_KEY", OLD)
    engine, spec = KeyedEngine(), EngineSpec(name="hosted", url="http://engine", api_key_env="HOSTED_KEY")
    await ask(engines_of(engine, spec))
    assert engine.sent == [f"Bearer {OLD}"]
    monkeypatch.delenv("HOSTED_KEY")
    with pytest.raises(InvalidRequest, match=r"engines\.hosted\.api_key_env: variable HOSTED_KEY is not set"):
        engines_of(engine, spec)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("public_models", [False, True])
async def test_a_refused_key_ends_the_call_at_once_and_is_told(
    spec: EngineSpec, status: int, public_models: bool
) -> None:
    engine = KeyedEngine(NEW, public_models=public_models, status=status)
    agent = replica(ScriptedEngine(lambda *_: streamed(ANSWER)), InMemoryJournal())
    agent.engines = engines_of(engine, spec)
    (outcome,) = await outcomes(agent, request((call(),)))
    assert outcome.problem is not None
    assert (outcome.problem.code, outcome.problem.retryable) == ("engine_rejected", False)
    assert outcome.problem.detail == (
        f"engine hosted (http://engine) answered {status}: it refuses the key of api_key_file {spec.api_key_file}; "
        f"correct the key in {spec.api_key_file}, which is read anew within seconds"
    )
    assert len(engine.sent) == int(public_models), "it is not tried again"
    described = (await agent.describe())["engines"][0]
    assert described["trouble"]["cause"] == "key" and OLD not in str(described)
    assert described["trouble"]["detail"] == f"refuses its key: it answered {status}"
    assert str(spec.api_key_file) in described["trouble"]["remedy"]
    engine.key = OLD
    await outcomes(agent, request((call(2),)))
    assert (await agent.describe())["engines"][0]["trouble"] is None, "taken again"


async def test_an_engine_that_wants_a_key_is_told_apart_from_a_wrong_key() -> None:
    with pytest.raises(KeyRefused, match="it wants a key; set VLLM_API_KEY for engines of VLLM_URL"):
        await ask(engines_of(KeyedEngine(), EngineSpec(url="http://engine")))


@pytest.mark.parametrize("public_models", [False, True])
async def test_a_replaced_key_is_used_at_once_when_the_old_one_is_refused(
    spec: EngineSpec, key_file: Path, public_models: bool
) -> None:
    engine = KeyedEngine(public_models=public_models)
    engines = engines_of(engine, spec)
    await ask(engines)
    replace(key_file, NEW)
    engine.key = NEW
    assert (await ask(engines)).text == ANSWER
    assert engine.sent == [f"Bearer {OLD}", f"Bearer {OLD}", f"Bearer {NEW}"]
    assert engines.engines[0].key_rejected is None


async def test_a_request_refused_after_another_one_read_the_new_key_is_sent_again(
    spec: EngineSpec, key_file: Path
) -> None:
    engine, late = KeyedEngine(NEW), asyncio.Event()
    held = False

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal held
        response = engine(request)
        if response.status_code == 401 and not held:
            held = True
            await late.wait()
        return response

    engine.public_models = True
    engines = Engines([spec], transport=httpx.MockTransport(answer))
    await engines.model_of(engines.engines[0], None)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(ask(engines))
        await until(lambda: held)
        await asyncio.to_thread(replace, key_file, NEW)
        assert (await ask(engines)).text == ANSWER
        late.set()

    assert first.result().text == ANSWER and engines.engines[0].key_rejected is None


async def test_a_key_file_is_read_anew_while_nothing_is_refused(
    spec: EngineSpec, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CHECK_INTERVAL_S", 0.01)
    engine = KeyedEngine()
    engines = engines_of(engine, spec)
    (state,) = engines.engines
    watching = asyncio.create_task(engines.watch())
    replace(key_file, None)
    await asyncio.sleep(0)
    assert state.key.headers == [("Authorization", f"Bearer {OLD}")], "kept while the file is away"
    replace(key_file, NEW)
    await until(lambda: state.key.headers == [("Authorization", f"Bearer {NEW}")])
    watching.cancel()
    await engines.close()


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_no_error_holds_the_key_that_an_engine_repeats(spec: EngineSpec, status: int) -> None:
    engine = KeyedEngine()
    engine.reply = httpx.Response(status, stream=Pieces([f"data: you said Bearer {OLD}\n\n".encode()]))
    engines = engines_of(engine, spec)
    with pytest.raises((EngineUnavailable, EngineRejected)) as caught:
        await ask(engines)
    assert "Bearer ***" in str(caught.value)
    assert OLD not in str(caught.value) and OLD not in repr(caught.value)
    assert OLD not in f"{engines.engines[0]!r} {engines.engines[0].key!r} {spec!r}"
    assert str(caught.value) in "".join(traceback.format_exception(caught.value))


async def test_the_fallback_is_asked_only_while_no_first_choice_can_take_a_call(spec: EngineSpec) -> None:
    second = EngineSpec(url="http://second")
    engines = engines_of(KeyedEngine(), spec, fallback=[second])
    first, fallback = engines.engines
    first.in_flight = 100
    assert engines.choose("d", []) is first, "busy is not away"
    assert engines.choose("d", [first]) is fallback, "it failed the call"
    first.refuses_key(401)
    assert engines.choose("d", []) is fallback
    first.accepts_key()
    first.circuit.failed(0.0, unreachable=True)
    first.circuit.begin()
    assert engines.choose("d", []) is fallback


async def test_a_full_engine_makes_calls_wait_for_a_slot() -> None:
    engines = engines_of(KeyedEngine(), EngineSpec(url="http://engine", max_in_flight=1))
    (engine,) = engines.engines
    with engines.requesting(engine):
        assert engines.choose("d", []) is None
        with pytest.raises(EngineFull), engines.requesting(engine):
            pass
        waiting = asyncio.create_task(engines.wait_for_engine("d", [], 0))
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await waiting is engine
