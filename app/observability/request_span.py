"""The span of one request to the gateway."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from app.observability import conventions as names
from app.observability.trace_context import DeliberationTrace, SpanRef, active_span, new_span_id, new_trace_id
from app.observability.traces import RecordedSpan, Tracer

PATH_CHARS_MAX = 1_024
# Probes and scrapers request them every few seconds.
UNTRACED = frozenset({"/healthz", "/readyz", "/metrics", "unmatched"})


@dataclass(eq=False, slots=True)
class RequestSpan:
    """A request until its end. An accepted request joins its deliberation's trace, and links to the workflow.

    The request's span is not the workflow's parent: a gateway that dies right after an acceptance records no span.
    """

    tracer: Tracer
    parent: SpanRef | None
    trace_id: int
    scheme: str
    path: str
    span_id: int = field(default_factory=new_span_id)
    began_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    sampled: bool = False
    outer: SpanRef | None = field(default_factory=active_span.get)
    accepted: DeliberationTrace | None = None

    @classmethod
    def begun(cls, tracer: Tracer, traceparent: str | None, scheme: str, path: str) -> Self:
        parent = SpanRef.of_traceparent(traceparent)
        span = cls(tracer, parent, parent.trace_id if parent else new_trace_id(), scheme, path[:PATH_CHARS_MAX])
        span._activate()
        return span

    def record_acceptance(self, deliberation_id: str, traceparent: str | None) -> None:
        """Take on the trace of a deliberation, unless the request belongs to a client's trace."""
        self.accepted = DeliberationTrace.of(deliberation_id, traceparent)
        if self.parent is None:
            self.trace_id = self.accepted.trace_id
        self._activate()

    def _activate(self) -> None:
        self.sampled = self.tracer.samples(self.trace_id, self.parent)
        active_span.set(SpanRef(self.trace_id, self.span_id) if self.sampled else None)

    def end(self, method: str, route: str, status: int, request_id: str, tenant: str | None) -> None:
        # MCP's routes make requests within a request.
        active_span.set(self.outer)
        if route in UNTRACED or not self.sampled:
            return
        span = RecordedSpan(
            name=f"{method} {route}",
            ref=SpanRef(self.trace_id, self.span_id),
            parent_id=self.parent and self.parent.span_id,
            began_at=self.began_at,
            ended_at=datetime.now(UTC),
            kind="server",
            attributes={
                names.HTTP_REQUEST_METHOD: method,
                names.HTTP_ROUTE: route,
                names.URL_PATH: self.path,
                names.URL_SCHEME: self.scheme,
                names.HTTP_RESPONSE_STATUS_CODE: status,
                names.CONVERSATION_ID: self.accepted and self.accepted.deliberation_id,
                names.REQUEST_ID: request_id,
                names.TENANT: tenant,
            },
            error=str(status) if status >= 500 else None,
            links=[self.accepted.workflow] if self.accepted else (),
        )
        self.tracer.record(span)
