"""Answers that break their form."""

import json
from collections.abc import Callable
from typing import Any


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    match value:
        case dict():
            return {key: _changed(inner, change) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [_changed(inner, change) for inner in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return change(value)


def _numbers(text: str, change: Callable[[int], Any]) -> str:
    return json.dumps(_changed(json.loads(text), lambda value: change(value) if isinstance(value, int) else value))


def _every_choice(text: str) -> str:
    closed = ("A", "B", "tie", "accept", "reject", "revise", "major", "minor", "blocker")
    return json.dumps(_changed(json.loads(text), lambda value: "nobody" if value in closed else value))


MALFORMED: dict[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "blank": lambda text: " \n",
    "refused in prose": lambda text: "I would rather not say.",
    "truncated": lambda text: text[: len(text) // 2],
    "the last brace lacks": lambda text: text[:-1],
    "repeated": lambda text: text + text,
    "in a fence": lambda text: f"```json\n{text}\n```",
    "in a list": lambda text: f"[{text}]",
    "null": lambda text: "null",
    "no field": lambda text: "{}",
    "one field too many": lambda text: f'{text[:-1]}, "winner_is": "A"}}',
    "numbers too large": lambda text: _numbers(text, lambda number: number + 1_000),
    "numbers below zero": lambda text: _numbers(text, lambda number: -1 - number),
    "numbers in quotes": lambda text: _numbers(text, str),
    "numbers that are none": lambda text: _numbers(text, lambda number: None),
    "fractions of numbers": lambda text: _numbers(text, lambda number: number + 0.5),
    "choices that there are not": _every_choice,
    "labels that were not shown": lambda text: text.replace('{"A":', '{"Q":'),
    "another alphabet": lambda text: text.replace('"A"', '"\u0410"'),
}
