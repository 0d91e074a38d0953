"""Admission by budget, and the arithmetic of deadlines."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from app.deliberation.calls import Call, Cost
from app.deliberation.facts import CallFinished
from app.deliberation.specification import Budget

# UTF-8 bytes per token, low on purpose: the estimate errs towards refusing, so that a ceiling holds. Bytes, because a
# Chinese character or an emoji takes a token or more, and three or four bytes.
BYTES_PER_TOKEN = 3


def spent_on(calls: Sequence[Call], seen: Mapping[str, CallFinished]) -> Cost:
    """The cost of a closed stage of these calls, with its seen outcomes by call id. Every attempt counts.

    A call without a seen outcome counts as one request: a late outcome must not change what a replay admits.
    """
    asked = [call for call in calls if call.check is None]
    requests = sum(max(1, seen[call.call_id].usage.calls) if call.call_id in seen else 1 for call in asked)
    return Cost(calls=requests, tokens=sum(finished.usage.tokens for finished in seen.values()))


def predicted_tokens(calls: Iterable[Call]) -> int:
    """Tokens that calls will cost, erring upwards: prompts by length, and every completion at its bound.

    The persona, which a replica adds, and repeated attempts are not predicted; both count once they are spent.
    """
    return sum(
        sum(len(message.content.encode()) for message in call.messages) // BYTES_PER_TOKEN + call.max_tokens
        for call in calls
    )


def refused_by(budget: Budget, spent: Cost, calls: Sequence[Call], reserve: Cost) -> Literal["calls", "tokens"] | None:
    """The side of the budget that a stage exceeds: spent + predicted + reserve > budget. None if it fits.

    Calls without an engine are free.
    """
    asked = [call for call in calls if call.check is None]
    if not asked:
        return None
    if budget.max_calls is not None and spent.calls + len(asked) + reserve.calls > budget.max_calls:
        return "calls"
    if budget.max_tokens is None:
        return None
    return "tokens" if spent.tokens + predicted_tokens(asked) + reserve.tokens > budget.max_tokens else None


def needs_of_first_stage(budget: Budget, calls: Sequence[Call]) -> str:
    """What a first stage that the budget refuses would need, what the budget has, and the remedy."""
    needed, answers = predicted_tokens(calls), sum(call.max_tokens for call in calls)
    limits = ", ".join(f"budget.{name} is {limit}" for name, limit in budget if limit is not None)
    return (
        f"the first stage needs {len(calls)} calls and {needed} tokens, "
        f"{answers} of them for answers at their longest; {limits}. "
        "Raise it, lower sampling.max_tokens, or ask fewer agents."
    )


def stage_deadlines(opened_at: datetime, deadline_at: datetime, stages_left: int) -> tuple[datetime, datetime]:
    """When a stage may close with its quorum (soft deadline), and when its calls end (hard deadline).

    The time left is shared evenly among the stages that may still come. Calls may run on to the middle of the rest,
    because a slow quorum is better than none. The last stage's calls end 2 % early, to leave time for the verdict.
    """
    left = deadline_at - opened_at
    soft = opened_at + left / stages_left
    hard = soft + (deadline_at - soft) / 2 if stages_left > 1 else opened_at + left * 0.98
    return min(soft, hard), hard
