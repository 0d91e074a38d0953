"""Spans, recorded when they end, and the tracer that the standard OTEL_* variables ask for.

Without these variables there is no tracer, and OpenTelemetry's SDK is not imported.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

import structlog

from app.observability.trace_context import DeliberationTrace, SpanRef

Attribute = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Attribute | None]
SpanKind = Literal["internal", "server", "client"]
PROTOCOL = "http/protobuf"
# Shorter than `ACK_WAIT`: a coordinator acknowledges its work after this time, whatever the collector does.
FLUSH_WITHIN_S = 3.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SpanEvent:
    name: str
    at: datetime
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSpan:
    """A span that has ended. `error` is its `error.type`. An attribute that is None is left out."""

    name: str
    ref: SpanRef
    parent_id: int | None
    began_at: datetime
    ended_at: datetime
    kind: SpanKind = "internal"
    attributes: Attributes
    error: str | None = None
    events: Sequence[SpanEvent] = ()
    links: Sequence[SpanRef] = ()


class Tracer(Protocol):
    """Sends spans to a collector. Nothing here blocks the event loop. A span that cannot be sent is dropped."""

    @property
    def captures_content(self) -> bool:
        """Whether prompts and answers may stand in spans."""
        ...

    def samples(self, trace_id: int, parent: SpanRef | None) -> bool:
        """Whether a trace is recorded, by OTEL_TRACES_SAMPLER: alike in every process, and as the parent is."""
        ...

    def record(self, span: RecordedSpan) -> None: ...

    async def flush(self) -> None:
        """Return once the recorded spans have been sent, or after `FLUSH_WITHIN_S`."""
        ...

    async def close(self) -> None:
        """Send the remaining spans, for `FLUSH_WITHIN_S` at most."""
        ...


def sampled_trace(tracer: Tracer | None, deliberation_id: str, traceparent: str | None) -> DeliberationTrace | None:
    """Returns the trace of a deliberation if it is recorded; `traceparent` is that of its acceptance."""
    if tracer is None:
        return None
    trace = DeliberationTrace.of(deliberation_id, traceparent)
    return trace if tracer.samples(trace.trace_id, trace.parent) else None


def tracer_of_environment(part: str) -> Tracer | None:
    """The tracer of a part of the gateway, or None. Another exporter or protocol than OTLP over HTTP is logged."""
    given = os.environ.get
    if given("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporter = given("OTEL_TRACES_EXPORTER", "").strip().lower()
    endpoint = given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or given("OTEL_EXPORTER_OTLP_ENDPOINT")
    if exporter == "none" or not (exporter or endpoint):
        return None
    protocol = given("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or given("OTEL_EXPORTER_OTLP_PROTOCOL") or PROTOCOL
    if exporter not in ("", "otlp") or protocol != PROTOCOL:
        log.error("traces_off", exporter=exporter or "otlp", protocol=protocol, possible=f"otlp over {PROTOCOL}")
        return None
    # Imported here, because it costs 0.15 s and 12 MB.
    from app.observability.otlp import OtlpTracer

    return OtlpTracer(part)
