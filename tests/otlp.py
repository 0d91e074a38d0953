"""Takers of spans for tests: a collector that takes OTLP over HTTP as protobuf, and a tracer that keeps them."""

import asyncio
import gzip
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from app.observability.trace_context import SpanRef
from app.observability.traces import RecordedSpan


def attributes(of: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in of.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [one.string_value for one in value.values] if kind == "array_value" else value
    return found


@dataclass
class Collector:
    """`spans` has each span once, by trace and id; `received` counts how often each arrived."""

    endpoint: str
    spans: dict[tuple[bytes, bytes], Span] = field(default_factory=dict)
    parts: dict[tuple[bytes, bytes], str] = field(default_factory=dict)
    received: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)
    bodies: list[bytes] = field(default_factory=list)

    def take(self, body: bytes) -> None:
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    key = span.trace_id, span.span_id
                    self.spans[key] = span
                    self.parts[key] = attributes(resource.resource)["service.name"]
                    self.received[key] += 1

    @property
    def environment(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}

    def forget(self) -> None:
        for each in (self.spans, self.parts, self.received, self.bodies):
            each.clear()

    def named(self, beginning: str) -> list[Span]:
        return [span for span in list(self.spans.values()) if span.name.startswith(beginning)]

    def orphans(self) -> list[Span]:
        known = set(self.spans)
        return [
            span
            for (trace_id, _), span in list(self.spans.items())
            if span.parent_span_id and (trace_id, span.parent_span_id) not in known
        ]


@dataclass
class KeptSpans:
    """A tracer that keeps spans; `flushes` is awaited by each flush."""

    captures_content: bool = False
    spans: list[RecordedSpan] = field(default_factory=list[RecordedSpan])
    flushes: asyncio.Event | None = None

    def samples(self, trace_id: int, parent: SpanRef | None) -> bool:
        return True

    def record(self, span: RecordedSpan) -> None:
        self.spans.append(span)

    async def flush(self) -> None:
        if self.flushes is not None:
            await self.flushes.wait()

    async def close(self) -> None:
        pass


@contextmanager
def collector(port: int = 0) -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            found.take(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    found = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
