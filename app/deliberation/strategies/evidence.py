"""What running programs against tests says of them, and which is best supported (CodeT, arXiv:2207.10397).

A test that a client gave is a gate: a program that fails one ranks below all that pass them, whatever else speaks for
it. A test that an agent wrote is an opinion: it may be wrong, and counts by how many tests and programs agree.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from app.deliberation.facts import Tally
from app.deliberation.outputs import CheckOutcome, Report, TestCase
from app.deliberation.strategies.steps import Candidate

WRITTEN_MAX = 32
_TALLY_CHARS_MAX = 500


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of one deliberation, the first `gates` of them given by the client."""

    tests: tuple[TestCase, ...]
    gates: int


def suite(given: Sequence[TestCase], written: Sequence[Sequence[TestCase]]) -> Suite:
    """The given tests and those of the writers in turn, so that a bound cuts all alike; no source stands twice."""
    kept = {test.code: test for test in given}
    gates = len(kept)
    for test in chain.from_iterable(zip_longest(*written)):
        if test is not None and len(kept) < gates + WRITTEN_MAX:
            kept.setdefault(test.code, test)
    return Suite(tuple(kept.values()), gates)


@dataclass(frozen=True, slots=True)
class Checked:
    """A program and the report on it; None when it could not be checked."""

    candidate: Candidate
    report: Report | None

    @property
    def outcomes(self) -> tuple[CheckOutcome, ...]:
        """What each test brought; empty when the program was not checked."""
        return self.report.outcomes if self.report else ()

    @property
    def fault(self) -> str:
        """Why no test could be run; empty when there is no such reason."""
        return self.report.fault if self.report else ""

    @property
    def passed(self) -> frozenset[int]:
        """The tests that it passes, by place."""
        return frozenset(place for place, outcome in enumerate(self.outcomes) if outcome.passed)

    def hard(self, suite: Suite) -> tuple[bool, bool, int]:
        """What decides before any opinion, best first: unchecked, at fault, how many gates it fails."""
        return self.report is None, bool(self.fault), len(set(range(suite.gates)) - self.passed)

    def worth(self, suite: Suite) -> tuple[bool, bool, int, int]:
        """An order of one author's versions, best first: hard checks, then the number of tests that it fails."""
        return *self.hard(suite), -len(self.passed)


def credible(suite: Suite, programs: Collection[Checked]) -> frozenset[int]:
    """Tests that a program should be mended for: gates, and what some program passes, or all that one alone has.

    A written test that every one of several programs fails is as likely to be wrong as they are.
    """
    if len(programs) == 1:
        return frozenset(range(len(suite.tests)))
    return frozenset(range(suite.gates)).union(*(each.passed for each in programs))


@dataclass(frozen=True, slots=True)
class Support:
    """How well each author's program is supported, by author: None where nothing was checked or nothing tests."""

    scores: Mapping[str, float | None]
    groups: Mapping[frozenset[int], tuple[str, ...]]

    def share(self, author: str) -> float | None:
        """The part of the programs that could be run which pass the same tests as this author's; None without any."""
        members = [group for group in self.groups.values() if author in group]
        return len(members[0]) / sum(map(len, self.groups.values())) if members else None


def support(suite: Suite, programs: Sequence[Checked]) -> Support:
    """CodeT's score, in [0, 1]: the share of programs that pass the same tests, times the share of tests passed.

    `programs` are one per author. What cannot be run or fails a gate scores 0, however many agree with it.
    """
    groups: dict[frozenset[int], list[str]] = {}
    for each in programs:
        if each.report is not None and not each.fault:
            groups.setdefault(each.passed, []).append(each.candidate.author)
    known = sum(each.report is not None for each in programs)
    scores: dict[str, float | None] = {}
    for each in programs:
        score: float | None = 0.0
        if each.report is None or (not suite.tests and not each.fault):
            score = None
        elif not any(each.hard(suite)):
            score = len(groups[each.passed]) / known * len(each.passed) / len(suite.tests)
        scores[each.candidate.author] = score
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), -len(group[0]), sorted(group[0])))
    return Support(scores, {passed: tuple(sorted(authors)) for passed, authors in ordered})


def tally(suite: Suite, found: Support) -> tuple[Tally, ...]:
    """The groups of programs that pass the same tests, the largest first."""
    return tuple(
        Tally(answer=_described(suite, passed), votes=len(authors), agents=authors)
        for passed, authors in found.groups.items()
    )


def _described(suite: Suite, passed: frozenset[int]) -> str:
    text = f"{len(passed)} of {len(suite.tests)} tests pass"
    failed = [test.name for place, test in enumerate(suite.tests) if place not in passed]
    return (f"{text}; not: {', '.join(failed)}" if failed else text)[:_TALLY_CHARS_MAX]
