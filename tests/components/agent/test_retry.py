"""The wait before a failed request to an engine is repeated."""

import pytest

from serve_deployments.agent.retry import budgeted


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
