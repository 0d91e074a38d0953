"""Experiments on actions: how often enough members want one call, how often that is right, and what it costs."""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from math import ceil

from benchmarks.quality import closed_forms
from benchmarks.quality.experiments import VOTE, Experiment, Figure, share, short
from benchmarks.quality.simulated_agents import AgentModel
from benchmarks.quality.trials import Setting, Trial

_ACCURACY = 0.7
_SHARES = (0.5, 0.6, 0.8, 1.0)


def actions() -> Iterator[Experiment]:
    """Votes over calls of tools, with wrong calls spread over one, four and twenty others."""
    for agents, wrong, agreement_min in product((3, 5, 9), (1, 4, 20), _SHARES):
        yield _agreed(agents, wrong, agreement_min)


def _agreed(agents: int, wrong: int, agreement_min: float) -> Experiment:
    needed = ceil(Fraction(str(agreement_min)) * agents)
    predicted = closed_forms.agreed(agents, _ACCURACY, wrong, needed)

    def figures(found: Sequence[Trial]) -> Iterable[Figure]:
        agreed = [trial.conclusion.agreed is True for trial in found]
        yield share("enough agree", agreed, predicted.covered)
        yield share(
            "right among those",
            [trial.right for trial in found if trial.conclusion.agreed],
            predicted.right / predicted.covered,
        )

    return Experiment(
        about=f"N={agents} p={short(_ACCURACY)}, {wrong} wrong calls, agreement ≥ {short(agreement_min)}",
        setting=Setting(
            strategy=VOTE,
            agents=agents,
            model=AgentModel(accuracy=_ACCURACY, wrong_answers=wrong),
            agreement_min=agreement_min,
        ),
        right=predicted.right,
        calls=predicted.calls,
        extra=figures,
    )
