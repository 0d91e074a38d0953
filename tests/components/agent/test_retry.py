"""The wait before a failed request to an engine is repeated, and what a retry takes from the budget."""

import asyncio
from collections.abc import Awaitable

import pytest

from app.deliberation.errors import EngineUnavailable
from serve_deployments.agent.retry import ATTEMPTS_MAX, budgeted, with_retries
from serve_deployments.engine.limits import RetryBudget
from serve_deployments.engine.state import RetryLater
from serve_deployments.engine.wire import EngineReply
from tests.conditions import until


@pytest.mark.parametrize(
    ("again", "budget_wait_s", "wait"),
    [
        pytest.param(True, 0.0, True, id="no Retry-After and room in the budget: exponential"),
        pytest.param(True, 0.4, 0.4, id="the budget's wait"),
        pytest.param(2.0, 0.0, 2.0, id="Retry-After"),
        pytest.param(2.0, 3.0, 3.0, id="the longer of both"),
    ],
)
def test_a_refused_request_waits_for_retry_after_and_for_the_budget(
    again: bool | float, budget_wait_s: float, wait: bool | float
) -> None:
    assert budgeted(again, budget_wait_s) == wait
    assert isinstance(budgeted(again, budget_wait_s), type(wait))


class Refusing:
    """An overloaded engine, which counts the requests that it refuses, and the call that asks it."""

    def __init__(self, budget: RetryBudget, error: Exception | None = None) -> None:
        self.budget = budget
        self.error = error or RetryLater("the engine answered 503", after_s=0)
        self.requests = self.retries = 0

    async def _ask(self) -> EngineReply:
        self.requests += 1
        raise self.error

    def _count(self) -> None:
        self.retries += 1

    def call(self, left_s: float = 60) -> Awaitable[EngineReply]:
        return with_retries(self._ask, self.budget, self._count, lambda: left_s)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_deployments.agent.retry.RETRY_WAIT_MAX_S", 0.0)
    monkeypatch.setattr("serve_deployments.engine.limits.RETRIES_PER_S", 1e-9)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("error", "taken"),
    [
        pytest.param(RetryLater("503", after_s=0), ATTEMPTS_MAX - 1, id="overloaded"),
        pytest.param(EngineUnavailable("broken off"), 0, id="broken off: no part of the budget"),
    ],
)
async def test_the_last_failure_of_a_call_takes_no_retry(error: Exception, taken: int) -> None:
    engine = Refusing(RetryBudget(), error)
    before = engine.budget.saved
    with pytest.raises(type(error)):
        await engine.call()
    assert (engine.requests, engine.retries) == (ATTEMPTS_MAX, ATTEMPTS_MAX - 1)
    assert before - engine.budget.saved == pytest.approx(taken)


async def test_a_refusal_is_final_when_its_retry_would_come_after_the_deadline() -> None:
    engine = Refusing(RetryBudget(saved=-30))
    async with asyncio.timeout(5):
        with pytest.raises(RetryLater, match="answered 503"):
            await engine.call(left_s=30)
    assert (engine.requests, engine.retries, engine.budget.saved) == (1, 0, -30)


async def test_a_retry_that_is_not_made_is_given_back() -> None:
    engine = Refusing(RetryBudget(saved=-30))
    calls = [asyncio.ensure_future(engine.call()) for _ in range(10)]
    await until(lambda: engine.budget.saved <= -39)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert (engine.requests, engine.retries) == (10, 0)
    assert -30 <= engine.budget.saved < -28, "and what the time has earned"
