"""Experiments on choosing among drafts: `single`, `best_of_n`, `council`, `auto` and `execute`."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from app.deliberation.outputs import Answer, Revision, parse_output
from benchmarks.quality.closed_forms import (
    escalated,
    expected,
    kept_and_repaired,
    selected_by_independent_reviewers,
    selected_of_versions,
    tested_by_two,
)
from benchmarks.quality.experiments import Experiment, Figure, distribution_of, share, short
from benchmarks.quality.simulated_agents import RIGHT, AgentModel
from benchmarks.quality.trials import Setting, Trial

# The number of drafts that `auto` requests before it decides.
_DRAFTS_FIRST = 3
_GIVEN = {"tests": [{"name": "result", "call": "solve", "expected": RIGHT}], "test_writers": 0}


def selections() -> Iterator[Experiment]:
    """One answer, the best of several, and councils that revise."""
    yield Experiment(about="p=.7", setting=Setting(strategy="single", agents=3), right=0.7, calls=1)
    yield from _best_of_n()
    yield from _councils()
    yield from _autos()


def _best_of_n() -> Iterator[Experiment]:
    for agents, correlation in ((3, 0.0), (5, 0.0), (5, 0.44)):
        model = AgentModel(accuracy=0.7, correlation=correlation, judge=0.8)
        setting = Setting(strategy="best_of_n", agents=agents, model=model)
        yield Experiment(
            about=f"N={agents} p=.7 ρ={short(correlation)} q=.8, reviewers alone",
            setting=setting,
            right=expected(distribution_of(setting), selected_by_independent_reviewers(agents, model.judge)),
            calls=2 * agents,
        )
    model = AgentModel(accuracy=0.7, judge=0.8, one_jury=True)
    setting = Setting(strategy="best_of_n", agents=5, model=model)
    right = expected(distribution_of(setting), selected_of_versions(5, kept=1.0, repaired=0.0, judge=model.judge))
    yield Experiment(about="N=5 p=.7 q=.8, reviewers of one mind", setting=setting, right=right, calls=10)


def _councils() -> Iterator[Experiment]:
    # Critics detect more faults in wrong texts, and revisions repair more than they harm.
    useful = AgentModel(accuracy=0.6, fix=0.4, harm=0.2, detect=0.9, alarm=0.3, judge=0.8, one_jury=True)
    yield _council("p=.6 u=.4 h=.2, critics .9/.3", useful, 1)
    yield _council("p=.6 u=.4 h=.2, two critics .9/.3", useful, 1, critics=2)
    # Critics always find a fault, so that every agent revises in every round.
    strict = AgentModel(accuracy=0.6, fix=0.4, harm=0.2, judge=0.8, one_jury=True)
    yield _council("p=.6 u=.4 h=.2, critics never content", strict, 2)
    # (1-p)u = ph: revisions repair as much as they harm.
    neutral = AgentModel(accuracy=0.7, fix=0.28, harm=0.12, judge=0.8, one_jury=True)
    yield _council("p=.7 u=.28 h=.12, neutral", neutral, 2)


def _council(about: str, model: AgentModel, rounds: int, critics: int = 1) -> Experiment:
    """Three agents. If critics may accept, there is one round, so that no early stop shortens it."""
    agents = 3
    setting = Setting(strategy="council", agents=agents, model=model, rounds=rounds, parameters={"critics": critics})
    # One critic is enough to demand a revision.
    detect, alarm = (1 - (1 - rate) ** critics for rate in (model.detect, model.alarm))
    kept, repaired = kept_and_repaired(detect * model.fix, alarm * model.harm, rounds)
    revised = model.accuracy * alarm + (1 - model.accuracy) * detect
    drift = model.accuracy * kept + (1 - model.accuracy) * repaired

    def last_versions(found: Sequence[Trial]) -> Iterable[Figure]:
        yield share("last version right", [right for trial in found for right in last_right(trial)], drift)

    return Experiment(
        about=f"N={agents} R={rounds} {about}",
        setting=setting,
        right=expected(distribution_of(setting), selected_of_versions(agents, kept, repaired, model.judge)),
        calls=agents * (2 + rounds * (critics + revised)),
        extra=last_versions,
    )


def last_right(trial: Trial) -> list[bool]:
    """For each author, whether the last version is right."""
    last: dict[str, str] = {}
    for asked in (*trial.of("propose"), *trial.of("revise")):
        written = parse_output(asked.call.output, asked.text or "")
        assert isinstance(written, Answer | Revision)
        last[asked.call.agent_id] = written.answer
    return [text == RIGHT for text in last.values()]


def _autos() -> Iterator[Experiment]:
    """Three drafts first, and another strategy if they differ."""
    for correlation in (0.0, 0.44):
        model = AgentModel(accuracy=0.7, correlation=correlation, judge=0.8)
        about = f"N=5 p=.7 ρ={short(correlation)} q=.8, on to best_of_n"
        yield _auto(about, 5, model, "best_of_n", selected_by_independent_reviewers(5, model.judge), calls=10)
    model = AgentModel(accuracy=0.7, fix=0.4, harm=0.2, judge=0.8, one_jury=True)
    kept, repaired = kept_and_repaired(model.fix, model.harm, 1)
    given = selected_of_versions(3, kept, repaired, model.judge)
    yield _auto("N=3 R=1 p=.7 u=.4 h=.2 q=.8, on to council", 3, model, "council", given, calls=12)


def _auto(
    about: str, agents: int, model: AgentModel, on_to: str, given: Callable[[int], float], calls: float
) -> Experiment:
    parameters = {"normaliser": "number", "escalate_to": on_to}
    setting = Setting(strategy="auto", agents=agents, model=model, parameters=parameters)
    predicted = escalated(distribution_of(setting), _DRAFTS_FIRST, given, calls)
    return Experiment(about=about, setting=setting, right=predicted.right, calls=predicted.calls)


def programs() -> Iterator[Experiment]:
    """A test of the client, with and without repairs, and tests that agents write; an ideal sandbox runs no program."""
    yield _given(agents=5, accuracy=0.4, fix=0.0, rounds=0)
    yield _given(agents=3, accuracy=0.4, fix=0.5, rounds=1)
    yield _written(agents=5, accuracy=0.6, tester=0.7)


def _given(agents: int, accuracy: float, fix: float, rounds: int) -> Experiment:
    # A right test equals a perfect reviewer: a passing program wins, and only a failing one is repaired.
    model = AgentModel(accuracy=accuracy, fix=fix)
    setting = Setting(strategy="execute", agents=agents, model=model, rounds=rounds, parameters=_GIVEN)
    _, repaired = kept_and_repaired(fix, 0.0, rounds)
    return Experiment(
        about=f"N={agents} R={rounds} p={short(accuracy)} u={short(fix)}, a given test",
        setting=setting,
        right=expected(distribution_of(setting), selected_of_versions(agents, kept=1.0, repaired=repaired, judge=1.0)),
        calls=agents + rounds * agents * (1 - accuracy),
    )


def _written(agents: int, accuracy: float, tester: float) -> Experiment:
    model = AgentModel(accuracy=accuracy, tester=tester)
    setting = Setting(strategy="execute", agents=agents, model=model, rounds=0, parameters={"test_writers": 2})
    return Experiment(
        about=f"N={agents} R=0 p={short(accuracy)}, two written tests, each right with {short(tester)}",
        setting=setting,
        right=expected(distribution_of(setting), tested_by_two(agents, tester)),
        calls=agents + 2,
    )
