"""Experiments on contests: `fuse`, whose text must beat the best single one, and `tournament`."""

from collections.abc import Iterable, Iterator, Sequence

from app.quality import contest_forms
from app.quality.closed_forms import expected, selected_by_many
from app.quality.experiments import Experiment, law_of, short
from app.quality.figures import Figure, share
from app.quality.minds import AgentModel
from app.quality.trials import Setting, Trial


def contests() -> Iterator[Experiment]:
    """A fused text against the best single one, and tournaments of three formats."""
    # A judge that is little better than chance, and one that is good: what the gate keeps out.
    for judge in (0.55, 0.8):
        yield _fuse(agents=5, judge=judge, writer=0.6, bias=0.1)
    yield _round_robin(agents=3, judge=0.7, bias=0.15)
    yield _knockout(judge=0.7, bias=0.15)


def _fuse(agents: int, judge: float, writer: float, bias: float) -> Experiment:
    # The reviewers who select are as good as the judges who compare, and have no bias for places in a list of five.
    nature = AgentModel(accuracy=0.6, judge=judge, writer=writer, pair_bias=bias)
    setting = Setting(strategy="fuse", agents=agents, nature=nature)
    law = law_of(setting)
    best_right = expected(law, selected_by_many(agents, judge))
    predicted = contest_forms.fused(best_right, 1 - law[0], writer, judge, bias)

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
    nature = AgentModel(accuracy=0.6, judge=judge, pair_bias=bias)
    setting = Setting(strategy="tournament", agents=agents, nature=nature)
    return Experiment(
        about=f"N={agents} p=.6 q={short(judge)} b={short(bias)}, everyone meets everyone",
        setting=setting,
        right=expected(law_of(setting), contest_forms.round_robin(agents, judge, bias)),
        calls=agents + agents * (agents - 1),
    )


def _knockout(judge: float, bias: float) -> Experiment:
    nature = AgentModel(accuracy=0.6, judge=judge, pair_bias=bias)
    return Experiment(
        about=f"N=4 p=.6 q={short(judge)} b={short(bias)}, knockout",
        setting=Setting(strategy="tournament", agents=4, nature=nature, parameters={"format": "knockout"}),
        right=contest_forms.knockout_of_four(nature.accuracy, judge, bias),
        calls=4 + 2 * 3,
    )
