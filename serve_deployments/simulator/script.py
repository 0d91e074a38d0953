"""The instructions of a simulated engine: behaviour, latency, length and faults; they may change while it runs."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, field_validator

from serve_deployments.simulator.faults import parse_fault
from serve_deployments.simulator.writer.outputs import Behaviour

_SLOW_FACTOR = 10.0
_SLOW_EXTRA_S = 1.0


@dataclass(frozen=True, slots=True)
class TokenSchedule:
    """Token i (from 1) is due `first_s + (i - 1) * step_s` after the start: absolute, so lateness never adds up."""

    first_s: float
    step_s: float
    tokens: int

    @property
    def total_s(self) -> float:
        """From the start to the last token, or to the end of an empty completion."""
        return self.due_s(max(1, self.tokens))

    def due_s(self, token: int) -> float:
        """When token number `token` is due."""
        return self.first_s + (token - 1) * self.step_s

    def tokens_due(self, elapsed_s: float) -> int:
        """How many tokens are due after `elapsed_s`."""
        return sum(self.due_s(token) <= elapsed_s for token in range(1, self.tokens + 1))


class Script(BaseModel):
    """One set of instructions; unknown fields are refused.

    `duration_ms` is the time of a whole completion, spread evenly over its tokens; it overrides `ttft_ms` and
    `per_token_ms`. `jitter` scales a completion's times by a seeded factor in [1 - jitter, 1 + jitter]. `tokens` fixes
    a completion's length; `chunk_tokens` is the least number per streamed chunk.
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

    @field_validator("faults")
    @classmethod
    def _readable(cls, faults: tuple[str, ...]) -> tuple[str, ...]:
        for fault in faults:
            parse_fault(fault)
        return faults

    def changed(self, change: "Script") -> "Script":
        """A copy with the fields that were set in `change`."""
        return self.model_copy(update={name: getattr(change, name) for name in change.model_fields_set})

    def schedule(self, tokens: int, chance: float, *, slow: bool = False) -> TokenSchedule:
        """The schedule of a completion of `tokens` tokens; `chance` in [0, 1) decides its jitter.

        A `slow` one takes ten times as long and a second more.
        """
        factor = (1.0 + self.jitter * (2.0 * chance - 1.0)) * (_SLOW_FACTOR if slow else 1.0) / 1_000.0
        step_s = self.per_token_ms * factor
        first_s = self.ttft_ms * factor
        if self.duration_ms is not None:
            first_s = step_s = self.duration_ms / max(1, tokens) * factor
        return TokenSchedule(first_s + (_SLOW_EXTRA_S if slow else 0.0), step_s, tokens)
