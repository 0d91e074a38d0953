r"""Strings for regular expressions: the common part of the syntax, read by hand and drawn from a `Dice`.

Supported are literals, classes, `.`, `\d \w \s` and their opposites, groups, alternatives, quantifiers, and anchors
at the ends. Anything else (look-around, back references, properties) raises PatternUnsupported, which names it.
"""

import re
import string
from dataclasses import dataclass
from functools import lru_cache

from serve_deployments.simulator.dice import Dice

_DIGITS = string.digits
_WORD = string.ascii_letters + string.digits + "_"
_PRINTABLE = string.ascii_letters + string.digits + " !#$%&'()*+,-./:;<=>?@[]^_{|}~"
_ESCAPED_CLASSES = {"d": _DIGITS, "w": _WORD, "s": " "}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_CLASS_CHARS_MAX = 512
_ATTEMPTS = 24
_STEPS_MAX = 200_000
_GROUPS_DEEP_MAX = 32


class PatternUnsupported(Exception):
    """A regular expression that is not in the supported part, or that no drawn string met."""


@dataclass(frozen=True, slots=True)
class _Chars:
    options: str


@dataclass(frozen=True, slots=True)
class _Repeat:
    node: "_Node"
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class _Concat:
    nodes: "tuple[_Node, ...]"


@dataclass(frozen=True, slots=True)
class _Either:
    nodes: "tuple[_Node, ...]"


_Node = _Chars | _Repeat | _Concat | _Either
_NOTHING = _Concat(())


class _Parser:
    """Recursive descent over one pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._place = 0
        self._depth = 0

    def parse(self) -> _Node:
        node = self._either()
        if self._place < len(self._pattern):
            raise self._unsupported(self._pattern[self._place])
        return node

    def _unsupported(self, what: str) -> PatternUnsupported:
        return PatternUnsupported(f"pattern {self._pattern!r}: {what!r} at {self._place} is not supported")

    def _peek(self) -> str:
        return self._pattern[self._place : self._place + 1]

    def _next(self) -> str:
        sign = self._peek()
        if not sign:
            raise PatternUnsupported(f"pattern {self._pattern!r} ends too early")
        self._place += 1
        return sign

    def _either(self) -> _Node:
        branches = [self._concat()]
        while self._peek() == "|":
            self._place += 1
            branches.append(self._concat())
        return branches[0] if len(branches) == 1 else _Either(tuple(branches))

    def _concat(self) -> _Node:
        nodes: list[_Node] = []
        while (sign := self._peek()) and sign not in "|)":
            nodes.append(self._quantified(self._atom()))
        return nodes[0] if len(nodes) == 1 else _Concat(tuple(nodes))

    def _atom(self) -> _Node:
        sign = self._next()
        match sign:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return _Chars(string.ascii_letters + _DIGITS)
            case "\\":
                return _Chars(self._escape(self._next()))
            case "^" | "$":
                return _NOTHING
            case "*" | "+" | "?":
                raise self._unsupported(sign)
            case _:
                return _Chars(sign)

    def _group(self) -> _Node:
        if self._peek() == "?":
            named = re.compile(r"\?(?::|P?<[A-Za-z_]\w*>)").match(self._pattern, self._place)
            if named is None:
                raise self._unsupported("(" + self._pattern[self._place : self._place + 2])
            self._place = named.end()
        self._depth += 1
        if self._depth > _GROUPS_DEEP_MAX:
            raise self._unsupported("(")
        node = self._either()
        self._depth -= 1
        if self._next() != ")":
            raise self._unsupported("(")
        return node

    def _escape(self, sign: str) -> str:
        if sign in _ESCAPED_CLASSES:
            return _ESCAPED_CLASSES[sign]
        if sign.lower() in _ESCAPED_CLASSES:
            return "".join(char for char in _PRINTABLE if char not in _ESCAPED_CLASSES[sign.lower()])
        if sign in _CONTROLS:
            return _CONTROLS[sign]
        if sign in "xu":
            size = 2 if sign == "x" else 4
            code = self._pattern[self._place : self._place + size]
            if re.fullmatch(rf"[0-9A-Fa-f]{{{size}}}", code) is None:
                raise self._unsupported("\\" + sign)
            self._place += size
            return chr(int(code, 16))
        if sign.isalnum():
            raise self._unsupported("\\" + sign)
        return sign

    def _class(self) -> _Node:
        negated = self._peek() == "^"
        self._place += negated
        members: list[str] = []
        first = True
        while first or self._peek() != "]":
            first = False
            low = self._member()
            if self._peek() == "-" and self._pattern[self._place + 1 : self._place + 2] not in ("]", ""):
                self._place += 1
                high = self._member()
                if len(low) != 1 or len(high) != 1 or high < low:
                    raise self._unsupported(f"{low}-{high}")
                last = min(ord(high), ord(low) + _CLASS_CHARS_MAX)
                members.append("".join(map(chr, range(ord(low), last + 1))))
            else:
                members.append(low)
        self._place += 1
        listed = "".join(members)
        options = "".join(char for char in _PRINTABLE if char not in listed) if negated else listed
        if not options:
            raise self._unsupported("[^")
        readable = "".join(char for char in options if char in _PRINTABLE)
        return _Chars(readable or options)

    def _member(self) -> str:
        sign = self._next()
        return self._escape(self._next()) if sign == "\\" else sign

    def _quantified(self, node: _Node) -> _Node:
        found = re.compile(r"(?:([*+?])|\{(\d+)(,?)(\d*)\})[?+]?").match(self._pattern, self._place)
        if found is None:
            return node
        self._place = found.end()
        sign, low, comma, high = found.groups()
        match sign:
            case "*":
                return _Repeat(node, 0, None)
            case "+":
                return _Repeat(node, 1, None)
            case "?":
                return _Repeat(node, 0, 1)
            case _:
                least = int(low)
                most = int(high) if high else (None if comma else least)
                if most is not None and most < least:
                    raise self._unsupported(found.group())
                return _Repeat(node, least, most)


@lru_cache(maxsize=512)
def _parsed(pattern: str) -> tuple[_Node, re.Pattern[str]]:
    node = _Parser(pattern).parse()
    try:
        return node, re.compile(pattern)
    except (re.error, OverflowError) as exc:
        raise PatternUnsupported(f"pattern {pattern!r}: {exc}") from exc


class _Drawing:
    """One attempt at a string: its chance, and what it may still spend."""

    def __init__(self, dice: Dice, spread: int, room: int) -> None:
        self._dice = dice
        self._spread = spread
        self._room = room
        self._steps_left = _STEPS_MAX

    def draw(self, node: _Node) -> str:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise PatternUnsupported("the pattern's repetitions multiply too far")
        match node:
            case _Chars(options):
                return self._dice.pick(options)
            case _Concat(nodes):
                return "".join(self.draw(part) for part in nodes)
            case _Either(nodes):
                return self.draw(self._dice.pick(nodes))
            case _Repeat(inner, low, high):
                if low > self._room:
                    raise PatternUnsupported(f"{low} repetitions exceed the {self._room} characters allowed")
                most = low + self._spread if high is None else min(high, low + self._spread)
                return "".join(self.draw(inner) for _ in range(self._dice.between(low, most)))


def draw_match(pattern: str, dice: Dice, *, length_min: int = 0, length_max: int = 65_536, whole: bool = False) -> str:
    """A string of a length within the bounds in which `pattern` is found, as JSON Schema reads patterns.

    With `whole` the pattern must match from end to end. Raises PatternUnsupported when the pattern is outside the
    supported part or no attempt met the bounds.
    """
    node, compiled = _parsed(pattern)
    for attempt in range(_ATTEMPTS):
        spread = (4, 0, length_min, length_max, 1, 12, length_min // 2 + 1, length_min * 2)[attempt % 8]
        drawn = _Drawing(dice, min(spread, 4_096), length_max).draw(node)
        # A search, unlike a whole match, lets other text stand before or after.
        padding = "" if whole else "a" * (length_min - len(drawn))
        for text in (drawn + padding, padding + drawn):
            found = compiled.fullmatch(text) if whole else compiled.search(text)
            if found and length_min <= len(text) <= length_max:
                return text
    raise PatternUnsupported(f"pattern {pattern!r}: found no string of {length_min} to {length_max} characters")
