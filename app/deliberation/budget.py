"""Admission by budget, and the arithmetic of deadlines."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Literal

from app.deliberation.calls import Call, Cost, Money, price_of
from app.deliberation.facts import CallFinished
from app.deliberation.specification import BYTES_PER_TOKEN, Budget

# A tool call in a prompt, beside the tool's result: its name, its arguments and the fence.
TOOL_CALL_BYTES = 8_192 + 512


def spent_on(budget: Budget, calls: Sequence[Call], seen: Mapping[str, CallFinished]) -> Cost:
    """The cost of a closed stage of these calls, by its seen outcomes; every attempt counts.

    A call without a seen outcome counts as one request: a late outcome must not change what a replay admits.
    """
    asked = [call for call in calls if call.check is None]
    requests = sum(max(1, seen[call.call_id].usage.calls) if call.call_id in seen else 1 for call in asked)
    costs = sum((_cost_of(budget, finished) for finished in seen.values()), Cost())
    uses = sum(
        seen[call.call_id].usage.tool_uses if call.call_id in seen else call.tools.uses
        for call in asked
        if call.tools is not None
    )
    return costs.model_copy(update={"calls": requests, "tool_uses": uses})


def allotted(budget: Budget, spent: Cost, calls: Sequence[Call]) -> tuple[Call, ...]:
    """The calls of a stage with the uses of tools that the budget leaves, in equal shares; the first get the rest."""
    asked = [call.call_id for call in calls if call.tools is not None]
    if budget.max_tool_uses is None or not asked:
        return tuple(calls)
    share, rest = divmod(max(0, budget.max_tool_uses - spent.tool_uses), len(asked))
    allotted_calls: list[Call] = []
    for call in calls:
        if (allowance := call.tools) is not None:
            uses = min(allowance.uses, share + (asked.index(call.call_id) < rest))
            tools = allowance.model_copy(update={"uses": uses}) if uses else None
            call = call.model_copy(update={"tools": tools})
        allotted_calls.append(call)
    return tuple(allotted_calls)


def _cost_of(budget: Budget, finished: CallFinished) -> Cost:
    usage = finished.usage
    at_most = priced(budget, finished.role, usage.prompt_tokens, usage.completion_tokens)
    return at_most if usage.cost is None else at_most.model_copy(update={"amount": usage.cost.amount})


def priced(budget: Budget, role: str, prompt_tokens: int, completion_tokens: int = 0) -> Cost:
    """The cost of these tokens at the highest price of a role's calls; an amount of 0 without a price."""
    prices = next((role_prices for role_prices in budget.prices if role_prices.role == role), None)
    amount = Decimal(0) if prices is None else price_of(prices, prompt_tokens, completion_tokens)
    return Cost(tokens=prompt_tokens + completion_tokens, amount=amount)


def tokens_of(text: str) -> int:
    return len(text.encode()) // BYTES_PER_TOKEN + 1


def predicted(budget: Budget, calls: Iterable[Call]) -> Cost:
    """The cost of calls, erring upwards: prompts by length, completions at their bound, no repeated attempts.

    A call with tools makes a request after each use, whose prompt holds the results so far: half of them on average.
    """
    total = Cost()
    for call in calls:
        uses = call.tools.uses if call.tools is not None else 0
        results = (call.tools.bytes + uses * TOOL_CALL_BYTES if call.tools is not None else 0) // BYTES_PER_TOKEN
        prompt = sum(message.size_bytes for message in call.messages) // BYTES_PER_TOKEN
        tokens = (1 + uses) * prompt + (1 + uses) * results // 2 + (results if uses else 0)
        total += Cost(calls=1 + uses, tool_uses=uses)
        total += priced(budget, call.role, tokens, (1 + uses) * call.max_tokens)
    return total


def refused_by(
    budget: Budget, spent: Cost, calls: Sequence[Call], reserve: Cost
) -> Literal["calls", "tokens", "cost"] | None:
    """The side of the budget that a stage exceeds: spent + predicted + reserve; None if it fits. Checks are free."""
    asked = [call for call in calls if call.check is None]
    if not asked:
        return None
    requests = sum(1 + (call.tools.uses if call.tools is not None else 0) for call in asked)
    if budget.max_calls is not None and spent.calls + requests + reserve.calls > budget.max_calls:
        return "calls"
    if not budget.counts_tokens:
        return None
    total = spent + predicted(budget, asked) + reserve
    if budget.max_tokens is not None and total.tokens > budget.max_tokens:
        return "tokens"
    return "cost" if budget.max_cost is not None and total.amount > budget.max_cost else None


def needs_of_first_stage(budget: Budget, calls: Sequence[Call]) -> str:
    needed, answers = predicted(budget, calls), sum(call.max_tokens for call in calls)
    ceilings: dict[str, object] = {"max_tokens": budget.max_tokens, "max_calls": budget.max_calls}
    cost = ""
    if budget.max_cost is not None:
        currency = budget.prices[0].currency
        ceilings["max_cost"] = Money(amount=budget.max_cost, currency=currency)
        cost = f", which may cost {Money(amount=needed.amount, currency=currency)}"
    # Shorter answers make no fewer calls.
    only_calls = budget.max_tokens is None and budget.max_cost is None
    shorter = "" if only_calls else "lower sampling.max_tokens, "
    limits = ", ".join(f"budget.{name} is {limit}" for name, limit in ceilings.items() if limit is not None)
    return (
        f"the first stage needs {needed.calls} calls and {needed.tokens} tokens, "
        f"{answers} of them for answers at their longest{cost}; {limits}. "
        f"Raise it, {shorter}or ask fewer agents."
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
