from app.deliberation.announcements import (
    TEXT_CHARS_MAX,
    TEXTS_CHARS_MAX,
    Announcement,
    announcement,
    cut,
)
from app.deliberation.facts import Fact
from app.deliberation.fold import State, fold
from tests.fakes import ScriptedAgents
from tests.unit.facts_of import NOW, CouncilScript, accepted, end, finished, opened, specification


def folded(facts: list[Fact]) -> State:
    state = fold(enumerate(facts, start=1))
    assert state is not None
    return state


def told(script: CouncilScript, **asked: object) -> tuple[Announcement, State]:
    agents = ScriptedAgents(script)
    state = folded(agents.deliberate([accepted(specification(**asked))]))  # pyright: ignore[reportArgumentType]
    assert state.end is not None
    return announcement("acme", state.end, state), state


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
