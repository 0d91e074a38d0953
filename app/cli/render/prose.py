"""The readable part of a structured output, also while it is still being written.

Agents answer in JSON. `prose` keeps the strings and numbers of a text, in their order, and leaves the syntax out. Text
that is no JSON object or list stays as it is. No input raises an error.
"""

from collections.abc import Iterator

from pydantic_core import from_json

_CONTROL = {code: None for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}

# What is written before and after the value of a key; a key that is not here is shown as "key: value".
_AROUND: dict[str, tuple[str, str]] = {
    "reasoning": ("", "\n\n"),
    "answer": ("", "\n"),
    "confidence": ("confidence ", " %\n"),
    "severity": ("", " · "),
    "where": ("", ": "),
    "claim": ("", "\n"),
    "evidence": ("", "\n"),
    "fix": ("fix: ", "\n"),
    "verdict": ("verdict: ", "\n"),
    "issue": ("issue ", " "),
    "decision": ("", ": "),
    "reason": ("", "\n"),
    "id": ("", ": "),
    "rationale": ("", " "),
    "score": ("→ ", " of 10\n"),
    "notes_a": ("A: ", "\n"),
    "notes_b": ("B: ", "\n"),
    "error": ("found wrong: ", "\n"),
    "choice": ("chooses ", "\n"),
    "agreements": ("agreed: ", "\n"),
    "conflicts": ("in conflict: ", "\n"),
    "gaps": ("missing: ", "\n"),
    "code": ("", "\n"),
    "name": ("", ": "),
    "call": ("", " "),
    "arguments": ("", " "),
    "expected": ("→ ", "\n"),
    "passed": ("passed: ", "\n"),
    "duration_ms": ("", " ms\n"),
}


def counted(count: int, word: str) -> str:
    """A number of things: `1 call`, `2 calls`."""
    return f"{count} {word}{'s' * (count != 1)}"


def printable(text: str) -> str:
    """`text` without control characters but for newline and tab, so that no answer controls the terminal."""
    return text.translate(_CONTROL)


def prose(text: str, *, line_end: str = "\n") -> str:
    """The readable part of an output, free of control characters. While an output grows, its prose only grows.

    `line_end` stands after each value that ends a line; a blank line makes paragraphs.
    """
    if not text.lstrip().startswith(("{", "[")):
        return printable(text.lstrip())
    try:
        return printable("".join(_pieces(from_json(text), line_end)))
    except ValueError:
        return _unfinished(text, line_end)


def _unfinished(text: str, line_end: str) -> str:
    try:
        pieces = list(_pieces(from_json(text, allow_partial="trailing-strings"), line_end))
    except ValueError:
        return printable(text)
    # The last value may still grow, so nothing is written after it yet.
    return printable("".join(pieces[:-1]))


def _pieces(value: object, line_end: str, key: str = "", depth: int = 0) -> Iterator[str]:
    """The values of a JSON document in order, each after what is written before it and followed by what is after it."""
    match value:
        case dict():
            # An object in the outermost object is a ballot's candidate, and its key is the candidate's label.
            if depth == 1:
                yield f"{key} – "
            for name, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
                yield from _pieces(inner, line_end, str(name), depth + 1)  # pyright: ignore[reportUnknownArgumentType]
        case list():
            for inner in value:  # pyright: ignore[reportUnknownVariableType]
                yield from _pieces(inner, line_end, key, depth + 2)  # pyright: ignore[reportUnknownArgumentType]
        case None | "":
            return
        case _:
            before, after = _AROUND.get(key, (f"{key}: " if key else "", "\n"))
            yield before
            yield {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
            ends = after.endswith(line_end) or not after.endswith("\n")
            yield after if ends else after.removesuffix("\n") + line_end
