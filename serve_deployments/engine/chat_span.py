"""The span of one request to an engine, with the attributes of OpenTelemetry's GenAI conventions."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

import httpx

from app.deliberation.calls import Usage
from app.deliberation.errors import CallFailure
from app.observability import conventions as names
from app.observability.trace_context import DeliberationTrace, SpanRef, active_span, span_id_of
from app.observability.traces import Attributes, RecordedSpan, Tracer
from serve_deployments.engine.replies import StreamedChoice, StreamedReply
from serve_deployments.engine.request_body import RequestBody
from serve_deployments.engine.state import EngineState


@dataclass(eq=False, slots=True)
class ChatSpan:
    """A span whose id a repeated attempt, also one of another process, can name: it links to the one before."""

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
        span_id = _span_id(reading.choices[0].trace, len(reading.choices), number)
        return cls(tracer, SpanRef(agent.trace_id, span_id), engine, model, seed, reading, streams)

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
        choices, count = self.reading.choices, len(self.reading.choices)
        usage, ttft_s = Usage.total([choice.meter.usage for choice in choices]), choices[0].ttft_s
        call, url = choices[0].call, httpx.URL(self.engine.address)
        attributes: Attributes = {
            names.OPERATION_NAME: names.CHAT,
            names.PROVIDER_NAME: "vllm" if self.engine.extended else url.host,
            names.CONVERSATION_ID: choices[0].trace.partition(".")[0],
            names.REQUEST_MODEL: self.model,
            names.REQUEST_CHOICE_COUNT: count if count > 1 else None,
            names.REQUEST_SEED: self.seed,
            names.REQUEST_STREAM: self.streams,
            names.REQUEST_TEMPERATURE: call.temperature,
            names.REQUEST_TOP_P: call.top_p,
            names.REQUEST_MAX_TOKENS: call.max_tokens,
            names.RESPONSE_FINISH_REASONS: [each.finish_reason for each in choices if each.finish_reason],
            names.RESPONSE_TIME_TO_FIRST_CHUNK: ttft_s,
            names.USAGE_INPUT_TOKENS: usage.prompt_tokens,
            names.USAGE_OUTPUT_TOKENS: usage.completion_tokens,
            names.USAGE_CACHE_READ_INPUT_TOKENS: usage.cached_tokens,
            names.SERVER_ADDRESS: url.host,
            names.SERVER_PORT: url.port or {"https": 443}.get(url.scheme, 80),
            names.CALL_ID: call.call_id,
            names.ATTEMPT: _attempt(choices[0].trace),
        }
        return RecordedSpan(
            name=f"{names.CHAT} {self.model}",
            ref=self.ref,
            parent_id=self._agent(choices[0]).span_id,
            began_at=self.began_at,
            ended_at=datetime.now(UTC),
            kind="client",
            attributes={**attributes, **(_content(choices) if self.tracer.captures_content else {})},
            error=error,
            links=self._links(),
        )

    def _agent(self, choice: StreamedChoice) -> SpanRef:
        return DeliberationTrace(choice.trace.partition(".")[0], self.ref.trace_id, None).agent(choice.call.call_id)

    def _links(self) -> list[SpanRef]:
        """The first request of the attempt before, and the other calls that this request answers."""
        first, *others = self.reading.choices
        found = [self._agent(each) for each in others]
        if (attempt := _attempt(first.trace)) > 1:
            before = f"{first.trace.rpartition('.')[0]}.{attempt - 1}"
            found.append(SpanRef(self.ref.trace_id, _span_id(before, 1, 1)))
        return found


def _span_id(trace: str, choices: int, number: int) -> int:
    return span_id_of(trace, "chat", choices, number)


def _attempt(trace: str) -> int:
    return int(trace.rpartition(".")[2])


def _content(choices: tuple[StreamedChoice, ...]) -> Attributes:
    """The prompt and the answers, in the conventions' JSON."""
    prompt = [
        {"role": message.role, "parts": [{"type": "text", "content": message.content}]}
        for message in choices[0].call.messages
    ]
    answers = [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": "".join(choice.texts)}],
            "finish_reason": choice.finish_reason or "error",
        }
        for choice in choices
    ]
    return {
        names.INPUT_MESSAGES: json.dumps(prompt, ensure_ascii=False),
        names.OUTPUT_MESSAGES: json.dumps(answers, ensure_ascii=False),
    }
