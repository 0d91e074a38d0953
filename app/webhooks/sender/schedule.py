"""What follows an attempt: pure decisions. The delays are those that Standard Webhooks 1.0.0 gives as its example."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from app.webhooks.attempts import Attempt, AttemptFailed, DeliveryEnded

DELAYS_S: tuple[float, ...] = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds from each failed attempt to the next: 76 hours in all."""
JITTER_SHARE = 0.2
RETRY_AFTER_MAX_S = 86_400
GONE = 410


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """An attempt, and what the receiver asked for: `retry_after_s`, if it named a time."""

    attempt: Attempt
    retry_after_s: float | None = None


def next_step(
    fact: str, number: int, outcome: AttemptOutcome, delays_s: Sequence[float], draw: float
) -> AttemptFailed | DeliveryEnded:
    """The record of the nth attempt by schedule. `draw` in [0, 1) lengthens the delay by up to a fifth.

    So receivers that fell together are not asked together. A receiver may ask for a longer delay, never a shorter.
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


def seconds_until(moment: datetime, now: datetime) -> float:
    """Seconds from now on, 0 for what has passed."""
    return max(0.0, (moment - now).total_seconds())
