"""The human part of a structured output while it is still being written.

Agents answer in JSON; a viewer wants sentences. `Prose` reads the JSON character by character as it streams, keeps the
strings and figures that a reader understands, and leaves the syntax out. It never fails: text that is not JSON passes
through as it is.
"""

from enum import Enum, auto

_CONTROL = {code: None for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "", "b": "", "f": ""}
_NUMBER = frozenset("0123456789.-+eE")
_SPACE = frozenset(" \t\r\n")

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
    "passed": ("passed: ", "\n"),
    "duration_ms": ("", " ms\n"),
}
_LITERALS = {"t": "yes", "f": "no"}  # by the first letter: the syntax has no other use for these two


def printable(text: str) -> str:
    """`text` without control characters but for newline and tab: no answer moves the cursor or recolours a terminal."""
    return text.translate(_CONTROL)


class _At(Enum):
    BEGIN = auto()
    PLAIN = auto()
    SYNTAX = auto()
    KEY = auto()
    STRING = auto()
    NUMBER = auto()


class Prose:
    """Reads pieces of one output in order; `text` is its human part so far, free of control characters."""

    def __init__(self) -> None:
        self._at = _At.BEGIN
        self._shown: list[str] = []
        self._inside: list[str] = []
        self._expects_key = False
        self._key = ""
        self._name: list[str] = []
        self._escape: str | None = None
        self._high_surrogate = 0

    @property
    def text(self) -> str:
        """What a reader understands of everything that was fed."""
        joined = "".join(self._shown)
        self._shown = [joined]
        return joined

    def feed(self, piece: str) -> None:
        """Read the next piece of the output."""
        for char in piece:
            match self._at:
                case _At.PLAIN:
                    self._shown.append(printable(char))
                case _At.KEY | _At.STRING:
                    self._read_string(char)
                case _At.NUMBER if char in _NUMBER:
                    self._shown.append(char)
                case _At.NUMBER:
                    self._shown.append(self._around[1])
                    self._at = _At.SYNTAX
                    self._read_syntax(char)
                case _At.SYNTAX:
                    self._read_syntax(char)
                case _At.BEGIN:
                    self._begin(char)

    @property
    def _around(self) -> tuple[str, str]:
        return _AROUND.get(self._key, (f"{self._key}: " if self._key else "", "\n"))

    def _begin(self, char: str) -> None:
        if char in _SPACE:
            return
        self._at = _At.SYNTAX if char in "{[" else _At.PLAIN
        if self._at is _At.SYNTAX:
            self._read_syntax(char)
        else:
            self._shown.append(printable(char))

    def _read_syntax(self, char: str) -> None:
        if char == '"':
            self._at = _At.KEY if self._expects_key else _At.STRING
            if self._at is _At.STRING:
                self._shown.append(self._around[0])
        elif char in "{[":
            self._open(char)
        elif char in "}]":
            if self._inside:
                self._inside.pop()
            self._expects_key = False
        elif char == ",":
            self._expects_key = bool(self._inside) and self._inside[-1] == "{"
        elif char in _LITERALS:
            self._shown.append(self._around[0] + _LITERALS[char] + self._around[1])
        elif char in _NUMBER and char not in "eE+.":
            self._shown.append(self._around[0] + char)
            self._at = _At.NUMBER

    def _open(self, char: str) -> None:
        # An object under a key of the outermost object is a ballot's candidate: its key is the label of that candidate.
        if char == "{" and self._inside == ["{"] and self._key:
            self._shown.append(f"{self._key} – ")
        self._inside.append(char)
        self._expects_key = char == "{"

    def _read_string(self, char: str) -> None:
        if self._escape is not None:
            self._read_escape(char)
        elif char == "\\":
            self._escape = ""
        elif char == '"':
            self._close_string()
        else:
            self._take(char)

    def _close_string(self) -> None:
        if self._at is _At.KEY:
            self._key = "".join(self._name)
            self._name.clear()
            self._expects_key = False
        else:
            self._shown.append(self._around[1])
        self._at = _At.SYNTAX

    def _read_escape(self, char: str) -> None:
        assert self._escape is not None
        if not self._escape and char != "u":
            self._escape = None
            self._take(_ESCAPES.get(char, char))
            return
        self._escape += char
        if len(self._escape) == 5:
            digits, self._escape = self._escape[1:], None
            self._take_code(int(digits, 16) if all(digit in "0123456789abcdefABCDEF" for digit in digits) else 0xFFFD)

    def _take_code(self, code: int) -> None:
        if 0xD800 <= code < 0xDC00:
            self._high_surrogate = code
        elif 0xDC00 <= code < 0xE000:
            high, self._high_surrogate = self._high_surrogate, 0
            self._take(chr(0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00)) if high else "\ufffd")
        else:
            self._take(chr(code))

    def _take(self, text: str) -> None:
        if self._at is _At.KEY:
            self._name.append(text)
        else:
            self._shown.append(printable(text))
