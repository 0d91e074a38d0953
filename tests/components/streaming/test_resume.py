from typing import Any

import pytest

from app.api.cursor import BEGINNING, Cursor, InvalidEventCursor, parse_cursor
from app.api.headers import media_of
from app.api.problems import NotAcceptable
from app.deliberation.fold import fold
from app.streaming.snapshots import unfinished_calls
from tests.story import Story


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        (None, "text/event-stream"),
        ("", "text/event-stream"),
        ("*/*", "text/event-stream"),
        ("text/*", "text/event-stream"),
        ("text/event-stream", "text/event-stream"),
        ("TEXT/Event-Stream; charset=utf-8", "text/event-stream"),
        ("application/json", "application/json"),
        ("application/json, text/plain, */*", "application/json"),
        ("application/json, text/event-stream", "text/event-stream"),
        ("application/json, text/event-stream;q=0.1", "application/json"),
        ("application/json;q=0.5, */*", "text/event-stream"),
        ("application/json;q=0.9, text/event-stream; q=0.900", "text/event-stream"),
        ("application/json, text/*;q=0.99", "application/json"),
        ("text/event-stream;q=0, */*;q=0.1", "application/json"),
        ("text/event-stream;q=0, application/*", "application/json"),
        ("text/html, */*;q=0.8", "text/event-stream"),
    ],
)
async def test_negotiation_picks_the_accepted_media_type(accept: str | None, media: str) -> None:
    assert await media_of(accept) == media


@pytest.mark.parametrize("accept", ["text/html", "image/*, text/plain", "*/*;q=0", "application/json;q=0.0"])
async def test_an_unsupported_media_type_is_not_acceptable(accept: str) -> None:
    with pytest.raises(NotAcceptable):
        await media_of(accept)


@pytest.mark.parametrize(
    ("text", "cursor"),
    [
        ("0", BEGINNING),
        ("ab12-7", Cursor("ab12", 7)),
        ("e-0", Cursor("e", 0)),
        ("e-" + "9" * 19, Cursor("e", 10**19 - 1)),
    ],
)
def test_a_cursor_parses_to_what_it_prints(text: str, cursor: Cursor) -> None:
    assert parse_cursor(text, "after") == cursor
    assert cursor == BEGINNING or str(cursor) == text


BAD_CURSORS = ["", "1", "00", "-", "e-", "-5", "e--5", "E-5", "e-5 ", "e-٣", "é-5", "e" * 17 + "-5", "e-" + "9" * 20]


@pytest.mark.parametrize("text", BAD_CURSORS)
def test_a_malformed_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidEventCursor):
        parse_cursor(text, "after")


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        ([], []),
        (["started 1"], [(1, "", 0)]),
        (["started 1", "1 0 ab", "1 2 c"], [(1, "abc", 3)]),
        (["1 0 ab", "1 2 c"], [(1, "abc", 3)]),
        (["started 1", "1 0 ab", "started 2"], [(2, "", 0)]),
        (["started 1", "1 0 ab", "started 2", "1 2 c", "2 0 x"], [(2, "x", 1)]),
        (["1 0 ab", "1 5 f", "1 6 g"], [(1, "fg", 7)]),
        (["1 0 abc", "1 0 ab", "1 2 x"], [(1, "abx", 3)]),
        (["1 0 aé𝄞", "1 3 !"], [(1, "aé𝄞!", 4)]),
    ],
)
def test_unfinished_texts_are_rebuilt_from_the_newest_attempt(
    views: list[str], expected: list[tuple[int, str, int]]
) -> None:
    story = Story("a")
    state = fold([(1, story.accepted()), (2, story.opened())])
    assert state is not None
    events: list[Any] = []
    for view in views:
        words = view.split()
        if words[0] == "started":
            events.append(story.started("dev-001", int(words[1])))
        else:
            events.append(story.delta("dev-001", int(words[1]), words[2], int(words[0])))
    assert [(each.attempt, each.text, each.offset) for each in unfinished_calls(state, events)] == expected


def test_a_call_with_an_outcome_or_an_ended_deliberation_has_no_unfinished_text() -> None:
    story = Story("a")
    views = [story.delta(agent, 0, "x") for agent in story.agents]
    facts: list[Any] = [story.accepted(), story.opened(), story.finished("dev-001")]
    state = fold(enumerate(facts, 1))
    assert state is not None
    assert [each.agent_id for each in unfinished_calls(state, views)] == ["dev-002"]
    closed = story.closed().model_copy(update={"seen": ("s1-dev-001",), "reason": "quorum"})
    for more in ([closed], [story.completed()]):
        state = fold(enumerate([*facts, *more], 1))
        assert state is not None and unfinished_calls(state, views) == ()
