import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.deliberation.calls import Usage
from app.deliberation.errors import AnswerWithheld, CallFailure, EngineUnavailable
from serve_deployments.agent.call import ATTEMPTS_MAX, CallRun
from serve_deployments.agent.inputs import Inputs
from serve_deployments.engine.limits import RetryBudget
from serve_deployments.engine.replies import EngineReply
from serve_deployments.engine.state import RetryLater
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.integration.agent.scripted_engine import ANSWER
from tests.integration.agent.stage_runs import call, request
from tests.memory_inputs import MemoryInputs

REFUSED = RetryLater("the engine answered 503", after_s=0)


class Refused(CallRun):
    def __init__(self, budget: RetryBudget, *errors: CallFailure, left_s: float = 60, told_s: float = 0) -> None:
        self.retries = self.requests = 0
        self.errors = iter(errors or [REFUSED] * ATTEMPTS_MAX)
        context: Any = SimpleNamespace(
            journal=InMemoryJournal(),
            engines=SimpleNamespace(retries=budget, engines=[], told_to_wait_s=lambda: told_s),
            count=self._count,
            inputs=Inputs(MemoryInputs()),
        )
        asked = request((call(),), deadline_s=left_s)
        super().__init__(context, asked, call(), 0, asked.asked_at)

    def _count(self, _: str) -> None:
        self.retries += 1

    async def _on_an_engine(self) -> EngineReply:
        self.requests += 1
        if error := next(self.errors, None):
            raise error
        return EngineReply(ANSWER, "stop", Usage(), None)


@pytest.mark.parametrize(
    ("after_s", "saved", "wait_s"),
    [
        pytest.param(0, 10, 0.1, id="no Retry-After and room in the budget: exponential"),
        pytest.param(0, -3, 4, id="the budget's wait"),
        pytest.param(2, 10, 0, id="Retry-After: the pool waits for the engine"),
        pytest.param(2, -3, 4, id="Retry-After and the budget's wait"),
    ],
)
async def test_a_refused_request_waits_for_retry_after_and_for_the_budget(
    monkeypatch: pytest.MonkeyPatch, after_s: float, saved: float, wait_s: float
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("serve_deployments.agent.call.asyncio.sleep", sleep)
    monkeypatch.setattr("serve_deployments.agent.call.random", lambda: 0.0)
    assert (await Refused(RetryBudget(saved=saved), RetryLater("503", after_s)).outcome()).problem is None
    assert waits == [wait_s]


@pytest.mark.parametrize(
    ("error", "taken"),
    [
        pytest.param(REFUSED, ATTEMPTS_MAX - 1, id="overloaded"),
        pytest.param(EngineUnavailable("broken off"), 0, id="broken off: no part of the budget"),
    ],
)
async def test_the_last_failure_of_a_call_takes_no_retry(
    monkeypatch: pytest.MonkeyPatch, error: CallFailure, taken: int
) -> None:
    monkeypatch.setattr("serve_deployments.agent.call.RETRY_WAIT_MAX_S", 0.0)
    monkeypatch.setattr("serve_deployments.engine.limits.RETRIES_PER_S", 1e-9)
    budget = RetryBudget()
    run, before = Refused(budget, *[error] * ATTEMPTS_MAX), budget.saved
    assert (await run.outcome()).problem is not None
    assert (run.requests, run.retries) == (ATTEMPTS_MAX, ATTEMPTS_MAX - 1)
    assert before - budget.saved == pytest.approx(taken)


async def test_a_refusal_is_final_when_its_retry_would_come_after_the_deadline() -> None:
    budget = RetryBudget(saved=-30)
    run = Refused(budget, left_s=30)
    async with asyncio.timeout(5):
        problem = (await run.outcome()).problem
    assert problem is not None and "answered 503" in problem.detail
    assert (run.requests, run.retries, budget.saved) == (1, 0, -30)


async def test_a_wait_beyond_the_deadline_ends_the_call_with_the_engines_refusal() -> None:
    run = Refused(RetryBudget(), RetryLater("the engine answered 429", 90), left_s=60, told_s=90)
    async with asyncio.timeout(5):
        problem = (await run.outcome()).problem
    assert problem is not None and "answered 429" in problem.detail and run.requests == 1


async def test_waits_that_an_engine_told_are_no_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_deployments.agent.call.RETRY_WAIT_MAX_S", 0.0)
    told = [RetryLater("the engine answered 429", 0.5)] * 2 * ATTEMPTS_MAX
    run = Refused(RetryBudget(saved=20), *told)
    assert (await run.outcome()).problem is None
    assert run.requests == len(told) + 1


async def test_a_withheld_answer_is_not_asked_again_at_the_same_engine() -> None:
    run = Refused(RetryBudget(), *[AnswerWithheld("the model refused")] * ATTEMPTS_MAX)
    problem = (await run.outcome()).problem
    assert problem is not None and problem.code == "answer_withheld" and run.requests == 1


async def test_a_retry_that_is_not_made_is_given_back() -> None:
    budget = RetryBudget(saved=-30)
    runs = [Refused(budget) for _ in range(10)]
    calls = [asyncio.ensure_future(run.outcome()) for run in runs]
    await until(lambda: budget.saved <= -39)
    for each in calls:
        each.cancel()
    await asyncio.wait(calls)
    assert {(run.requests, run.retries) for run in runs} == {(1, 0)}
    assert -30 <= budget.saved < -28, "and what the time has earned"
