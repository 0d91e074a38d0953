"""What is told of an end: each member's final answer, counts and texts within their bounds."""

import pytest

from app.deliberation.announcements import (
    TEXT_CHARS_MAX,
    TEXTS_CHARS_MAX,
    Announcement,
    announcement,
    cut,
    recorded_responses,
)
from app.deliberation.facts import Fact
from app.deliberation.fold import State, fold
from app.deliberation.strategies import STRATEGIES
from app.testing import ScriptedAgents
from tests.unit.facts_of import NOW, CouncilScript, accepted, end, finished, opened, specification


def folded(facts: list[Fact]) -> State:
    state = fold(enumerate(facts, start=1))
    assert state is not None
    return state


def told(script: CouncilScript, **asked: object) -> tuple[Announcement, State]:
    """The announcement of a deliberation that this script answers."""
    agents = ScriptedAgents(script)
    state = folded(agents.deliberate([accepted(specification(**asked))]))  # pyright: ignore[reportArgumentType]
    assert state.end is not None
    return announcement("acme", state.end, state), state


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_member_of_every_strategy_has_a_result(strategy: str) -> None:
    size = 1 if strategy == "single" else 3
    announced, state = told(CouncilScript(), strategy=strategy, size=size)
    assert announced.status == "completed" and announced.counts.total == size
    assert {result.agent_id for result in announced.results} == {a.agent_id for a in state.specification.agents}
    assert announced.usage == state.end.usage if state.end else False
    assert sum(result.usage.calls for result in announced.results) <= announced.usage.calls
    responses = list(recorded_responses("acme", state))
    assert {each.call_id for each in responses} == state.finished.keys() and len(responses) == len(state.finished)


def test_results_stand_in_the_order_of_the_ranking_with_the_version_that_is_ranked() -> None:
    announced, state = told(CouncilScript())
    assert state.end is not None and state.end.verdict is not None
    assert [result.agent_id for result in announced.results] == [each.agent_id for each in state.end.verdict.ranking]
    assert announced.results[0].content == state.end.verdict.content
    assert announced.results[0].duration_ms == sum(
        each.duration_ms for each in state.finished.values() if each.agent_id == announced.results[0].agent_id
    )


def test_members_without_an_answer_are_told_with_their_problem() -> None:
    announced, _ = told(CouncilScript(failing={"s1-dev-002"}), strategy="independent")
    by_agent = {result.agent_id: result for result in announced.results}
    assert (by_agent["dev-002"].status, by_agent["dev-002"].content) == ("failed", None)
    problem = by_agent["dev-002"].problem
    assert problem is not None and problem.code == "engine_unavailable"
    assert (announced.counts.succeeded, announced.counts.failed) == (2, 1)


def test_an_end_before_any_answer_tells_of_skipped_members() -> None:
    state = folded([accepted(), opened(), finished("dev-001"), end()])
    announced = announcement("acme", end(), state)
    assert [result.status for result in announced.results] == ["answered", "skipped", "skipped"]
    assert announced.results[0].content is None, "the text does not satisfy its form"
    assert announced.counts.succeeded == 0


def test_a_damaged_log_is_announced_without_the_request() -> None:
    announced = announcement("acme", end(), None)
    assert (announced.task, announced.results, announced.metadata) == (None, (), {})
    assert announced.tenant == "acme" and announced.ts == NOW and announced.duration_ms is None


def test_long_texts_are_cut_with_a_mark_that_names_the_whole() -> None:
    long = "x" * (TEXT_CHARS_MAX + 1)
    shown = cut(long, "d1")
    assert shown.startswith("x" * TEXT_CHARS_MAX) and shown.endswith("whole: /deliberations/d1]")
    assert f"of {len(long)} characters" in shown and cut("short", "d1") == "short"


def test_the_texts_of_a_large_council_fit_one_message() -> None:
    announced, _ = told(CouncilScript(text=lambda _: "é" * 20_000), strategy="independent", size=32)
    texts = [result.content for result in announced.results]
    assert all(text is not None and text.endswith("]") for text in texts)
    assert sum(len(text or "") for text in texts) < TEXTS_CHARS_MAX * 1.1
    assert len(announced.model_dump_json().encode()) < 524_288
