"""Texts are split into the same words on every path."""

import pytest

from app.archive.database.words import WORD_CHARS_MAX, split

LENGTHS = (1, WORD_CHARS_MAX - 1, WORD_CHARS_MAX, WORD_CHARS_MAX + 1, 2 * WORD_CHARS_MAX + 1)


def pieces(word: str) -> list[str]:
    return [word[begin : begin + WORD_CHARS_MAX] for begin in range(0, len(word), WORD_CHARS_MAX)]


@pytest.mark.parametrize("first", LENGTHS)
@pytest.mark.parametrize("last", LENGTHS)
@pytest.mark.parametrize("beside", ["", "ö "], ids=["ascii", "with another letter"])
@pytest.mark.parametrize("between", [" ", ", ", "\n\n\x1c-"])
def test_long_words_become_several(first: int, last: int, beside: str, between: str) -> None:
    found = split(f"{beside}{'A' * first}{between}{'b' * last}")

    assert found == [*beside.split(), *pieces("a" * first), *pieces("b" * last)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("“Read-only” — it’s…", ["read", "only", "it", "s"]),
        ("a•b_c · d€2", ["a", "b", "c", "d", "2"]),
        ("“Straße” – ﬁre", ["strasse", "fire"]),
        ("Cafe\u0301 «Ⅳ»", ["café", "iv"]),
        ("東京—rain", ["東", "京", "rain"]),
        ("“" + "x" * (WORD_CHARS_MAX + 1), ["x" * WORD_CHARS_MAX, "x"]),
    ],
)
def test_marks_that_are_not_ascii_separate_words(text: str, words: list[str]) -> None:
    assert split(text) == words


@pytest.mark.parametrize("text", ["", " ", "“—…”", "-" * 200, "\x1f\t"])
def test_a_text_without_letters_and_digits_has_no_words(text: str) -> None:
    assert split(text) == []
