"""Counts and durations that coordinators and agents keep from their start, as their status replies carry them."""

from bisect import bisect_left
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from app.deliberation.facts import TERMINAL_STATUS, End, TerminalStatus, ToolUsed
from app.deliberation.fold import State
from app.deliberation.specification import Priority, Purpose, Token

BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0)
TOOL_OUTCOMES = ("succeeded", "failed", "server_away", "timeout", "too_large", "refused", "unknown_outcome")
# Strategies in a reply, which any client of NATS may send.
_STRATEGIES_MAX = 64

# Small enough for a float, as replies carry no signature.
Figure = Annotated[int, Field(ge=0, le=2**53)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

TakeoverCause = Literal["loss", "stop"]


class DurationHistogram(BaseModel):
    """Durations by bucket: `counts` has the durations up to each of `bounds_s`, then those beyond the last bound.

    A reply carries its bounds, since processes of two versions may run side by side.
    """

    bounds_s: tuple[_Seconds, ...] = Field(default=BOUNDS_S, max_length=64)
    counts: list[Figure] = Field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: _Seconds = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.counts) != len(self.bounds_s) + 1 or any(low >= high for low, high in pairwise(self.bounds_s)):
            raise ValueError("there is a count for each bound and one more, and bounds ascend")
        return self

    def observe(self, seconds: float) -> None:
        # Two machines' clocks may differ.
        seconds = max(0.0, seconds)
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds


class StrategyCounts(BaseModel):
    """The deliberations of a strategy that a coordinator ended."""

    # All from the first end on: Prometheus sees no growth in a series that begins above 0.
    seconds: dict[TerminalStatus, DurationHistogram] = Field(
        default_factory=lambda: {status: DurationHistogram() for status in TERMINAL_STATUS.values()}
    )
    degraded: Figure = 0


class ToolCounts(BaseModel):
    """The uses of a server's tools that a replica recorded; of `failed` ones the tool itself reports an error."""

    # All from the start on, as for strategies.
    outcomes: dict[Token, Figure] = Field(default_factory=lambda: dict.fromkeys(TOOL_OUTCOMES, 0), max_length=16)
    seconds: DurationHistogram = Field(default_factory=DurationHistogram)

    def count(self, used: ToolUsed) -> None:
        self.outcomes[used.problem.code if used.problem else "failed" if used.failed else "succeeded"] += 1
        self.seconds.observe(used.duration_ms / 1_000)


class CoordinatorCounts(BaseModel):
    """The figures of a coordinator since its start: the deliberations that it ended, and its takeovers.

    A deliberation has one end in the log, so one coordinator counts it.
    """

    strategies: dict[Token, StrategyCounts] = Field(
        default_factory=dict[str, StrategyCounts], max_length=_STRATEGIES_MAX
    )
    waited: dict[Priority, DurationHistogram] = Field(default_factory=dict[Priority, DurationHistogram])
    stages: dict[Purpose, DurationHistogram] = Field(default_factory=dict[Purpose, DurationHistogram])
    takeovers: dict[TakeoverCause, Figure] = Field(default_factory=lambda: {"loss": 0, "stop": 0})

    def count_end(self, state: State, end: End) -> None:
        """Count a deliberation with all its stages, by the times in its facts."""
        accepted, specification = state.accepted, state.specification
        counts = self.strategies.setdefault(specification.strategy, StrategyCounts())
        counts.seconds[TERMINAL_STATUS[end.type]].observe((end.ts - accepted.ts).total_seconds())
        counts.degraded += end.degraded is not None
        if state.started_at is not None:
            waited = self.waited.setdefault(specification.priority, DurationHistogram())
            waited.observe((state.started_at - accepted.ts).total_seconds())
        for stage in state.stages:
            if stage.closed is not None:
                durations = self.stages.setdefault(stage.opened.purpose, DurationHistogram())
                durations.observe((stage.closed.ts - stage.opened.ts).total_seconds())
