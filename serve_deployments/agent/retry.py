"""Decides which failed requests to an engine are repeated, how often, and after how many seconds."""

import time
from collections.abc import Awaitable, Callable

import stamina

from app.deliberation.errors import CallFailure
from serve_deployments.agent.engine_wait import NoEngineReachable
from serve_deployments.engine.limits import RetryBudget
from serve_deployments.engine.state import RetryLater
from serve_deployments.engine.wire import EngineReply

ATTEMPTS_MAX = 3
RETRY_WAIT_MIN_S = 0.1
RETRY_WAIT_MAX_S = 5.0


def backoff_hook(error: Exception) -> bool | float:
    """Whether to retry, or the seconds to wait before it.

    Retried are 408, 429, 5xx, broken or silent streams and unreadable replies. Other refusals (4xx) are final, and so
    is the end of a call's timeout with engines that cannot be connected to.
    """
    if isinstance(error, RetryLater) and error.after_s > 0:
        return min(error.after_s, RETRY_WAIT_MAX_S)
    return isinstance(error, CallFailure) and error.retryable and not isinstance(error, NoEngineReachable)


def budgeted(again: bool | float, budget_wait_s: float) -> bool | float:
    """The wait before a retry after an engine's refusal: at least the budget's; True for the exponential wait."""
    return again if budget_wait_s == 0 else max(0.0 if again is True else again, budget_wait_s)


async def with_retries(
    ask: Callable[[], Awaitable[EngineReply]],
    budget: RetryBudget,
    on_retry: Callable[[], None],
    left_s: Callable[[], float],
) -> EngineReply:
    """The first reply of at most three attempts; raises the last CallFailure. `on_retry` is called before each retry.

    Retries after an overloaded engine's refusal (429, 503) also wait until `budget` allows them. Where that wait is
    longer than `left_s`, the seconds that the call has left, the refusal is final. An invalid reply makes `validation`
    run all of this once more.
    """
    number, withdrawn = 1, False

    def backoff(error: Exception) -> bool | float:
        nonlocal withdrawn
        again = number < ATTEMPTS_MAX and backoff_hook(error)
        if again is False or not isinstance(error, RetryLater):
            return again
        wait = budgeted(again, budget.withdraw(time.monotonic()))
        if wait is not True and wait >= left_s():
            budget.refund()
            return False
        withdrawn = True
        return wait

    try:
        return await ask()
    except CallFailure as failure:
        failures = [failure]
    # The context costs 0.1 ms, so it is built only after a failure, which counts as its first attempt.
    retries = stamina.retry_context(
        on=backoff, attempts=None, timeout=None, wait_initial=RETRY_WAIT_MIN_S, wait_max=RETRY_WAIT_MAX_S
    )
    try:
        async for attempt in retries:
            number = attempt.num
            with attempt:
                if failures:
                    raise failures.pop()
                withdrawn = False
                on_retry()
                return await ask()
    finally:
        # Stopped, or out of time, while it waited for its retry.
        if withdrawn:
            budget.refund()
    raise AssertionError("a retry context ends by returning or raising")
