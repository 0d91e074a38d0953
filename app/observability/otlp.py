"""The tracer over OpenTelemetry's SDK: its sampler, its batches, and its exporter over OTLP and HTTP."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from importlib.metadata import version
from threading import Thread

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context
from opentelemetry.trace.status import Status, StatusCode

from app.observability.conventions import ERROR_TYPE, SCHEMA_URL
from app.observability.trace_context import SpanRef
from app.observability.traces import FLUSH_WITHIN_S, Attributes, RecordedSpan, SpanEvent

PRODUCT = "deliberation-gateway"
# Spans that end within this time share a request to the collector.
GATHERED_FOR_S = 0.5
_KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}
# The values of OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT by which spans have prompts and answers.
_CAPTURING = ("true", "span_only", "span_and_event")


def _resource(part: str) -> Resource:
    """The resource of OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME; the part's own name without one."""
    own = Resource(
        {
            SERVICE_NAME: f"{PRODUCT}-{part}",
            "service.namespace": PRODUCT,
            "service.version": version(PRODUCT),
            "service.instance.id": f"{os.uname().nodename}-{os.getpid()}",
        }
    )
    declared = Resource.create()
    unnamed = str(declared.attributes[SERVICE_NAME]).startswith("unknown_service")
    return declared.merge(own) if unnamed else own.merge(declared)


def _nanoseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) * 1_000


def _context(ref: SpanRef, *, remote: bool = False) -> SpanContext:
    return SpanContext(ref.trace_id, ref.span_id, remote, TraceFlags(int(ref.sampled)))


class OtlpTracer:
    def __init__(self, part: str) -> None:
        provider = TracerProvider(shutdown_on_exit=False)
        self._sampler = provider.sampler
        self._resource = _resource(part)
        self._scope = InstrumentationScope(PRODUCT, version(PRODUCT), SCHEMA_URL)
        self._limits = SpanLimits()
        self._processor = BatchSpanProcessor(OTLPSpanExporter())
        self._sending: Thread | None = None
        self._next_flush: asyncio.Task[None] | None = None
        self._flushing = asyncio.Lock()
        captured = os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "")
        self.captures_content = captured.strip().lower() in _CAPTURING

    def samples(self, trace_id: int, parent: SpanRef | None) -> bool:
        around = None if parent is None else set_span_in_context(NonRecordingSpan(_context(parent, remote=True)))
        return self._sampler.should_sample(around, trace_id, "").decision.is_sampled()

    def record(self, span: RecordedSpan) -> None:
        parent = None if span.parent_id is None else SpanRef(span.ref.trace_id, span.parent_id)
        attributes = {**span.attributes, ERROR_TYPE: span.error}
        self._processor.on_end(
            ReadableSpan(
                span.name,
                _context(span.ref),
                parent and _context(parent),
                self._resource,
                self._bounded(attributes),
                [self._event(event) for event in span.events[: self._limits.max_events]],
                [Link(_context(link)) for link in span.links[: self._limits.max_links]],
                _KINDS[span.kind],
                status=Status(StatusCode.ERROR if span.error else StatusCode.UNSET),
                start_time=_nanoseconds(span.began_at),
                end_time=_nanoseconds(max(span.began_at, span.ended_at)),
                instrumentation_scope=self._scope,
            )
        )

    def _event(self, event: SpanEvent) -> Event:
        return Event(event.name, self._bounded(event.attributes), _nanoseconds(event.at))

    def _bounded(self, attributes: Attributes) -> BoundedAttributes:
        present = {name: value for name, value in attributes.items() if value is not None}
        limits = self._limits
        return BoundedAttributes(limits.max_span_attributes, present, max_value_len=limits.max_span_attribute_length)

    async def flush(self) -> None:
        if self._next_flush is None:
            self._next_flush = asyncio.get_running_loop().create_task(self._flush_soon())
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_WITHIN_S):
                await asyncio.shield(self._next_flush)

    async def _flush_soon(self) -> None:
        await asyncio.sleep(GATHERED_FOR_S)
        async with self._flushing:
            # A span that is recorded from now on waits for the next flush.
            self._next_flush = None
            if self._sending is None or not self._sending.is_alive():
                await self._send_by(self._processor.force_flush)

    async def close(self) -> None:
        await self._send_by(self._processor.shutdown)

    async def _send_by(self, work: Callable[[], object]) -> None:
        """Work in a thread that does not outlive the process: a collector that hangs must not hold up its end."""
        self._sending = Thread(target=work, name="traces", daemon=True)
        self._sending.start()
        await asyncio.to_thread(self._sending.join, FLUSH_WITHIN_S)
