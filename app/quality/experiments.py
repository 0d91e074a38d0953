"""An experiment: deliberations of one setting, and what theory says of them; a row of the table when it has run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from app.quality.closed_forms import Law, common_cause, right_drafts
from app.quality.figures import Figure, mean, share
from app.quality.trials import Setting, Trial, trials

RIGHT_VERDICT, CALLS = "right", "calls"
VOTE = "vote"

Extra = Callable[[Sequence[Trial]], Iterable[Figure]]


def _nothing(_: Sequence[Trial]) -> Iterable[Figure]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A setting and its predictions; None where a figure is not part of the proof. `extra` draws further figures."""

    about: str
    setting: Setting
    right: float | None = None
    calls: float | None = None
    extra: Extra = _nothing
    matched: bool = True

    @property
    def name(self) -> str:
        """What tells it from all others, and seeds it."""
        return f"{self.setting.strategy}: {self.about}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An experiment that has run. `vote` is the plain vote with as many calls, where the two can be compared."""

    strategy: str
    about: str
    runs: int
    figures: tuple[Figure, ...]
    votes: int | None = None
    vote: Figure | None = None

    @property
    def outside(self) -> list[Figure]:
        """The figures that are not in their bands."""
        return [figure for figure in (*self.figures, *filter(None, [self.vote])) if not figure.within]


def law_of(setting: Setting, agents: int | None = None) -> Law:
    """The law of the number of right drafts in a setting; of another number of agents where one is given."""
    nature, size = setting.nature, agents or setting.agents
    if nature.common_cause:
        return common_cause(size, nature.accuracy, nature.correlation)
    return right_drafts(size, nature.accuracy, nature.correlation)


def run(experiment: Experiment, runs: int, seed: int) -> Row:
    """Measure an experiment over `runs` deliberations; the same seed gives the same row."""
    setting = experiment.setting
    found = trials(setting, seed, experiment.name, runs)
    figures: list[Figure] = []
    if experiment.right is not None:
        figures.append(share(RIGHT_VERDICT, [trial.right for trial in found], experiment.right))
    if experiment.calls is not None:
        figures.append(mean(CALLS, [trial.calls for trial in found], experiment.calls))
    figures += experiment.extra(found)
    return Row(strategy=setting.strategy, about=experiment.about, runs=runs, figures=tuple(figures))
