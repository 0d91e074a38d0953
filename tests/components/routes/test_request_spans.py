"""The span of a request to the gateway, and the trace that it joins."""

import io
import json

import pytest

from app.observability import conventions as names
from app.observability.trace_context import DeliberationTrace
from tests.components.routes.served import Served
from tests.otlp import KeptSpans

BODY = {"task": "Name a colour."}
TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture
def spans(gateway: Served) -> KeptSpans:
    kept = KeptSpans()
    gateway.gateway["tracer"] = kept
    return kept


async def test_a_request_joins_the_trace_of_its_deliberation_and_links_to_the_workflow(
    gateway: Served, spans: KeptSpans, logged: io.StringIO
) -> None:
    id = await gateway.accepted()
    trace = DeliberationTrace.of(id, None)
    (span,) = spans.spans
    assert (span.name, span.kind, span.parent_id, span.error) == ("POST /deliberations", "server", None, None)
    assert (span.ref.trace_id, span.links) == (trace.trace_id, [trace.workflow])
    assert (span.attributes[names.HTTP_RESPONSE_STATUS_CODE], span.attributes[names.CONVERSATION_ID]) == (202, id)
    (line,) = [event for event in map(json.loads, logged.getvalue().splitlines()) if event["event"] == "request"]
    assert f"00-{line['trace_id']}-{line['span_id']}-01" == span.ref.traceparent


async def test_a_client_is_the_parent_and_a_repeated_key_links_to_the_first_deliberation(
    gateway: Served, spans: KeptSpans
) -> None:
    key = {"Idempotency_Key": "k1"}
    id = (await gateway.post(BODY, traceparent=TRACEPARENT, **key)).json()["id"]
    await gateway.post(BODY, **key)
    first, again = spans.spans
    trace = DeliberationTrace.of(id, TRACEPARENT)
    assert first.ref.trace_id == again.ref.trace_id == int("a" * 32, 16)
    assert (first.parent_id, again.parent_id) == (int("b" * 16, 16), None)
    assert first.links == again.links == [trace.workflow]


async def test_probes_and_unknown_paths_have_no_span_and_reads_have_one_of_their_own(
    gateway: Served, spans: KeptSpans
) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/nothing"):
        await gateway.client.get(path)
    assert spans.spans == []
    await gateway.client.get("/deliberations/unknown-1")
    (span,) = spans.spans
    assert (span.name, span.parent_id, list(span.links)) == ("GET /deliberations/{deliberation_id}", None, [])
    assert span.attributes[names.HTTP_RESPONSE_STATUS_CODE] == 404
