"""`execute`: agents write programs and tests, a sandbox runs all of them, authors repair what fails.

CodeT (arXiv:2207.10397) scores a program by the tests that it passes and by the programs that pass the same ones.
Agents that see no program write the tests (AgentCoder, arXiv:2312.13010). A repair that makes a program worse is
discarded. A check in the sandbox asks no engine.

A client's test is a gate: a program that fails one ranks below all that pass. An agent's test is an opinion: it may be
wrong, and counts by how many tests and programs agree.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationInfo, field_validator

from app.deliberation.answers import TALLY_CHARS_MAX
from app.deliberation.calls import Call, Check
from app.deliberation.choice.anonymity import nonce
from app.deliberation.decider import Conclusion, Strategy, StrategyDefinition
from app.deliberation.facts import Tally
from app.deliberation.outputs import Output, SandboxReport, TestCase, Tests
from app.deliberation.prompts import code as prompts
from app.deliberation.specification import Parameters, Specification
from app.deliberation.strategies.strategy_run import Candidate, Samples, Step, StrategyRun, lead, written

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


def suite(tests: Sequence[TestCase], written: Sequence[Sequence[TestCase]]) -> Suite:
    kept = {_identity(test): (0, test) for test in tests}
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
    return suite.demanded.union(*(program.passed for program in programs))


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
    for program in programs:
        if not program.unchecked(suite) and not program.report.fault:
            groups.setdefault((program.passed, program.report.not_run), []).append(program.candidate.author)
    known = sum(not program.unchecked(suite) for program in programs)
    scores: dict[str, float | None] = {}
    for program in programs:
        score: float | None = 0.0
        ran = len(suite.tests) - len(program.report.not_run)
        if not program.report.fault and not program.failed(suite):
            agreeing = len(groups.get((program.passed, program.report.not_run), ()))
            score = agreeing / known * len(program.passed) / ran if ran and not program.unchecked(suite) else None
        scores[program.candidate.author] = score
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), -len(group[0][0]), *map(sorted, group[0])))
    return Support(scores, {result: tuple(sorted(authors)) for result, authors in ordered})


def tally(suite: Suite, support: Support) -> tuple[Tally, ...]:
    return tuple(
        Tally(answer=_described(suite, *result), votes=len(authors), agents=authors)
        for result, authors in support.groups.items()
    )


def _described(suite: Suite, passed: frozenset[int], not_run: frozenset[int]) -> str:
    text = f"{len(passed)} of {len(suite.tests)} tests pass"
    failed = [test.name for place, test in enumerate(suite.tests) if place not in passed | not_run]
    text += f"; not: {', '.join(failed)}" if failed else ""
    text += f"; {len(not_run)} not run" if not_run else ""
    return text[:TALLY_CHARS_MAX]


FAILED_SHOWN_MAX = 8

_SOME: TypeAdapter[int] = TypeAdapter(Annotated[int, Field(ge=1)])


class ProgramParameters(Parameters):
    tests: tuple[TestCase, ...] = Field(
        default=(), max_length=32, strict=False, description="Tests that a program has to pass before anything else."
    )
    test_writers: int = Field(
        default=2,
        ge=0,
        le=32,
        description="How many agents write tests, without seeing a program; at most all, and 0 only with tests.",
    )
    timeout_s: int = Field(default=5, ge=1, le=60, description="Seconds that one test may run.")
    memory_mb: int = Field(default=256, ge=64, le=1_024, description="Megabytes of memory that a program may take.")

    @field_validator("test_writers")
    @classmethod
    def _with_a_test(cls, test_writers: int, info: ValidationInfo) -> int:
        # Validated here, so that the error is located at this field.
        return test_writers if info.data.get("tests") else _SOME.validate_python(test_writers)


def programs_written(run: StrategyRun, parameters: ProgramParameters) -> Step[list[Candidate]]:
    specification = run.specification
    mark = nonce(specification.seed, "given")
    samples = Samples(run, lambda place: prompts.program(specification, parameters.tests, place, mark), "program")
    yield from samples.ask(specification.size, stages_left=3 + 2 * specification.rounds)
    return samples.completed()


def tested(run: StrategyRun, parameters: ProgramParameters) -> Step[Suite]:
    specification = run.specification
    drawn = sorted(specification.agents, key=lambda agent: nonce(specification.seed, "tests", agent.agent_id))
    mark = nonce(specification.seed, "given")
    calls = [
        run.call(agent, prompts.tests(specification, parameters.tests, mark), Output(kind="tests"))
        for agent in drawn[: parameters.test_writers]
    ]
    by_writer: list[Sequence[TestCase]] = []
    if calls:
        stages_left = 2 + 2 * specification.rounds
        outcomes = yield from run.ask("test", 0, calls, quorum=1, stages_left=stages_left)
        by_writer = [answer.tests for _, answer in outcomes.answers(calls, Tests)]
        if outcomes.admitted and len(by_writer) < len(calls):
            run.degraded.append(f"{len(by_writer)} of {len(calls)} test writers answered")
    tests = suite(parameters.tests, by_writer)
    if not tests.tests:
        run.degraded.append("untested")
    return tests


def checked(
    run: StrategyRun, parameters: ProgramParameters, tests: Suite, programs: Sequence[Candidate], round: int
) -> Step[list[Checked]]:
    calls: list[Call] = []
    for program in programs:
        limits = parameters.model_dump(include={"timeout_s", "memory_mb"})
        check = Check(code=program.text, tests=tests.tests, writers=tests.writers, **limits)
        call = run.call(run.agent(program.author), (), Output(kind="report"))
        calls.append(call.model_copy(update={"max_tokens": 0, "check": check}))
    stages_left = 1 + 2 * (run.specification.rounds - round)
    outcomes = yield from run.ask("check", round, calls, quorum=len(calls), stages_left=stages_left)
    reports = {call.call_id: report for call, report in outcomes.answers(calls, SandboxReport)}
    checked_programs: list[Checked] = []
    for program, call in zip(programs, calls, strict=True):
        report = reports.get(call.call_id, NO_REPORT)
        checked_programs.append(Checked(program, report if len(report.outcomes) == len(tests.tests) else NO_REPORT))
    missing = sum(program.unchecked(tests) for program in checked_programs)
    run.report(missing, len(calls), f"programs of round {round} are unchecked")
    return checked_programs


def repaired(
    run: StrategyRun,
    tests: Suite,
    best: Mapping[str, Checked],
    latest: Mapping[str, Candidate],
    failing: Mapping[str, Sequence[int]],
    round: int,
) -> Step[list[Candidate]]:
    specification = run.specification
    calls: list[Call] = []
    for author, failed in failing.items():
        program = best[author]
        shown = [(tests.tests[place], program.report.outcomes[place].reason) for place in failed[:FAILED_SHOWN_MAX]]
        mark = nonce(specification.seed, "repair", round, author)
        messages = prompts.repair(specification, program.candidate.text, shown, program.report.fault, mark)
        calls.append(run.call(run.agent(author), messages, Output(kind="program"), tools=True))
    stages_left = 2 + 2 * (specification.rounds - round)
    outcomes = yield from run.ask("repair", round, calls, quorum=1, stages_left=stages_left)
    kept = [new for call in calls if (new := written(outcomes, call, latest[call.agent_id].version + 1))]
    if outcomes.admitted:
        run.report(len(calls) - len(kept), len(calls), f"repairs of round {round} failed")
    return kept


def _execute(specification: Specification) -> Strategy:
    run = StrategyRun(specification)
    parameters = ProgramParameters.model_validate(specification.parameters)
    drafts = yield from programs_written(run, parameters)
    tests = yield from tested(run, parameters)
    checked_programs = yield from checked(run, parameters, tests, drafts, round=0)
    latest = {draft.author: draft for draft in drafts}
    best = {program.candidate.author: program for program in checked_programs}
    settled: set[str] = set()
    for round in range(1, specification.rounds + 1):
        failing = _failing(tests, best, settled)
        if not failing:
            break
        versions = yield from repaired(run, tests, best, latest, failing, round)
        latest |= {version.author: version for version in versions}
        changed = [version for version in versions if version.text != best[version.author].candidate.text]
        # An author that returns its program unchanged is not asked again.
        settled |= {version.author for version in versions} - {version.author for version in changed}
        if not changed:
            break
        for program in (yield from checked(run, parameters, tests, changed, round)):
            author = program.candidate.author
            best[author] = min(best[author], program, key=lambda version: version.worth(tests))
    return _concluded(run, tests, list(best.values()))


def _failing(tests: Suite, best: Mapping[str, Checked], settled: Collection[str]) -> dict[str, list[int]]:
    """The tests that each author should repair its program for; an empty list where it cannot be run."""
    demanding = credible(tests, best.values())
    failing = {author: demanding - program.passed - program.report.not_run for author, program in best.items()}
    return {
        author: sorted(failing[author])
        for author, program in best.items()
        if author not in settled and not program.unchecked(tests) and (program.report.fault or failing[author])
    }


def _concluded(run: StrategyRun, tests: Suite, programs: Sequence[Checked]) -> Conclusion:
    backing = support(tests, programs)

    def place(program: Checked) -> tuple[object, ...]:
        mark = nonce(run.specification.seed, program.candidate.id)
        score = backing.scores[program.candidate.author] or 0.0
        return *program.hard(tests), -score, -len(program.passed), program.candidate.tokens, mark

    ranked = sorted(programs, key=place)
    standings = [(program.candidate, backing.scores[program.candidate.author]) for program in ranked]
    run.degraded.extend(_shortcomings(tests, ranked[0]))
    margin = lead(standings)
    return run.conclude(
        standings,
        margin=margin,
        tie=margin == 0 and ranked[0].hard(tests) == ranked[1].hard(tests),
        agreement=backing.share(ranked[0].candidate.author) if len(ranked) > 1 else None,
        tally=tally(tests, backing),
    )


def _shortcomings(tests: Suite, winner: Checked) -> list[str]:
    faulty, gates_failed, unchecked = winner.hard(tests)
    if faulty:
        return ["the best program cannot be run"]
    if gates_failed:
        return [f"the best program fails {gates_failed} of {tests.gates} given tests"]
    return ["the best program passes no test"] if tests.tests and not winner.passed and not unchecked else []


EXECUTE = StrategyDefinition(
    name="execute",
    version=4,
    summary="Write programs and tests; run all in a sandbox; repair what fails; rank by tests passed and agreement.",
    steps=("propose", "test", "check", "repair × R", "check × R"),
    formula="N + T + repairs ≤ N + T + N·R, T = min(test_writers, N)",
    source="arXiv:2207.10397, arXiv:2312.13010",
    tool_calls="N + N·R",
    run=_execute,
    parameters=ProgramParameters,
    rounds=True,
)
