"""Admission by budget, and the arithmetic of deadlines."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.deliberation.calls import Call, Reserve
from app.deliberation.facts import CallFinished
from app.deliberation.specification import Budget

# Bytes of UTF-8 per token, low on purpose: an estimate that errs towards refusing keeps the ceiling a ceiling. Bytes,
# because a character of Chinese or an emoji takes a token or more, and three or four bytes.
BYTES_PER_TOKEN = 3


@dataclass(frozen=True, slots=True)
class Spent:
    """What closed stages have cost in engine requests and tokens.

    Only outcomes that were seen count, and one request for each call without: a late answer must not change what a
    replay admits.
    """

    calls: int = 0
    tokens: int = 0

    def after(self, calls: Sequence[Call], seen: Mapping[str, CallFinished]) -> "Spent":
        """What is spent after a stage of these calls with these outcomes by call id; attempts count each."""
        asked = [call for call in calls if call.check is None]
        requests = sum(max(1, seen[call.call_id].usage.calls) if call.call_id in seen else 1 for call in asked)
        return Spent(self.calls + requests, self.tokens + sum(finished.usage.tokens for finished in seen.values()))


def predicted_tokens(calls: Iterable[Call]) -> int:
    """What calls will cost, erring upwards: their prompts by length, and every completion at its bound.

    A persona, which a replica adds, and an attempt that is made again are not foreseen; both are counted when spent.
    """
    return sum(
        sum(len(message.content.encode()) for message in call.messages) // BYTES_PER_TOKEN + call.max_tokens
        for call in calls
    )


_NOTHING = Reserve()


def admits(budget: Budget, spent: Spent, calls: tuple[Call, ...], reserve: Reserve = _NOTHING) -> bool:
    """Whether a stage fits: spent + predicted + reserve ≤ budget, on both sides. What asks no engine costs nothing."""
    asked = [call for call in calls if call.check is None]
    if not asked:
        return True
    if budget.max_calls is not None and spent.calls + len(asked) + reserve.calls > budget.max_calls:
        return False
    if budget.max_tokens is None:
        return True
    return spent.tokens + predicted_tokens(asked) + reserve.tokens <= budget.max_tokens


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
