"""Text for display, most of it untrusted: styles, units, and the readable part of structured outputs."""

import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime

from pydantic_core import from_json
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

# Characters that reorder or hide text, and blanks that are taken for letters (UTS 39, UAX 9).
_INVISIBLE = (
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Emoji and some scripts need these within a word; in others they hide.
_JOINERS = r"\u200c\u200d\ufe0e\ufe0f"
_AFTER_A_LETTER = rf"(?<=[^\x00-\xff{_INVISIBLE}])[{_JOINERS}]|(?<=[^\x00-\xff{_INVISIBLE}]\ufe0f)\u200d"
_HIDDEN = re.compile(f"({_AFTER_A_LETTER})|[{_INVISIBLE}]")
_UNSAFE_IN_JSON = re.compile(rf"[\x7f-\x9f\ud800-\udfff{_INVISIBLE}]")
_CONTROL = {code: None for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}

# The texts before and after the value of a key; a key that is not here is shown as "key: value".
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


# Roles, and the statuses of deliberations, plans and deliveries.
_STYLES = {
    **{"DEV": "cyan", "QA": "magenta", "ARCHITECT": "yellow", "DEVOPS": "green", "DATA": "blue"},
    **{"completed": "green", "delivered": "green", "failed": "red", "timeout": "red", "stopped": "red", "gone": "dim"},
    **{"cancelled": "yellow", "cancelling": "yellow", "pending": "yellow"},
}


def role_style(role: str) -> str:
    return _STYLES.get(role, "white")


def status_text(status: str) -> Text:
    return Text(printable(status), _STYLES.get(status, "cyan"))


def counted(count: int, word: str) -> str:
    """A number of things: `1 call`, `2 calls`."""
    return f"{count} {word}{'s' * (count != 1)}"


def seconds(value: float) -> str:
    """Seconds in a readable form: 4.2 s, 1:07 min."""
    return f"{value:.1f} s" if value < 60 else f"{int(value) // 60}:{int(value) % 60:02d} min"


def age_text(then: datetime, now: datetime) -> str:
    """The time that has passed, in its largest whole unit."""
    passed_s = max(0.0, (now - then).total_seconds())
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if passed_s >= unit_s:
            return f"{int(passed_s // unit_s)} {unit}"
    return f"{int(passed_s)} s"


def figure(value: float | None, form: str) -> str:
    """A number in a format such as `.2f`; a dash without one."""
    return "–" if value is None else f"{value:{form}}"


def printable(text: str) -> str:
    """`text` without control characters but for newline and tab, so that no answer controls the terminal.

    A character that reorders or hides text is shown, as `<U+202E>`.
    """
    shown = text.translate(_CONTROL)
    return shown if shown.isascii() else _HIDDEN.sub(lambda match: match[1] or f"<U+{ord(match[0]):04X}>", shown)


def json_line(document: object) -> str:
    """JSON on one line, in which characters that control a terminal or reorder or hide text are escaped."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return _UNSAFE_IN_JSON.sub(lambda match: json.dumps(match[0])[1:-1], text)


def plain(text: str | None) -> Text:
    """Untrusted text for display, without the effect of markup and control characters."""
    return Text(printable(text or ""))


def line_of(text: str, chars_max: int | None = None) -> str:
    line = " ".join(printable(text).split())
    return line if chars_max is None or len(line) <= chars_max else line[: chars_max - 1] + "…"


def named_rows(rows: Iterable[tuple[str, RenderableType]], style: str = "dim") -> Table:
    """A row for each pair of a name, in this style, and a value, which wraps."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def prose(text: str, *, line_end: str = "\n") -> str:
    """The strings and numbers of an agent's JSON in their order, without syntax; other text as it is.

    While an output grows, its prose only grows. No input raises an error, and no control character is kept.
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
