"""Evaluates programs by the tests they pass, and finds the best supported one (CodeT, arXiv:2207.10397).

A client's test is a gate: a program that fails one ranks below all that pass. An agent's test is an opinion: it may be
wrong, and counts by how many tests and programs agree.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from app.deliberation.answers import TALLY_CHARS_MAX
from app.deliberation.facts import Tally
from app.deliberation.outputs import SandboxReport, TestCase
from app.deliberation.strategies.steps.strategy_run import Candidate

WRITTEN_MAX = 32
NO_REPORT = SandboxReport(outcomes=())


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of one deliberation, the first `gates` of them given by the client.

    `writers` holds each test's writer by number, 0 for the client.
    """

    tests: tuple[TestCase, ...]
    gates: int
    writers: tuple[int, ...] = ()

    @property
    def demanded(self) -> frozenset[int]:
        return frozenset(range(self.gates))


def suite(given: Sequence[TestCase], written: Sequence[Sequence[TestCase]]) -> Suite:
    """The given tests and the writers' in turn, so that the bound cuts all writers alike; no test is repeated."""
    kept = {_identity(test): (0, test) for test in given}
    gates = len(kept)
    for turn in zip_longest(*written):
        for writer, test in enumerate(turn, start=1):
            if test is not None and len(kept) < gates + WRITTEN_MAX:
                kept.setdefault(_identity(test), (writer, test))
    return Suite(tuple(test for _, test in kept.values()), gates, tuple(writer for writer, _ in kept.values()))


def _identity(test: TestCase) -> str:
    return json.dumps(test.data, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Checked:
    """A program and the report on it: NO_REPORT when it could not be checked."""

    candidate: Candidate
    report: SandboxReport

    @property
    def passed(self) -> frozenset[int]:
        return frozenset(place for place, outcome in enumerate(self.report.outcomes) if outcome.passed)

    def failed(self, suite: Suite) -> frozenset[int]:
        return frozenset() if self.report is NO_REPORT else suite.demanded - self.passed - self.report.not_run

    def unchecked(self, suite: Suite) -> bool:
        """Whether a gate was not run, or no test was: then it is unknown whether the program passes."""
        if self.report is NO_REPORT:
            return True
        nothing_ran = bool(suite.tests) and len(self.report.not_run) == len(suite.tests)
        return not self.report.fault and (nothing_ran or bool(suite.demanded & self.report.not_run))

    def hard(self, suite: Suite) -> tuple[bool, int, bool]:
        """The sort key before any opinion, best first: at fault, the number of failed gates, unchecked."""
        return bool(self.report.fault), len(self.failed(suite)), self.unchecked(suite)

    def worth(self, suite: Suite) -> tuple[bool, bool, int, bool, int]:
        """The sort key of one author's versions, best first: checked, hard checks, then the number of passed tests."""
        return self.unchecked(suite), *self.hard(suite), -len(self.passed)


def credible(suite: Suite, programs: Collection[Checked]) -> frozenset[int]:
    """Tests worth a repair: gates, and tests that some program passes; of a single program, all tests.

    A written test that each of several programs fails is as likely to be wrong as they are.
    """
    if len(programs) == 1:
        return frozenset(range(len(suite.tests)))
    return suite.demanded.union(*(each.passed for each in programs))


# The places of the tests that passed, and of those not run.
SuiteResult = tuple[frozenset[int], frozenset[int]]


@dataclass(frozen=True, slots=True)
class Support:
    """The support of each author's program: None where the program was not checked or there are no tests."""

    scores: Mapping[str, float | None]
    groups: Mapping[SuiteResult, tuple[str, ...]]

    def share(self, author: str) -> float | None:
        members = [group for group in self.groups.values() if author in group]
        return len(members[0]) / sum(map(len, self.groups.values())) if members else None


def support(suite: Suite, programs: Sequence[Checked]) -> Support:
    """CodeT's score, in [0, 1]: the share of programs that pass the same tests, times the share of tests passed.

    `programs` are one per author. A program that cannot be run or fails a gate scores 0. One that was not run against
    every gate has no score. Tests that were not run do not count.
    """
    groups: dict[SuiteResult, list[str]] = {}
    for each in programs:
        if not each.unchecked(suite) and not each.report.fault:
            groups.setdefault((each.passed, each.report.not_run), []).append(each.candidate.author)
    known = sum(not each.unchecked(suite) for each in programs)
    scores: dict[str, float | None] = {}
    for each in programs:
        score: float | None = 0.0
        ran = len(suite.tests) - len(each.report.not_run)
        if not each.report.fault and not each.failed(suite):
            agreeing = len(groups.get((each.passed, each.report.not_run), ()))
            score = agreeing / known * len(each.passed) / ran if ran and not each.unchecked(suite) else None
        scores[each.candidate.author] = score
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), -len(group[0][0]), *map(sorted, group[0])))
    return Support(scores, {result: tuple(sorted(authors)) for result, authors in ordered})


def tally(suite: Suite, found: Support) -> tuple[Tally, ...]:
    return tuple(
        Tally(answer=_described(suite, *result), votes=len(authors), agents=authors)
        for result, authors in found.groups.items()
    )


def _described(suite: Suite, passed: frozenset[int], not_run: frozenset[int]) -> str:
    text = f"{len(passed)} of {len(suite.tests)} tests pass"
    failed = [test.name for place, test in enumerate(suite.tests) if place not in passed | not_run]
    text += f"; not: {', '.join(failed)}" if failed else ""
    text += f"; {len(not_run)} not run" if not_run else ""
    return text[:TALLY_CHARS_MAX]
