"""The spans that an agent records: a chat for each request that was written, and a run of the sandbox."""

import asyncio
from typing import Any

import httpx

from app.deliberation.calls import Check, StageRequest
from app.deliberation.roles import EngineSpec, Role
from app.observability import conventions as names
from app.observability.trace_context import DeliberationTrace
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.integration.agent.scripted_engine import ANSWER, ScriptedEngine, streamed
from tests.integration.agent.stage_runs import call, outcomes, request
from tests.otlp import KeptSpans

TRACE = DeliberationTrace.of("d1", None)
STAGE = TRACE.stage(1).traceparent


def traced(engine: Any, spans: KeptSpans, url: str = "http://engine:81/v1") -> AgentReplica:
    transport = httpx.MockTransport(engine) if engine else None
    client = Engines([EngineSpec(url=url)], transport=transport, tracer=spans)
    options: dict[str, Any] = {"stream_deltas": True, "engine_away_timeout_s": 30, "tracer": spans}
    return AgentReplica("DEV", Role(persona="p"), client, InMemoryJournal(), **options)


def asked(*calls: Any, traceparent: str | None = STAGE, **more: Any) -> StageRequest:
    return request(calls, **more).model_copy(update={"traceparent": traceparent})


async def test_a_request_is_a_chat_below_its_agents_call_and_names_it_to_the_engine() -> None:
    heads: list[str | None] = []
    spans, engine = KeptSpans(), ScriptedEngine(lambda *_: streamed(ANSWER))

    async def answer(got: httpx.Request) -> httpx.Response:
        if got.method == "POST":
            heads.append(got.headers.get("traceparent"))
        return await engine(got)

    await outcomes(traced(answer, spans), asked(call(1)))
    (chat,) = spans.spans
    assert (chat.name, chat.kind, chat.error, chat.links) == ("chat scripted", "client", None, [])
    assert chat.parent_id == TRACE.agent("s1-dev-001").span_id and heads == [chat.ref.traceparent]
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "engine",
        "gen_ai.conversation.id": "d1",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.seed": 11,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "server.address": "engine",
        "server.port": 81,
    }
    assert {name: chat.attributes[name] for name in expected} == expected
    assert "gen_ai.input.messages" not in chat.attributes


async def test_prompts_and_answers_stand_in_a_chat_where_content_is_captured() -> None:
    spans = KeptSpans(captures_content=True)
    await outcomes(traced(ScriptedEngine(lambda *_: streamed(ANSWER)), spans), asked(call(1)))
    (chat,) = spans.spans
    assert '"content": "s"' in str(chat.attributes["gen_ai.input.messages"])
    assert "answer" in str(chat.attributes["gen_ai.output.messages"])


async def test_a_retry_links_to_the_failed_attempt() -> None:
    spans = KeptSpans()
    engine = ScriptedEngine(lambda _, number: httpx.Response(500) if number == 1 else streamed(ANSWER))
    await outcomes(traced(engine, spans), asked(call(1)))
    failed, answered = spans.spans
    assert (failed.error, answered.error) == ("engine_unavailable", None)
    assert answered.links == [failed.ref] and failed.ref != answered.ref


async def test_the_attempt_of_a_successor_links_to_that_of_the_lost_replica() -> None:
    lost, spans = KeptSpans(), KeptSpans()
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    engine.hold = asyncio.Event()
    before = traced(engine, lost)
    hanging = asyncio.create_task(before.run_stage(asked(call(1))))
    await until(lambda: bool(engine.bodies))
    successor = traced(ScriptedEngine(lambda *_: streamed(ANSWER)), spans)
    successor.journal = before.journal
    await outcomes(successor, asked(call(1), resumed=True))
    engine.hold.set()
    await hanging
    assert spans.spans[0].attributes[names.ATTEMPT] == 2
    assert spans.spans[0].links == [lost.spans[0].ref]


async def test_what_is_not_recorded_has_neither_span_nor_header() -> None:
    heads: list[str | None] = []
    spans, engine = KeptSpans(), ScriptedEngine(lambda *_: streamed(ANSWER))

    async def answer(got: httpx.Request) -> httpx.Response:
        heads.append(got.headers.get("traceparent"))
        return await engine(got)

    await outcomes(traced(answer, spans), asked(call(1), traceparent=None))
    assert spans.spans == [] and set(heads) == {None}


async def test_a_stopped_request_ends_its_chat() -> None:
    spans, engine = KeptSpans(), ScriptedEngine(lambda *_: streamed(ANSWER))
    engine.hold = asyncio.Event()
    agent = traced(engine, spans)
    running_stage = asyncio.create_task(outcomes(agent, asked(call(1), deadline_s=0.5)))
    await until(lambda: bool(engine.bodies))
    (outcome,) = await running_stage
    assert outcome.problem is not None and outcome.problem.code == "call_timeout"
    assert [each.error for each in spans.spans] == ["cancelled"]


async def test_a_request_that_was_not_written_is_no_chat() -> None:
    spans = KeptSpans()
    # Nothing listens on the port of a server that has closed.
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    agent = traced(None, spans, f"http://127.0.0.1:{port}")
    agent.engines.engines[0].models, agent.engines.engines[0].extended = ("scripted",), False
    (outcome,) = await outcomes(agent, asked(call(1), deadline_s=1.0))
    assert outcome.problem is not None and spans.spans == []


async def test_a_run_of_the_sandbox_is_a_span_in_place_of_a_chat() -> None:
    spans, engine = KeptSpans(), ScriptedEngine(lambda *_: streamed(ANSWER))
    agent = traced(engine, spans)
    check = Check(code="def f(x):\n    return x\n", tests=(), timeout_s=5, memory_mb=256)
    await outcomes(agent, asked(call(1).model_copy(update={"check": check})))
    (run,) = spans.spans
    assert (run.name, run.parent_id) == ("sandbox", TRACE.agent("s1-dev-001").span_id)
    assert engine.bodies == []
