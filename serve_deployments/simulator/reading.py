"""What a prompt asks for, as far as the simulator reads it: the task, the persona, the candidates, the own text.

It reads what the council's prompts have in common: a section that begins with a line `# Task`, text of others between
two lines that carry the same nonce, a line before it that names it (`Candidate B:`), and the persona near the end.
Nothing has to be there; a bare question is read as the task.
"""

import builtins
import keyword
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

from serve_deployments.simulator.voices import Voice
from serve_deployments.simulator.voices_operations import NEUTRAL, VOICES

_TASK = re.compile(r"^#+[ \t]*Task[ \t]*\n(.*?)(?=^#{1,2} |\Z)", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(
    r"^(?P<heading>[^\n]*)\n<<<\s*[\w-]+[ \t]+(?P<nonce>[\w-]{6,})(?:>>>)?[ \t]*\n"
    r"(?P<text>.*?)\n?^[^\n]*(?P=nonce)[^\n]*>>>",
    re.MULTILINE | re.DOTALL,
)
_LABEL = re.compile(r"\b(?:candidate|proposal|answer|option)\s+([A-Z]{1,2})\b\W*$", re.IGNORECASE)
_OWN = re.compile(r"\b(?:your|own)\b", re.IGNORECASE)
_TESTS = re.compile(r"\btests\b", re.IGNORECASE)
_ISSUES = re.compile(r"\bissues?\b|\bcritiques?\b", re.IGNORECASE)
_NUMBERED = re.compile(r"^\s*(\d+)[.)]\s+(.*)$", re.MULTILINE)
_DEFINED = re.compile(r"\bdef\s+([A-Za-z_]\w*)\s*\(")
_CALLED = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\(")
_RUBRIC_LINE = re.compile(r"^- ([a-z0-9_-]{1,64})\b[^\n]*:", re.MULTILINE)
_RUBRIC = re.compile(r"^#+[ \t]*Rubric[ \t]*\n(.*?)(?=^#{1,2} |\Z)", re.MULTILINE | re.DOTALL)
_FIX = re.compile(r"\bFix: *(.+)$")
_PIECE = re.compile(r"[^\W_][\w-]*|[^\w\s]")
# What stands before a thing, and what stands before an action or a quality: a coarse grammar, enough to tell
# “a rate limiter” from “must survive”.
_BEFORE_THINGS = frozenset(
    "a an the of for between with in into to from on by its their each every per our your any no and or its".split()
)
_BEFORE_OTHERS = frozenset(
    "be is are was were must can could should shall will would may might not that which who it they we you i".split()
)
_STOP_WORDS = frozenset(
    """about above after again against all also always among another answer answers as at because been before being
    below best better both build but change compare consider create define describe design develop do does done down
    either else example explain find first following found function functions give given good have here how if implement
    just keep know last like list look make makes many more most much need needs never new note once one only other over
    part please program propose provide same show simple since so some such take tell than then there these thing this
    those through two under until up use used user users using very want well what when where whether while why within
    without work write""".split()
)
_ENTRY_POINT = "solve"
_FALLBACK_TERMS = ("input", "outcome", "limit")
_SUBJECT_CHARS = 72
_TERMS_MAX = 8
_TERM_CHARS_MAX = 32
_TERM_WORDS_MAX = 3


@dataclass(frozen=True, slots=True)
class Subject:
    """A task in a few words, and at least three things that it is about (“rate limiter”, “restarts”)."""

    title: str
    terms: tuple[str, ...]


@lru_cache(maxsize=1_024)
def _subject(task: str) -> Subject:
    line = next((line for line in task.splitlines() if line.strip(" #*`>-")), "the question").strip(" #*`>-")
    sentence = re.split(r"(?<=[.?!;:])\s", line, maxsplit=1)[0].rstrip(".;:! ")
    if len(sentence) > _SUBJECT_CHARS:
        sentence = sentence[:_SUBJECT_CHARS].rsplit(" ", 1)[0].rstrip(",;: ") + " …"
    terms = list(dict.fromkeys(_terms(task[:4_000])))
    terms += [term for term in _FALLBACK_TERMS if term not in terms]
    return Subject(title=sentence or "the question", terms=tuple(terms[: min(_TERMS_MAX, max(3, len(terms) - 3))]))


def _terms(task: str) -> list[str]:
    """Runs of words that name things, in order; the more certain ones (after an article or the like) first."""
    certain: list[str] = []
    others: list[str] = []
    run: list[str] = []
    before = ""
    opener = "."
    for piece in [*_PIECE.findall(task), "."]:
        lowered = piece.lower()
        if piece[0].isalnum() and not any(lowered in words for words in (_BEFORE_THINGS, _BEFORE_OTHERS, _STOP_WORDS)):
            if not run:
                opener = before
            run.append(piece)
        elif run:
            term = " ".join(run if opener not in _BEFORE_OTHERS else run[1:])
            words = term.count(" ") + 1
            if 3 <= len(term) <= _TERM_CHARS_MAX and words <= _TERM_WORDS_MAX and not term.isdigit():
                (certain if opener in _BEFORE_THINGS else others).append(_lowered(term))
            run = []
        before = lowered
    return sorted(certain, key=_is_plural) + sorted(others, key=_is_plural)


def _is_plural(term: str) -> bool:
    # The sentences are written for one thing; several come last.
    return term.endswith("s") and not term.endswith(("ss", "us", "is"))


def _lowered(term: str) -> str:
    return " ".join(word if not word[1:].islower() else word.lower() for word in term.split(" "))


class Reading:
    """One conversation's text, read on demand."""

    def __init__(self, text: str, last_user_text: str) -> None:
        self._text = text
        self._last = last_user_text

    @cached_property
    def task(self) -> str:
        """The section `# Task`; the last user text when there is none."""
        found = _TASK.search(self._text)
        return (found.group(1).strip() if found else "") or self._last

    @cached_property
    def subject(self) -> Subject:
        """The task's title and terms; the last user text when no section `# Task` is there."""
        return _subject(self.task[:4_000])

    @cached_property
    def voice(self) -> Voice:
        """Whose persona stands last in the prompt, for personas come last there; the neutral voice without any."""
        lowered = self._text.lower()
        place, voice = max(
            ((max((lowered.rfind(cue) for cue in voice.cues), default=-1), voice) for voice in VOICES),
            key=lambda found: found[0],
        )
        return voice if place >= 0 else NEUTRAL

    @cached_property
    def _fenced(self) -> list[tuple[str, str]]:
        return [(found["heading"].strip(), found["text"]) for found in _FENCED.finditer(self._text)]

    @cached_property
    def candidates(self) -> dict[str, str]:
        """The fenced texts that are shown under a letter, by that letter."""
        labelled = ((_LABEL.search(heading), text) for heading, text in self._fenced)
        return {label.group(1).upper(): text for label, text in labelled if label is not None}

    @cached_property
    def entry_point(self) -> str:
        """The first function that the task, or else a test that it gives, names; `solve` when there is none."""
        given = "\n".join(text for heading, text in self._fenced if _TESTS.search(heading))
        names = [*_DEFINED.findall(self.task), *_CALLED.findall(self.task), *_CALLED.findall(given)]
        return next(
            (name for name in names if not keyword.iskeyword(name) and not hasattr(builtins, name)), _ENTRY_POINT
        )

    @cached_property
    def own(self) -> str:
        """The author's own text, when the prompt shows it; else ""."""
        return next((text for heading, text in self._fenced if _OWN.search(heading)), "")

    @cached_property
    def issues(self) -> list[str]:
        """The issues that were raised against the own text, without their numbers."""
        texts = [text for heading, text in self._fenced if _ISSUES.search(heading) and not _OWN.search(heading)]
        return [found.group(2) for text in texts for found in _NUMBERED.finditer(text)]

    @cached_property
    def fixes(self) -> list[str]:
        """What each issue proposes, in the order of `issues`; "" where it proposes nothing."""
        return [found.group(1) if (found := _FIX.search(issue)) else "" for issue in self.issues]

    @cached_property
    def criteria(self) -> list[str]:
        """The rubric's criterion ids, in its order."""
        found = _RUBRIC.search(self._text)
        return _RUBRIC_LINE.findall(found.group(1)) if found else []
