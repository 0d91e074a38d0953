"""Spans, recorded when they end, and what a tracer does with them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from app.observability.trace_context import DeliberationTrace, SpanRef

Attribute = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Attribute | None]
SpanKind = Literal["internal", "server", "client"]
# Shorter than `ACK_WAIT`: a coordinator acknowledges its work after this time, whatever the collector does.
FLUSH_WITHIN_S = 3.0


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
    """Returns the trace of a deliberation if it is recorded; `traceparent` is its acceptance's."""
    if tracer is None:
        return None
    trace = DeliberationTrace.of(deliberation_id, traceparent)
    return trace if tracer.samples(trace.trace_id, trace.parent) else None
