"""The trace of a deliberation: ids that every process derives alike, and the span of the work at hand.

Spans of a deliberation are made by several processes, any of which may die. Their ids are digests of the deliberation's
id, so that no process waits for another's span, and a repeated one is the same.
"""

import hashlib
import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


def _digest(text: str, size: int) -> int:
    # Zero is no id: https://www.w3.org/TR/trace-context/#trace-id
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size]) or 1


def span_id_of(*parts: str | int) -> int:
    return _digest(".".join(map(str, parts)), 8)


def new_span_id() -> int:
    return int.from_bytes(secrets.token_bytes(8)) or 1


def new_trace_id() -> int:
    return int.from_bytes(secrets.token_bytes(16)) or 1


@dataclass(frozen=True, slots=True)
class SpanRef:
    """A span of a trace, as a `traceparent` names it (W3C Trace Context, level 1)."""

    trace_id: int
    span_id: int
    sampled: bool = True

    @classmethod
    def of_traceparent(cls, header: str | None) -> "SpanRef | None":
        """Returns the span that a header names; None without one and for an invalid one."""
        match = _TRACEPARENT.fullmatch(header or "")
        if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
            return None
        ref = cls(int(match[2], 16), int(match[3], 16), bool(int(match[4], 16) & _SAMPLED))
        return ref if ref.trace_id and ref.span_id else None

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


@dataclass(frozen=True, slots=True)
class DeliberationTrace:
    """The spans of a deliberation. `parent` is the client's span, if its request named one."""

    deliberation_id: str
    trace_id: int
    parent: SpanRef | None

    @classmethod
    def of(cls, deliberation_id: str, traceparent: str | None) -> "DeliberationTrace":
        parent = SpanRef.of_traceparent(traceparent)
        return cls(deliberation_id, parent.trace_id if parent else _digest(deliberation_id, 16), parent)

    @property
    def workflow(self) -> SpanRef:
        return SpanRef(self.trace_id, span_id_of(self.deliberation_id, "workflow"))

    def stage(self, number: int) -> SpanRef:
        return SpanRef(self.trace_id, span_id_of(self.deliberation_id, "stage", number))

    def agent(self, call_id: str) -> SpanRef:
        return SpanRef(self.trace_id, span_id_of(self.deliberation_id, "agent", call_id))


active_span: ContextVar[SpanRef | None] = ContextVar("active_span", default=None)
"""The sampled span that spans and log events of this task belong to; None outside of one, and while traces are off."""
