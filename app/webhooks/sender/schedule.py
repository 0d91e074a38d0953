"""The retry schedule: pure decisions about what follows an attempt."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from app.webhooks.attempts import Attempt, AttemptFailed, DeliveryEnded

DELAYS_S: tuple[float, ...] = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds from each failed attempt to the next, 76 hours in all: the example of Standard Webhooks 1.0.0."""
JITTER_SHARE = 0.2
RETRY_AFTER_MAX_S = 86_400
GONE = 410


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    attempt: Attempt
    retry_after_s: float | None = None


def next_step(
    fact: str, number: int, outcome: AttemptOutcome, delays_s: Sequence[float], draw: float
) -> AttemptFailed | DeliveryEnded:
    """The record of the nth scheduled attempt. `draw` in [0, 1) adds up to a fifth to the delay.

    The jitter spreads retries to receivers that failed together. Retry-After may lengthen the delay, never shorten it.
    """
    attempt = outcome.attempt
    if attempt.succeeded:
        return DeliveryEnded(fact=fact, ending="delivered", attempt=attempt)
    if attempt.status_code == GONE:
        return DeliveryEnded(fact=fact, ending="stopped", attempt=attempt)
    if number > len(delays_s):
        return DeliveryEnded(fact=fact, ending="exhausted", attempt=attempt)
    delay_s = max(delays_s[number - 1], min(outcome.retry_after_s or 0, RETRY_AFTER_MAX_S))
    ended_at = attempt.at + timedelta(milliseconds=attempt.duration_ms)
    due_at = ended_at + timedelta(seconds=delay_s * (1 + JITTER_SHARE * draw))
    return AttemptFailed(fact=fact, number=number, attempt=attempt, next_attempt_at=due_at)


def seconds_until(moment: datetime) -> float:
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
