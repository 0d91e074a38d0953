"""The span of one request to an engine, with the attributes of OpenTelemetry's GenAI conventions."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

import httpx

from app.deliberation.errors import CallFailure
from app.observability import conventions as names
from app.observability.trace_context import DeliberationTrace, SpanRef, active_span, span_id_of
from app.observability.traces import Attributes, RecordedSpan, Tracer
from serve_deployments.engine.replies import StreamedChoice, StreamedReply
from serve_deployments.engine.request_body import RequestBody
from serve_deployments.engine.state import EngineState


@dataclass(eq=False, slots=True)
class ChatSpan:
    """A span whose id a repeated attempt can name, also in another process: the attempt links to the span before."""

    tracer: Tracer
    ref: SpanRef
    engine: EngineState
    model: str
    seed: int
    reading: StreamedReply
    streams: bool
    began_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @classmethod
    def begun(
        cls,
        tracer: Tracer | None,
        engine: EngineState,
        model: str,
        seed: int,
        reading: StreamedReply,
        number: int,
        *,
        streams: bool,
    ) -> Self | None:
        """Returns the span of the `number`th request of an attempt; None where the deliberation is not recorded."""
        agent = active_span.get()
        if tracer is None or agent is None:
            return None
        ref = SpanRef(agent.trace_id, _span_id(reading.choice.trace, number))
        return cls(tracer, ref, engine, model, seed, reading, streams)

    @contextmanager
    def recorded(self, body: RequestBody) -> Generator[None]:
        """Record the span when the request ends, if it was written: only then the engine counts it."""
        error: str | None = "cancelled"
        try:
            yield
            error = None
        except CallFailure as failure:
            error = failure.code
            raise
        finally:
            if body.written:
                self.tracer.record(self._span(error))

    def _span(self, error: str | None) -> RecordedSpan:
        choice = self.reading.choice
        call, usage, url = choice.call, choice.meter.usage, httpx.URL(self.engine.address)
        attributes: Attributes = {
            names.OPERATION_NAME: names.CHAT,
            names.PROVIDER_NAME: "vllm" if self.engine.extended else url.host,
            names.CONVERSATION_ID: choice.trace.partition(".")[0],
            names.REQUEST_MODEL: self.model,
            names.REQUEST_SEED: self.seed,
            names.REQUEST_STREAM: self.streams,
            names.REQUEST_TEMPERATURE: call.temperature,
            names.REQUEST_TOP_P: call.top_p,
            names.REQUEST_MAX_TOKENS: call.max_tokens,
            names.RESPONSE_FINISH_REASONS: [choice.finish_reason] if choice.finish_reason else [],
            names.RESPONSE_TIME_TO_FIRST_CHUNK: choice.ttft_s,
            names.USAGE_INPUT_TOKENS: usage.prompt_tokens,
            names.USAGE_OUTPUT_TOKENS: usage.completion_tokens,
            names.USAGE_CACHE_READ_INPUT_TOKENS: usage.cached_tokens,
            names.SERVER_ADDRESS: url.host,
            names.SERVER_PORT: url.port or {"https": 443}.get(url.scheme, 80),
            names.CALL_ID: call.call_id,
            names.ATTEMPT: _attempt(choice.trace),
        }
        return RecordedSpan(
            name=f"{names.CHAT} {self.model}",
            ref=self.ref,
            parent_id=self._agent(choice).span_id,
            began_at=self.began_at,
            ended_at=datetime.now(UTC),
            kind="client",
            attributes={**attributes, **(_content(choice) if self.tracer.captures_content else {})},
            error=error,
            links=self._links(),
        )

    def _agent(self, choice: StreamedChoice) -> SpanRef:
        return DeliberationTrace(choice.trace.partition(".")[0], self.ref.trace_id, None).agent(choice.call.call_id)

    def _links(self) -> list[SpanRef]:
        """The first request of the attempt before."""
        call, _, attempt = self.reading.choice.trace.rpartition(".")
        if int(attempt) == 1:
            return []
        return [SpanRef(self.ref.trace_id, _span_id(f"{call}.{int(attempt) - 1}", 1))]


def _span_id(trace: str, number: int) -> int:
    return span_id_of(trace, "chat", number)


def _attempt(trace: str) -> int:
    return int(trace.rpartition(".")[2])


def _content(choice: StreamedChoice) -> Attributes:
    """The prompt and the answer, in the conventions' JSON."""
    prompt = [
        {"role": message.role, "parts": [{"type": "text", "content": message.content}]}
        for message in choice.call.messages
    ]
    answer = {
        "role": "assistant",
        "parts": [{"type": "text", "content": "".join(choice.texts)}],
        "finish_reason": choice.finish_reason or "error",
    }
    return {
        names.INPUT_MESSAGES: json.dumps(prompt, ensure_ascii=False),
        names.OUTPUT_MESSAGES: json.dumps([answer], ensure_ascii=False),
    }
