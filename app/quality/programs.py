"""Experiments on `execute`, with an ideal sandbox: no program is run."""

from collections.abc import Iterator

from app.quality.closed_forms import expected, kept_and_repaired, selected_of_versions, tested_by_two
from app.quality.experiments import Experiment, distribution_of, short
from app.quality.simulated_agents import RIGHT, AgentModel
from app.quality.trials import Setting

_GIVEN = {"tests": [{"name": "result", "code": RIGHT}], "test_writers": 0}


def programs() -> Iterator[Experiment]:
    """A test of the client, with and without repairs, and tests that agents write."""
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
