"""Spans: their ids, what is recorded of a deliberation, and what the standard variables turn on."""

import asyncio
import io
import json
import socket
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
import structlog

from app.deliberation.fold import State, fold
from app.deliberation.specification import Specification
from app.observability import conventions as names
from app.observability import logs
from app.observability.deliberation_spans import deliberation_spans
from app.observability.environment import tracer_of_environment
from app.observability.trace_context import DeliberationTrace, SpanRef, active_span
from app.observability.traces import RecordedSpan, sampled_trace
from tests.conditions import until
from tests.otlp import Collector, attributes, collector
from tests.unit.facts_of import CouncilScript, run, specification
from tests.unit.strategies.stories import STORIES, story

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOW = datetime(2026, 11, 1, tzinfo=UTC)


def state_of(asked: Specification, script: CouncilScript) -> State:
    state = fold(enumerate(run(asked, script).facts, start=1))
    assert state is not None
    return state


def spans_of(state: State, traceparent: str | None = None, *, content: bool = False) -> list[RecordedSpan]:
    assert state.end is not None
    trace = DeliberationTrace.of(state.deliberation_id, traceparent)
    return list(deliberation_spans("acme", state, state.end, trace, content=content))


def span(ref: SpanRef, **more: object) -> RecordedSpan:
    given: dict[str, object] = {"parent_id": None, "began_at": NOW, "ended_at": NOW, "attributes": {}, **more}
    return RecordedSpan(name="invoke_workflow council", ref=ref, **given)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        TRACEPARENT + "-extra",
        TRACEPARENT.upper(),
    ],
)
def test_an_invalid_traceparent_names_no_span(given: str | None) -> None:
    assert SpanRef.of_traceparent(given) is None


@pytest.mark.parametrize("given", [TRACEPARENT, TRACEPARENT[:-1] + "0", "01" + TRACEPARENT[2:] + "-later"])
def test_a_traceparent_names_a_span_and_whether_it_is_sampled(given: str) -> None:
    found = SpanRef.of_traceparent(given)
    assert found is not None
    assert (found.traceparent[3:52], found.sampled) == (given[3:52], given[54] == "1")


def test_every_process_derives_the_same_ids_and_a_client_names_the_trace() -> None:
    one, same = DeliberationTrace.of("a1", None), DeliberationTrace.of("a1", None)
    assert (one.workflow, one.stage(1), one.agent("c")) == (same.workflow, same.stage(1), same.agent("c"))
    assert one.trace_id != DeliberationTrace.of("a2", None).trace_id
    assert DeliberationTrace.of("a1", TRACEPARENT).workflow.traceparent.split("-")[1] == TRACEPARENT.split("-")[1]


@pytest.mark.parametrize("name", STORIES)
def test_an_ended_deliberation_is_one_tree_whose_events_are_evaluations_of_its_texts(name: str) -> None:
    state = fold(enumerate(story(name), start=1))
    assert state is not None
    found = spans_of(state)
    ids = {each.ref.span_id for each in found}
    assert len(ids) == len(found) == 1 + len(state.stages) + sum(len(each.opened.calls) for each in state.stages)
    assert [each.parent_id for each in found if each.parent_id not in ids] == [None]
    assert {each.ref.trace_id for each in found} == {DeliberationTrace.of(state.deliberation_id, None).trace_id}
    evaluated = {each.attributes[names.CALL_ID] for each in found if each.events}
    assert evaluated <= {id for id, each in state.finished.items() if each.answered}


def test_each_ballot_is_an_evaluation_of_its_candidate_with_reasons_only_where_content_is_captured() -> None:
    state = state_of(specification(3), CouncilScript())
    found = {bare: spans_of(state, content=not bare) for bare in (True, False)}
    events = [event for each in found[True] for event in each.events]
    criteria = len(state.specification.constraints.rubric)
    ballots = [each for stage in state.stages for each in stage.opened.calls if each.output == "score"]
    assert len(events) == sum(len(each.labels) for each in ballots) * criteria > 0
    assert {event.name for event in events} == {"gen_ai.evaluation.result"}
    assert all(names.EVALUATION_NAME in event.attributes for event in events)
    assert {event.attributes[names.EVALUATION_EXPLANATION] for event in events} == {None}
    reasons = [event.attributes[names.EVALUATION_EXPLANATION] for each in found[False] for event in each.events]
    assert None not in reasons


def test_a_workflow_is_the_clients_child_and_says_how_it_ended() -> None:
    state = state_of(specification(3, quorum=2), CouncilScript(failing=("s1-dev-001", "s1-dev-002", "s1-dev-003")))
    workflow, *others = spans_of(state, TRACEPARENT)
    assert workflow.parent_id == int(TRACEPARENT.split("-")[2], 16)
    assert (workflow.attributes[names.STATUS], workflow.error) == ("failed", "no_answers")
    assert {each.error for each in others if each.name.startswith("invoke_agent")} == {"engine_unavailable"}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "TRUE"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "zipkin"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
    ],
)
def test_without_an_endpoint_or_over_another_protocol_there_is_no_tracer(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tracer_of_environment("gateway") is None


def test_without_its_variables_no_process_imports_the_sdk() -> None:
    modules = "app.main, app.webhooks.sender.sender_process, serve_deployments.agent.worker"
    modules += ", serve_deployments.coordinator.coordinator"
    program = f"import sys, {modules}\nfrom app.observability.environment import tracer_of_environment as of\n"
    program += "loaded = [each for each in sys.modules if each.startswith('opentelemetry.')]\n"
    program += "print(of('gateway'), {each.split('.')[1] for each in loaded} & {'sdk', 'exporter', 'proto'})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None set()"


async def _sent(monkeypatch: pytest.MonkeyPatch, found: Collector, *spans: RecordedSpan, **variables: str) -> None:
    for name, value in {**found.environment, "OTEL_BSP_SCHEDULE_DELAY": "60000", **variables}.items():
        monkeypatch.setenv(name, value)
    tracer = tracer_of_environment("gateway")
    assert tracer is not None
    for each in spans:
        tracer.record(each)
    await tracer.flush()
    await tracer.close()


async def test_a_flush_sends_spans_with_their_parents_links_events_and_resource(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = state_of(specification(3), CouncilScript())
    recorded = spans_of(state, TRACEPARENT)
    linked = span(SpanRef(7, 8), parent_id=9, links=[SpanRef(7, 10)], error="timeout", ended_at=NOW - timedelta(1))
    with collector() as found:
        await _sent(monkeypatch, found, *recorded, linked)
    expected = {(each.ref.trace_id, each.ref.span_id, each.parent_id or 0): len(each.events) for each in recorded}
    received = {
        tuple(map(_number, (each.trace_id, each.span_id, each.parent_span_id))): each for each in found.spans.values()
    }
    assert {key: len(each.events) for key, each in received.items() if key[0] != 7} == expected
    last = received[7, 8, 9]
    assert [_number(each.span_id) for each in last.links] == [10]
    assert (last.status.code, attributes(last)) == (2, {"error.type": "timeout"})
    assert last.start_time_unix_nano == last.end_time_unix_nano == NOW.timestamp() * 1e9
    assert set(found.parts.values()) == {"deliberation-gateway-gateway"}


def _number(id: bytes) -> int:
    return int.from_bytes(id)


async def test_the_standard_variables_name_the_service_and_bound_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    given = span(SpanRef(1, 2), attributes={"gen_ai.input.messages": "x" * 100, "left.out": None})
    bound = {"OTEL_SERVICE_NAME": "councils", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "10"}
    with collector() as found:
        await _sent(monkeypatch, found, given, **bound)
    (received,) = found.spans.values()
    assert attributes(received) == {"gen_ai.input.messages": "x" * 10}
    assert set(found.parts.values()) == {"councils"}


async def test_a_share_of_deliberations_is_recorded_and_all_of_a_sampled_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.1")
    tracer = tracer_of_environment("gateway")
    assert tracer is not None
    sampled = Counter(sampled_trace(tracer, f"k{number}", None) is not None for number in range(2_000))
    assert 120 < sampled[True] < 280
    assert all(sampled_trace(tracer, f"k{number}", TRACEPARENT) for number in range(50))
    assert not any(sampled_trace(tracer, f"k{number}", TRACEPARENT[:-1] + "0") for number in range(50))
    assert sampled_trace(None, "k1", TRACEPARENT) is None
    await tracer.close()


@pytest.mark.parametrize(("given", "captures"), [("", False), ("false", False), ("true", True), ("SPAN_ONLY", True)])
async def test_content_is_captured_only_where_the_variable_says_so(
    monkeypatch: pytest.MonkeyPatch, given: str, captures: bool
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", given)
    tracer = tracer_of_environment("gateway")
    assert tracer is not None and tracer.captures_content is captures
    await tracer.close()


async def test_a_collector_that_hangs_holds_up_neither_a_flush_nor_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr("app.observability.otlp.FLUSH_WITHIN_S", 0.2)
        tracer = tracer_of_environment("gateway")
        assert tracer is not None
        tracer.record(span(SpanRef(1, 2)))
        began_s = time.monotonic()
        await tracer.flush()
        await tracer.close()
        assert time.monotonic() - began_s < 5


async def test_flushes_at_one_time_share_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as found:
        for name, value in {**found.environment, "OTEL_BSP_SCHEDULE_DELAY": "60000"}.items():
            monkeypatch.setenv(name, value)
        tracer = tracer_of_environment("gateway")
        assert tracer is not None
        for number in range(1, 51):
            tracer.record(span(SpanRef(1, number)))
        await asyncio.gather(*(tracer.flush() for _ in range(50)))
        assert (len(found.spans), len(found.bodies)) == (50, 1)
        tracer.record(span(SpanRef(1, 51)))
        await tracer.flush()
        await until(lambda: len(found.spans) == 51)
        await tracer.close()


def test_log_events_of_a_recorded_span_carry_its_ids() -> None:
    output = io.StringIO()
    logs.configure("info", output)
    token = active_span.set(SpanRef.of_traceparent(TRACEPARENT))
    structlog.get_logger().info("within")
    active_span.reset(token)
    structlog.get_logger().info("outside")
    within, outside = (json.loads(line) for line in output.getvalue().splitlines())
    assert f"00-{within['trace_id']}-{within['span_id']}-01" == TRACEPARENT
    assert not {"trace_id", "span_id"} & outside.keys()
