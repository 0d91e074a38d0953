"""Admission by budget, and the arithmetic of deadlines."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.deliberation.calls import Call, Reserve
from app.deliberation.facts import CallFinished
from app.deliberation.specification import Budget

# UTF-8 bytes per token, low on purpose: the estimate errs towards refusing, so that a ceiling holds. Bytes, because a
# Chinese character or an emoji takes a token or more, and three or four bytes.
BYTES_PER_TOKEN = 3


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of closed stages in engine requests and tokens.

    Only outcomes that were seen count, and one request for each call without one: a late outcome must not change what
    a replay admits.
    """

    calls: int = 0
    tokens: int = 0

    def after(self, calls: Sequence[Call], seen: Mapping[str, CallFinished]) -> "Spent":
        """The sum after a stage of these calls, with its seen outcomes by call id. Every attempt counts."""
        asked = [call for call in calls if call.check is None]
        requests = sum(max(1, seen[call.call_id].usage.calls) if call.call_id in seen else 1 for call in asked)
        return Spent(self.calls + requests, self.tokens + sum(finished.usage.tokens for finished in seen.values()))


def predicted_tokens(calls: Iterable[Call]) -> int:
    """Tokens that calls will cost, erring upwards: prompts by length, and every completion at its bound.

    The persona, which a replica adds, and repeated attempts are not predicted; both count once they are spent.
    """
    return sum(
        sum(len(message.content.encode()) for message in call.messages) // BYTES_PER_TOKEN + call.max_tokens
        for call in calls
    )


_NOTHING = Reserve()


def admits(budget: Budget, spent: Spent, calls: tuple[Call, ...], reserve: Reserve = _NOTHING) -> bool:
    """Whether a stage fits: spent + predicted + reserve ≤ budget, on both sides. Calls without an engine are free."""
    asked = [call for call in calls if call.check is None]
    if not asked:
        return True
    if budget.max_calls is not None and spent.calls + len(asked) + reserve.calls > budget.max_calls:
        return False
    if budget.max_tokens is None:
        return True
    return spent.tokens + predicted_tokens(asked) + reserve.tokens <= budget.max_tokens


def stage_deadlines(opened_at: datetime, deadline_at: datetime, stages_left: int) -> tuple[datetime, datetime]:
    """When a stage may close with its quorum (soft deadline), and when its calls end (hard deadline).

    The time left is shared evenly among the stages that may still come. Calls may run on to the middle of the rest,
    because a slow quorum is better than none. The last stage's calls end 2 % early, to leave time for the verdict.
    """
    left = deadline_at - opened_at
    soft = opened_at + left / stages_left
    hard = soft + (deadline_at - soft) / 2 if stages_left > 1 else opened_at + left * 0.98
    return min(soft, hard), hard
