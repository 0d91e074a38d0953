"""An experiment: deliberations of one setting, and what theory says of them; a row of the table when it has run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from app.quality.closed_forms import Law, common_cause, plurality, right_drafts
from app.quality.figures import Figure, mean, share
from app.quality.trials import Setting, Trial, trials

RIGHT_VERDICT, CALLS = "right", "calls"
VOTE = "vote"
# Numbers are counted, never picked from; and everybody is asked.
ASK_ALL = {"normaliser": "number", "stop": "none"}
# As many as a council may have.
AGENTS_MAX = 32

Extra = Callable[[Sequence[Trial]], Iterable[Figure]]


def no_more(_: Sequence[Trial]) -> Iterable[Figure]:
    """No further figures."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A setting and its predictions; None where a figure is not part of the proof. `extra` draws further figures.

    `effort` multiplies the number of deliberations, where one of them is cheap and its figure needs a narrow band.
    `right` is compared with a plain vote of as many calls, unless the experiment is itself one.
    """

    about: str
    setting: Setting
    right: float | None = None
    calls: float | None = None
    extra: Extra = no_more
    effort: int = 1

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
    vote: Figure | None = None

    @property
    def all(self) -> tuple[Figure, ...]:
        """Its figures, that of the vote last."""
        return self.figures if self.vote is None else (*self.figures, self.vote)

    @property
    def outside(self) -> list[Figure]:
        """The figures that are not in their bands."""
        return [figure for figure in self.all if not figure.within]


def short(rate: float) -> str:
    """A rate as the settings of rows tell it: .7, 0, 1."""
    return f"{rate:g}".removeprefix("0") or "0"


def law_of(setting: Setting, agents: int | None = None) -> Law:
    """The law of the number of right drafts in a setting; of another number of agents where one is given."""
    nature, size = setting.nature, agents or setting.agents
    if nature.common_cause:
        return common_cause(size, nature.accuracy, nature.correlation)
    return right_drafts(size, nature.accuracy, nature.correlation)


def run(experiment: Experiment, runs: int, seed: int) -> Row:
    """Measure an experiment over `runs` deliberations, times its effort; the same seed gives the same row."""
    setting, runs = experiment.setting, runs * experiment.effort
    found = trials(setting, seed, experiment.name, runs)
    figures: list[Figure] = []
    if experiment.right is not None:
        figures.append(share(RIGHT_VERDICT, [trial.right for trial in found], experiment.right))
    if experiment.calls is not None:
        figures.append(mean(CALLS, [trial.calls for trial in found], experiment.calls))
    figures += experiment.extra(found)
    votes = matched_votes(experiment)
    vote = None if votes is None else matched_vote(setting, votes, runs, seed)
    return Row(strategy=setting.strategy, about=experiment.about, runs=runs, figures=tuple(figures), vote=vote)


def matched_votes(experiment: Experiment) -> int | None:
    """How many votes cost as much, in whole agents; None for a vote, one call, or nothing to compare."""
    if experiment.right is None or experiment.calls is None or experiment.setting.strategy in (VOTE, "single"):
        return None
    return min(AGENTS_MAX, max(1, round(experiment.calls)))


def matched_vote(setting: Setting, votes: int, runs: int, seed: int) -> Figure:
    """The plain vote of so many minds of the same nature."""
    plain = Setting(strategy=VOTE, agents=votes, nature=setting.nature, parameters=ASK_ALL)
    name = f"{setting.strategy} matched by {votes}"
    hits = [trial.right for trial in trials(plain, seed, name, runs)]
    return share(f"right, a vote of {votes} instead", hits, plurality(law_of(plain)))
