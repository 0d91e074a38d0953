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
# TeX's commands that begin like an escape. Those of the first list leave half a word behind a line break or tab.
_TEX_ALONE = (
    "nLeftarrow|nLeftrightarrow|nRightarrow|nabla|natural|nexists|nleftarrow|nleftrightarrow|notin|nrightarrow|rVert|"
    "raisebox|rangle|rbrace|rbrack|rceil|ref|renewcommand|rfloor|rho|right|rightarrow|rightarrows|rightharpoonup|"
    "rightleftharpoons|rm|root|rotatebox|rtimes|rule|rvert|textbf|textit|textrm|textsc|textsf|texttt|tfrac|therefore|"
    "theta|thickapprox|thicksim|thinspace|tilde|times|triangle|triangleleft|triangleq|triangleright"
)
_TEX_WORDS = (
    "ncong|ne|nearrow|neg|neq|newcommand|newenvironment|newline|newpage|newtheorem|ngeq|ngtr|ni|nicefrac|nint|nleq|"
    "nless|nmid|nobreak|nocite|noindent|nolimits|nonumber|normalfont|normalsize|not|nparallel|nprec|nsim|nsubseteq|"
    "nsucc|nsupseteq|nu|num|nvdash|nwarrow|tableofcontents|tag|tan|tanh|tau|tbinom|text|textcolor|textstyle|"
    "textwidth|thanks|tiny|title|to|today|top|toprule|twoheadrightarrow"
)
_BACKSLASH = re.compile(
    rf"\\(?:(?P<pair>\\)|(?P<tex>(?:{_TEX_ALONE})(?![A-Za-z]))|(?P<word>(?:{_TEX_WORDS})(?![A-Za-z]))"
    r'|(?P<unknown>[^"\\/bfnrtu]|u(?![0-9a-fA-F]{4})|[bf](?=[A-Za-z]))|(?P<layout>[nrt])|(?P<page>[bf])|.)',
    re.DOTALL,
)
_FOLDER = r"[\w~$%@+&()-]+(?:[ .][\w~$%@+&()-]+)*+"
_DRIVE = re.compile(rf"(?<![A-Za-z])[C-HX-Z]:(?:\\(?![nrt]\\){_FOLDER})++")
# The end of a line, and the beginning of the next line.
_LINE_ENDS, _LINE_BEGINNING = ".:;,!?)}]>\"'`", re.compile(r"[^a-z_\\]|\\[nrt](?![a-z])")
_AFTER_TAB = re.compile(r'[ "]|\\[nrt]')

_Expected = Literal["value", "value or ]", "name or }", ":", ", or the end"]


def objects(text: str) -> list[Span]:
    """The objects of a text in the order of their ends, but for objects within objects. Empty ones may be left out.

    A run reads tokens from a beginning until its object ends or a token is unfit. The run decides every beginning that
    it reads as a token: a run from such a beginning would fail alike. A later run reads outside of strings what an
    earlier run read inside of one. So at most two runs read any place.
    """
    spans: list[Span] = []
    decided: set[int] = set()
    complete_until = 0
    for beginning in _BEGINNING.finditer(text):
        start = beginning.start()
        if start >= complete_until and start not in decided:
            closed = _run(text, start, decided)
            if closed and closed[-1].start == start:
                complete_until = closed[-1].end
            spans += closed
    return sorted(spans, key=lambda span: (span.end, -span.start))


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


def has_plain_backslashes(document: str) -> bool:
    r"""Whether backslashes in its strings stand for themselves: JSON lacks the escape (`\alpha`), or nobody means it.

    Nobody means a backspace or form feed before a letter (`\frac`), nor half of a command of TeX (`\theta`).
    """
    return "\\" in document and any(
        escape["unknown"] or escape["tex"]
        for part in _UNFIT.finditer(document)
        if part["string"]
        for escape in _BACKSLASH.finditer(part["string"])
    )


def mended(document: str) -> str:
    r"""A document without commas before an end, and with backslashes doubled that stand for themselves.

    With one such backslash all are meant so, but for escapes that lay out a text. In a string, `\n` at a line's end is
    a line break, and `\t` beside a line break or a blank is a tab.
    """
    plain = has_plain_backslashes(document)

    def fit(part: re.Match[str]) -> str:
        string = part["string"] or ""
        return _with_plain_backslashes(string) if plain and "\\" in string else string

    return _UNFIT.sub(fit, document)


def _with_plain_backslashes(string: str) -> str:
    in_paths = {at for path in _DRIVE.finditer(string) for at in range(*path.span()) if string[at] == "\\"}
    escapes = [*_BACKSLASH.finditer(string)]
    laying_out: set[int] = set()
    previous_end = -1
    for escape in escapes:
        begin, end = escape.start(), escape.start() + 2
        before, follows = string[begin - 1], begin == previous_end
        if begin in in_paths:
            continue
        if escape["word"] is not None:
            lays_out = follows or (before in ".:;" and string[begin + 1] == "n")
        elif escape["layout"] == "t":
            lays_out = follows or _AFTER_TAB.match(string, end) is not None
        elif escape["layout"] is not None:
            ended = begin > 1 and before in _LINE_ENDS
            lays_out = follows or ended or _LINE_BEGINNING.match(string, end) is not None
        else:
            continue
        if lays_out:
            laying_out.add(begin)
            previous_end = end
    meant = {string[begin + 1] for begin in laying_out}
    meant |= {"r"} if "n" in meant else set()

    def fit(escape: re.Match[str]) -> str:
        begin = escape.start()
        if escape["layout"] is not None:
            stands = begin in in_paths or escape["layout"] not in meant
        elif escape["word"] is not None:
            stands = begin not in laying_out
        else:
            stands = bool(escape["unknown"] or escape["tex"] or escape["page"])
        return rf"\{escape[0]}" if stands else escape[0]

    return _BACKSLASH.sub(fit, string)


class Reasoning(NamedTuple):
    """The spans of reasoning in a text. The last one is `unclosed` where its end is missing."""

    spans: list[Span]
    unclosed: bool

    def around(self, span: Span) -> int | None:
        """The number of the span of reasoning that holds another span."""
        number = bisect_right(self.spans, span.start, key=lambda thought: thought.start) - 1
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
