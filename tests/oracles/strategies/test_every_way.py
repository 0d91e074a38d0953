from collections.abc import Callable

import pytest

from tests.oracles.strategies import test_every_strategy_budget as budget
from tests.oracles.strategies import test_every_strategy_failures as failures
from tests.oracles.strategies import test_every_strategy_hostile as hostile
from tests.oracles.strategies import test_every_strategy_order as order
from tests.unit.strategies import test_deadline as deadline
from tests.unit.strategies.every_strategy import OTHER_WAYS, Way

CHECKS: tuple[Callable[[Way], None], ...] = (
    deadline.test_a_deadline_in_or_after_any_stage_keeps_the_answers_that_are_there,
    deadline.test_a_deadline_that_must_fail_gives_no_verdict_in_any_stage,
    deadline.test_a_successor_of_a_coordinator_that_died_at_the_deadline_writes_the_same_verdict,
    deadline.test_answers_that_are_late_are_missing_like_those_that_failed,
    budget.test_a_ceiling_of_calls_below_or_at_any_stage_is_kept_and_ends_in_a_verdict,
    budget.test_a_ceiling_of_tokens_is_kept_and_ends_in_a_verdict,
    budget.test_any_stages_may_be_refused_and_those_after_them_admitted,
    failures.test_every_pattern_of_failed_calls_in_any_stage_comes_to_a_verdict_if_there_is_an_answer,
    failures.test_failures_in_all_stages_of_larger_councils_come_to_a_verdict_too,
    failures.test_a_member_that_always_fails_is_reported,
    failures.test_agents_that_never_answer_in_a_later_stage_count_as_if_they_had_failed,
    failures.test_a_missing_ballot_is_never_counted_as_zero,
    failures.test_an_answer_that_breaks_its_form_is_missing_as_if_its_call_had_failed,
    hostile.test_a_hostile_text_changes_only_its_own_fences,
    order.test_a_stage_continues_from_any_recorded_half,
)
RATED: tuple[Callable[[Way, float], None], ...] = (
    order.test_the_same_seed_and_answers_give_the_same_transcript_in_any_order_of_arrival,
    order.test_every_prefix_of_the_log_leads_to_the_same_end_without_repeated_calls,
)
every_other_way = pytest.mark.parametrize("way", OTHER_WAYS.values(), ids=OTHER_WAYS)


@every_other_way
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("test_"))
def test_in_every_other_way(way: Way, check: Callable[[Way], None]) -> None:
    check(way)


@every_other_way
@pytest.mark.parametrize("rate", [0.0, 0.3], ids=["all answer", "some fail"])
@pytest.mark.parametrize("check", RATED, ids=lambda check: check.__name__.removeprefix("test_"))
def test_in_every_other_way_with_failures(way: Way, check: Callable[[Way, float], None], rate: float) -> None:
    check(way, rate)
