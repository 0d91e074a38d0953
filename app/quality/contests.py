"""Experiments on contests: `fuse`, whose text must beat the best single one, and `tournament`."""

from collections.abc import Iterable, Iterator, Sequence

from app.quality import contest_forms
from app.quality.closed_forms import expected, selected_by_independent_reviewers
from app.quality.experiments import Experiment, distribution_of, short
from app.quality.figures import Figure, share
from app.quality.simulated_agents import AgentModel
from app.quality.trials import Setting, Trial


def contests() -> Iterator[Experiment]:
    """A fused text against the best single one, and tournaments of two formats."""
    # A judge that is little better than chance, and a good one.
    for judge in (0.55, 0.8):
        yield _fuse(agents=5, judge=judge, writer=0.6, bias=0.1)
    yield _round_robin(agents=3, judge=0.7, bias=0.15)
    yield _knockout(judge=0.7, bias=0.15)


def _fuse(agents: int, judge: float, writer: float, bias: float) -> Experiment:
    # Reviewers are as accurate as judges, and have no position bias in lists.
    model = AgentModel(accuracy=0.6, judge=judge, writer=writer, pair_bias=bias)
    setting = Setting(strategy="fuse", agents=agents, model=model)
    distribution = distribution_of(setting)
    best_right = expected(distribution, selected_by_independent_reviewers(agents, judge))
    predicted = contest_forms.fused(best_right, 1 - distribution[0], writer, judge, bias)

    def shipped(found: Sequence[Trial]) -> Iterable[Figure]:
        ships = [trial.conclusion.call_id == trial.of("fuse")[0].call.call_id for trial in found]
        yield share("fused text shipped", ships, predicted.shipped)

    return Experiment(
        about=f"N={agents} p=.6 q={short(judge)} b={short(bias)} w={short(writer)}",
        setting=setting,
        right=predicted.right,
        calls=2 * agents + 4,
        extra=shipped,
    )


def _round_robin(agents: int, judge: float, bias: float) -> Experiment:
    model = AgentModel(accuracy=0.6, judge=judge, pair_bias=bias)
    setting = Setting(strategy="tournament", agents=agents, model=model)
    return Experiment(
        about=f"N={agents} p=.6 q={short(judge)} b={short(bias)}, everyone meets everyone",
        setting=setting,
        right=expected(distribution_of(setting), contest_forms.round_robin(agents, judge, bias)),
        calls=agents + agents * (agents - 1),
    )


def _knockout(judge: float, bias: float) -> Experiment:
    model = AgentModel(accuracy=0.6, judge=judge, pair_bias=bias)
    return Experiment(
        about=f"N=4 p=.6 q={short(judge)} b={short(bias)}, knockout",
        setting=Setting(strategy="tournament", agents=4, model=model, parameters={"format": "knockout"}),
        right=contest_forms.knockout_of_four(model.accuracy, judge, bias),
        calls=4 + 2 * 3,
    )
