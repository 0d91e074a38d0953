"""When the tokens of one completion are due, as absolute times, so that lateness never adds up."""

from dataclasses import dataclass, replace

SLOW_FACTOR = 10.0
SLOW_EXTRA_S = 1.0


@dataclass(frozen=True, slots=True)
class Latency:
    """What the script says about time.

    `duration_ms`, when set, is the whole time of a completion, spread evenly over its tokens, and overrides the other
    two. `jitter` scales a completion's times by a seeded factor in [1 - jitter, 1 + jitter].
    """

    ttft_ms: float = 0.0
    per_token_ms: float = 0.0
    duration_ms: float | None = None
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Token i (from 1) is due `first_s + (i - 1) * step_s` after the start; all times in seconds."""

    first_s: float
    step_s: float
    tokens: int

    @property
    def instant(self) -> bool:
        """Whether everything is due at once."""
        return self.first_s <= 0.0 and self.step_s <= 0.0

    @property
    def total_s(self) -> float:
        """From the start to the last token, or to the end of an empty completion."""
        return self.due_s(max(1, self.tokens))

    def due_s(self, token: int) -> float:
        """When token number `token` is due."""
        return self.first_s + (token - 1) * self.step_s

    def tokens_due(self, elapsed_s: float) -> int:
        """How many tokens are due after `elapsed_s`."""
        if elapsed_s < self.first_s:
            return 0
        if self.step_s <= 0.0:
            return self.tokens
        # A hundredth of a step forgives the rounding of a timer that fired exactly on time.
        return min(self.tokens, int((elapsed_s - self.first_s) / self.step_s + 0.01) + 1)

    def slowed(self) -> "Schedule":
        """The same completion, ten times slower and at least a second late."""
        return replace(self, first_s=self.first_s * SLOW_FACTOR + SLOW_EXTRA_S, step_s=self.step_s * SLOW_FACTOR)


def schedule(latency: Latency, tokens: int, chance: float) -> Schedule:
    """The schedule of a completion of `tokens` tokens; `chance` in [0, 1) decides its jitter."""
    factor = 1.0 + latency.jitter * (2.0 * chance - 1.0)
    if latency.duration_ms is not None:
        step_s = latency.duration_ms / 1_000.0 / max(1, tokens) * factor
        return Schedule(first_s=step_s, step_s=step_s, tokens=tokens)
    return Schedule(latency.ttft_ms / 1_000.0 * factor, latency.per_token_ms / 1_000.0 * factor, tokens)
