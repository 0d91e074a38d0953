"""Finds the JSON objects in a text, and the spans of a model's reasoning, each in linear time."""

import re
from bisect import bisect_right
from typing import Literal, NamedTuple


class Span(NamedTuple):
    start: int
    end: int


_STRING = r'"(?:[^"\\]++|\\.)*+"'
_TOKEN = re.compile(
    rf"[ \t\r\n]*+(?:(?P<mark>[{{}}\[\],:])|(?P<string>{_STRING})|-?[0-9][0-9.eE+-]*+|true|false|null|NaN|-?Infinity)",
    re.DOTALL,
)
# An object with a member begins so. Prose and formulas are full of other braces.
_BEGINNING = re.compile(rf"\{{(?=[ \t\r\n]*+{_STRING}[ \t\r\n]*+:)", re.DOTALL)
_NAME = r"(?:\w{1,20}:)?(?:think(?:ing)?|thoughts?|reasoning)"
_REASONING_TAG = re.compile(
    rf"(?P<end><\s?/\s?{_NAME}\s?>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>|<\|END_THINKING\|>"
    r"|<\|channel\|>final(?:\s?<\|constrain\|>\s?json)?<\|message\|>)"
    rf"|<{_NAME}(?:\s[^<>]{{0,100}})?>|\[THINK\]|◁think▷|<\|begin_of_thought\|>|<\|START_THINKING\|>"
    r"|<\|channel\|>(?:analysis|commentary)<\|message\|>",
    re.IGNORECASE,
)
_UNFIT = re.compile(rf"(?P<string>{_STRING})|,(?=\s*+[}}\]])", re.DOTALL)
_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')

_Expected = Literal["value", "value or ]", "name or }", ":", ", or the end"]


def objects(text: str) -> list[Span]:
    """The objects of a text in the order of their ends, without those within another one. Empty ones may be left out.

    A run reads tokens from a beginning until its object ends or a token is unfit. It decides every beginning that it
    reads as a token; another run from one of them would fail alike. A later run reads outside of strings what an
    earlier run read inside of one. So at most two runs read any place.
    """
    found: list[Span] = []
    decided: set[int] = set()
    complete_until = 0
    for beginning in _BEGINNING.finditer(text):
        start = beginning.start()
        if start >= complete_until and start not in decided:
            closed = _run(text, start, decided)
            if closed and closed[-1].start == start:
                complete_until = closed[-1].end
            found += closed
    return sorted(found, key=lambda span: (span.end, -span.start))


def _run(text: str, place: int, decided: set[int]) -> list[Span]:
    """The outermost objects that end in a run of tokens from `place`. Commas before an end are let pass."""
    closed: list[Span] = []
    open_at: list[int] = []
    expected: _Expected = "value"
    while (token := _TOKEN.match(text, place)) is not None:
        place = token.end()
        mark = token["mark"] or ""
        if expected in ("value", "value or ]") and mark in ("{", "[", ""):
            if mark == "{":
                decided.add(place - 1)
            if mark:
                open_at.append(place - 1 if mark == "{" else -1)
            expected = "name or }" if mark == "{" else "value or ]" if mark else ", or the end"
        elif expected == "name or }" and token["string"] is not None:
            expected = ":"
        elif expected == ":" and mark == ":":
            expected = "value"
        elif expected == ", or the end" and mark == ",":
            expected = "name or }" if open_at[-1] >= 0 else "value or ]"
        elif expected in (", or the end", "value or ]", "name or }") and mark == ("}" if open_at[-1] >= 0 else "]"):
            start, expected = open_at.pop(), ", or the end"
            if start >= 0:
                while closed and closed[-1].start > start:
                    closed.pop()
                closed.append(Span(start, place))
            if not open_at:
                break
        else:
            break
    return closed


def mended(document: str) -> str:
    r"""A document without commas before an end, and with unknown escapes (`\alpha`) as a backslash and the rest."""
    return _UNFIT.sub(
        lambda part: _ESCAPE.sub(lambda escape: escape[0] if escape[1] else r"\\", part[0]) if part["string"] else "",
        document,
    )


class Reasoning(NamedTuple):
    """The spans of reasoning in a text. The last one is `unclosed` where its end is missing."""

    spans: list[Span]
    unclosed: bool

    def around(self, span: Span) -> int | None:
        """The number of the span of reasoning that holds another span."""
        number = bisect_right(self.spans, span.start, key=lambda each: each.start) - 1
        return number if number >= 0 and span.end <= self.spans[number].end else None


def reasoning(text: str) -> Reasoning:
    """Returns the spans between tags such as `<think>` and `</think>`; without the first, from the text's beginning."""
    spans: list[Span] = []
    began: int | None = None
    for tag in _REASONING_TAG.finditer(text):
        if tag["end"]:
            spans.append(Span((spans[-1].end if spans else 0) if began is None else began, tag.end()))
            began = None
        elif began is None:
            began = tag.start()
    if began is not None:
        spans.append(Span(began, len(text)))
    return Reasoning(spans, unclosed=began is not None)
