"""`execute`: agents write programs and tests, a sandbox runs all of them, authors repair what fails.

CodeT (arXiv:2207.10397) scores a program by the tests that it passes and by the programs that pass the same ones.
Agents that see no program write the tests (AgentCoder, arXiv:2312.13010). A repair that makes a program worse is
discarded. A check in the sandbox asks no engine.
"""

from collections.abc import Collection, Mapping, Sequence

from app.deliberation.choice.anonymity import nonce
from app.deliberation.decider import Conclusion, Strategy, StrategyDefinition
from app.deliberation.specification import Specification
from app.deliberation.strategies.steps.evidence import Checked, Suite, credible, support, tally
from app.deliberation.strategies.steps.programs import ProgramParameters, checked, programs_written, repaired, tested
from app.deliberation.strategies.steps.strategy_run import StrategyRun, lead


def _execute(specification: Specification) -> Strategy:
    run = StrategyRun(specification)
    parameters = ProgramParameters.model_validate(specification.parameters)
    drafts = yield from programs_written(run, parameters)
    tests = yield from tested(run, parameters)
    found = yield from checked(run, parameters, tests, drafts, round=0)
    latest = {draft.author: draft for draft in drafts}
    best = {each.candidate.author: each for each in found}
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
        for each in (yield from checked(run, parameters, tests, changed, round)):
            author = each.candidate.author
            best[author] = min(best[author], each, key=lambda version: version.worth(tests))
    return _concluded(run, tests, list(best.values()))


def _failing(tests: Suite, best: Mapping[str, Checked], settled: Collection[str]) -> dict[str, list[int]]:
    """The tests that each author should repair its program for; an empty list where it cannot be run."""
    demanding = credible(tests, best.values())
    failing = {author: demanding - each.passed - each.report.not_run for author, each in best.items()}
    return {
        author: sorted(failing[author])
        for author, each in best.items()
        if author not in settled and not each.unchecked(tests) and (each.report.fault or failing[author])
    }


def _concluded(run: StrategyRun, tests: Suite, programs: Sequence[Checked]) -> Conclusion:
    found = support(tests, programs)

    def place(each: Checked) -> tuple[object, ...]:
        mark = nonce(run.specification.seed, each.candidate.id)
        score = found.scores[each.candidate.author] or 0.0
        return *each.hard(tests), -score, -len(each.passed), each.candidate.tokens, mark

    ranked = sorted(programs, key=place)
    standings = [(each.candidate, found.scores[each.candidate.author]) for each in ranked]
    run.degraded.extend(_shortcomings(tests, ranked[0]))
    margin = lead(standings)
    return run.conclude(
        standings,
        margin=margin,
        tie=margin == 0 and ranked[0].hard(tests) == ranked[1].hard(tests),
        agreement=found.share(ranked[0].candidate.author) if len(ranked) > 1 else None,
        tally=tally(tests, found),
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
    run=_execute,
    parameters=ProgramParameters,
    rounds=True,
)
