"""Steps of strategies that run code: write programs, write tests, check programs in a sandbox, repair them."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationInfo, field_validator

from app.deliberation.calls import Call, Check
from app.deliberation.choice.anonymity import nonce
from app.deliberation.outputs import Output, SandboxReport, TestCase, Tests
from app.deliberation.prompts import code as prompts
from app.deliberation.specification import Parameters
from app.deliberation.strategies.steps.evidence import NO_REPORT, Checked, Suite, suite
from app.deliberation.strategies.steps.strategy_run import Candidate, Samples, Step, StrategyRun, written

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
    found: list[Sequence[TestCase]] = []
    if calls:
        stages_left = 2 + 2 * specification.rounds
        outcomes = yield from run.ask("test", 0, calls, quorum=1, stages_left=stages_left)
        found = [answer.tests for _, answer in outcomes.answers(calls, Tests)]
        if outcomes.admitted and len(found) < len(calls):
            run.degraded.append(f"{len(found)} of {len(calls)} test writers answered")
    tests = suite(parameters.tests, found)
    if not tests.tests:
        run.degraded.append("untested")
    return tests


def checked(
    run: StrategyRun, parameters: ProgramParameters, tests: Suite, programs: Sequence[Candidate], round: int
) -> Step[list[Checked]]:
    calls: list[Call] = []
    for each in programs:
        limits = parameters.model_dump(include={"timeout_s", "memory_mb"})
        check = Check(code=each.text, tests=tests.tests, writers=tests.writers, **limits)
        call = run.call(run.agent(each.author), (), Output(kind="report"))
        calls.append(call.model_copy(update={"max_tokens": 0, "check": check}))
    stages_left = 1 + 2 * (run.specification.rounds - round)
    outcomes = yield from run.ask("check", round, calls, quorum=len(calls), stages_left=stages_left)
    reports = {call.call_id: report for call, report in outcomes.answers(calls, SandboxReport)}
    found: list[Checked] = []
    for each, call in zip(programs, calls, strict=True):
        report = reports.get(call.call_id, NO_REPORT)
        found.append(Checked(each, report if len(report.outcomes) == len(tests.tests) else NO_REPORT))
    missing = sum(each.unchecked(tests) for each in found)
    run.report(missing, len(calls), f"programs of round {round} are unchecked")
    return found


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
        each = best[author]
        shown = [(tests.tests[place], each.report.outcomes[place].reason) for place in failed[:FAILED_SHOWN_MAX]]
        mark = nonce(specification.seed, "repair", round, author)
        messages = prompts.repair(specification, each.candidate.text, shown, each.report.fault, mark)
        calls.append(run.call(run.agent(author), messages, Output(kind="program")))
    stages_left = 2 + 2 * (specification.rounds - round)
    outcomes = yield from run.ask("repair", round, calls, quorum=1, stages_left=stages_left)
    kept = [new for call in calls if (new := written(outcomes, call, latest[call.agent_id].version + 1))]
    if outcomes.admitted:
        run.report(len(calls) - len(kept), len(calls), f"repairs of round {round} failed")
    return kept
