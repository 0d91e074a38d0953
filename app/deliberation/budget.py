"""Admission by budget, and the arithmetic of deadlines."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from app.deliberation.calls import Call
from app.deliberation.specification import Budget

# Characters per token, low on purpose: an estimate that errs towards refusing keeps the ceiling a ceiling.
CHARACTERS_PER_TOKEN = 3


@dataclass(frozen=True, slots=True)
class Spent:
    """What closed stages have cost: requests that were planned, and tokens of the outcomes that were seen."""

    calls: int = 0
    tokens: int = 0


def predicted_tokens(calls: Iterable[Call]) -> int:
    """An upper estimate of what calls will cost: their prompts by length, and every completion at its bound."""
    return sum(
        sum(len(message.content) for message in call.messages) // CHARACTERS_PER_TOKEN + call.max_tokens
        for call in calls
    )


def admits(budget: Budget, spent: Spent, calls: tuple[Call, ...]) -> bool:
    """Whether a stage fits: spent + predicted ≤ budget, on both sides."""
    if budget.max_calls is not None and spent.calls + len(calls) > budget.max_calls:
        return False
    return budget.max_tokens is None or spent.tokens + predicted_tokens(calls) <= budget.max_tokens


def stage_deadlines(opened_at: datetime, deadline_at: datetime, stages_left: int) -> tuple[datetime, datetime]:
    """When a stage may close with its quorum, and when its calls are given up.

    What is left of the deliberation's time is shared evenly among the stages that may still come. Calls may run on to
    the middle of the rest, so that a slow quorum is preferred to none; the last stage's calls end 2 % before the end,
    which leaves time to write the verdict.
    """
    left = deadline_at - opened_at
    soft = opened_at + left / stages_left
    hard = soft + (deadline_at - soft) / 2 if stages_left > 1 else opened_at + left * 0.98
    return min(soft, hard), hard
