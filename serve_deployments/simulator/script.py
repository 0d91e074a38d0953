"""The instructions of a simulated engine: behaviour, latency, length, faults, keys; they may change while it runs.

A fault is written `KIND[:rate|:every=N|:first=N][:match=REGEX]`, for example `rate-limit:every=5:match=critique`.
Without a bound it hits every request that matches. A rate is decided by a seeded hash of the request and its attempt;
`every` and `first` count matching requests in their order of arrival.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from secrets import compare_digest
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from serve_deployments.simulator.lacks import Lack
from serve_deployments.simulator.recorded import recorded_replies
from serve_deployments.simulator.writer.chance import fraction
from serve_deployments.simulator.writer.outputs import Behaviour

_SLOW_FACTOR = 10.0
_SLOW_EXTRA_S = 1.0
_REQUESTS_REMEMBERED_MAX = 100_000


class FaultKind(StrEnum):
    RATE_LIMIT = "rate-limit"
    ERROR = "error"
    UNAVAILABLE = "unavailable"
    BAD_REQUEST = "bad-request"
    BROKEN_STREAM = "broken-stream"
    BAD_JSON = "bad-json"
    TRUNCATE = "truncate"
    HANG = "hang"
    STALL = "stall"
    SLOW = "slow"
    EMPTY = "empty"


FAULT_HELP = (
    "rate-limit (429 with Retry-After), error (500), unavailable (503 with Retry-After), bad-request (400), "
    "broken-stream (closes the connection midway), bad-json (a structured output that is not JSON), truncate (half of "
    "the output, finish_reason length), hang (never answers), stall (half of a stream, then nothing), slow (ten times "
    "slower, and a second late), empty (no text at all)."
)

_FAULT = re.compile(
    rf"(?P<kind>{'|'.join(FaultKind)})"
    r"(?::(?:(?P<rate>0|0?\.\d+|1(?:\.0+)?)|every=(?P<every>[1-9]\d*)|first=(?P<first>[1-9]\d*)))?"
    r"(?::match=(?P<match>.*))?",
    re.DOTALL,
)


class FaultSyntaxError(ValueError):
    """A fault that cannot be read; its text names the form expected."""


@dataclass(frozen=True, slots=True)
class ScriptedFault:
    kind: FaultKind
    rate: float | None = None
    every: int | None = None
    first: int | None = None
    match: re.Pattern[str] | None = None


def parse_fault(text: str) -> ScriptedFault:
    parsed = _FAULT.fullmatch(text)
    if parsed is None:
        raise FaultSyntaxError(
            f"{text!r} is not KIND[:rate|:every=N|:first=N][:match=REGEX], with a rate from 0 to 1 and KIND one of "
            f"{', '.join(FaultKind)}"
        )
    kind, rate, every, first, pattern = parsed.groups()
    try:
        match = None if pattern is None else re.compile(pattern)
    except re.error as exc:
        raise FaultSyntaxError(f"{text!r}: {pattern!r} is no regular expression: {exc}") from exc
    counts = [int(number) if number else None for number in (every, first)]
    return ScriptedFault(FaultKind(kind), float(rate) if rate else None, *counts, match=match)


class FaultPlan:
    def __init__(self, faults: Iterable[str], seed: int) -> None:
        self._faults = tuple(parse_fault(text) for text in faults)
        self._seed = seed
        self._matched = [0] * len(self._faults)
        self._attempts: OrderedDict[bytes, int] = OrderedDict()

    def decide(self, request_key: bytes, text: str) -> FaultKind | None:
        attempt = self._attempts.pop(request_key, 0) + 1
        self._attempts[request_key] = attempt
        if len(self._attempts) > _REQUESTS_REMEMBERED_MAX:
            self._attempts.popitem(last=False)
        chosen: FaultKind | None = None
        for place, fault in enumerate(self._faults):
            if fault.match is not None and fault.match.search(text) is None:
                continue
            self._matched[place] += 1
            if chosen is None and self._hits(fault, self._matched[place], request_key, attempt):
                chosen = fault.kind
        return chosen

    def _hits(self, fault: ScriptedFault, matched: int, request_key: bytes, attempt: int) -> bool:
        if fault.rate is not None:
            return fraction("fault", self._seed, fault.kind, request_key, attempt) < fault.rate
        if fault.every is not None:
            return matched % fault.every == 0
        return fault.first is None or matched <= fault.first


class ScriptedToolCall(BaseModel):
    """A tool call that a completion makes, whether the tool is offered or not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    arguments: dict[str, Any] = {}


class Script(BaseModel):
    """One set of instructions; unknown fields are refused.

    `duration_ms` is the time of a whole completion, spread evenly over its tokens; it overrides `ttft_ms` and
    `per_token_ms`. `jitter` scales a completion's times by a seeded factor in [1 - jitter, 1 + jitter]. `tokens` fixes
    a completion's length; `chunk_tokens` is the least number per streamed chunk. `reply` names the recorded reply that
    each completion gets. Where a request offers tools, `tool_calls` are made one after the other before the answer;
    without any, so many as `tool_uses` of the offered tools are called in turn.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    behaviour: Behaviour = Behaviour.NORMAL
    ttft_ms: float = Field(default=0.0, ge=0, le=3_600_000)
    per_token_ms: float = Field(default=0.0, ge=0, le=3_600_000)
    duration_ms: float | None = Field(default=None, ge=0, le=3_600_000)
    jitter: float = Field(default=0.0, ge=0, le=1)
    tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    chunk_tokens: int = Field(default=1, ge=1, le=1_000_000)
    faults: tuple[str, ...] = ()
    api_keys: tuple[SecretStr, ...] = ()
    lacks: tuple[Lack, ...] = ()
    reply: str | None = None
    tool_calls: tuple[ScriptedToolCall, ...] = ()
    tool_uses: int = Field(default=2, ge=0, le=64)

    @field_validator("reply")
    @classmethod
    def _recorded(cls, reply: str | None) -> str | None:
        if reply is not None and reply not in recorded_replies():
            raise ValueError(f"no reply is called {reply!r}; there are {', '.join(recorded_replies())}")
        return reply

    @field_validator("faults")
    @classmethod
    def _readable(cls, faults: tuple[str, ...]) -> tuple[str, ...]:
        for fault in faults:
            parse_fault(fault)
        return faults

    def changed(self, change: "Script") -> "Script":
        return self.model_copy(update={name: getattr(change, name) for name in change.model_fields_set})

    def admits(self, authorization: str) -> bool:
        known = [f"Bearer {key.get_secret_value()}".encode() for key in self.api_keys]
        return not known or any(compare_digest(key, authorization.encode()) for key in known)

    def due_times_s(self, tokens: int, chance: float, *, slow: bool = False) -> list[float]:
        """The due time of each token, in seconds after the start: absolute, so that lateness never adds up.

        `chance` in [0, 1) decides the jitter. An empty completion has one due time, its end.
        """
        factor = (1.0 + self.jitter * (2.0 * chance - 1.0)) * (_SLOW_FACTOR if slow else 1.0) / 1_000.0
        first_s, step_s = self.ttft_ms * factor, self.per_token_ms * factor
        if self.duration_ms is not None:
            first_s = step_s = self.duration_ms / max(1, tokens) * factor
        first_s += _SLOW_EXTRA_S if slow else 0.0
        return [first_s + token * step_s for token in range(max(1, tokens))]
