from app.deliberation.announcements import (
    TEXT_CHARS_MAX,
    TEXTS_CHARS_MAX,
    Announcement,
    announcement,
    cut,
)
from app.deliberation.facts import Fact, ToolStarted, ToolUsed
from app.deliberation.fold import State, fold
from tests.fakes import ScriptedAgents
from tests.unit.facts_of import NOW, CouncilScript, accepted, end, finished, opened, specification, use


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


def test_uses_of_tools_are_announced_by_member_and_tool() -> None:
    uses = [use(ToolUsed, 1, bytes=17, duration_ms=30), use(ToolUsed, 2, failed=True, duration_ms=2_000)]
    other = use(ToolUsed, agent_id="dev-002", call_id="s1-dev-002", tool="", server="", failed=True)
    facts = [accepted(), opened(), use(ToolStarted), *uses, other, finished("dev-001"), end()]
    first, second, third = announcement("acme", end(), folded(facts)).results
    assert [tool.model_dump() for tool in first.tools] == [
        {"server": "shelf", "tool": "look_up", "uses": 2, "failed": 1, "bytes": 17, "duration_ms": 2_030}
    ]
    assert [(tool.tool, tool.uses, tool.failed) for tool in second.tools] == [("", 1, 1)]
    assert third.tools == () and "tools" not in third.model_dump(), "nothing changes without tools"


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
