"""Experiments: trials of one setting with their predictions; each becomes a row of the proof table."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance

from benchmarks.quality.closed_forms import Distribution, common_cause, plurality, right_drafts
from benchmarks.quality.trials import Setting, Trial, trials

BAND_SIGMAS = 3.0
# The share of normally distributed figures outside three standard errors.
OUTSIDE_BY_CHANCE = 0.0027
# Rounding errors of sums; no standard error is that small.
_ROUNDING = 1e-9
RIGHT_VERDICT = "right"
VOTE = "vote"
# Counts numbers, and asks every agent.
ASK_ALL = {"normaliser": "number", "stop": "none"}
# The largest council.
AGENTS_MAX = 32


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured number, its prediction by a closed form, and the standard error under that prediction.

    A standard error of 0 means that every run must match the prediction exactly.
    """

    what: str
    measured: float
    predicted: float
    sigma: float

    @property
    def band(self) -> float:
        """Half the width of the band around the prediction: three standard errors."""
        return BAND_SIGMAS * self.sigma

    @property
    def within(self) -> bool:
        """Whether the measured number lies in the band."""
        return abs(self.measured - self.predicted) <= self.band + _ROUNDING


def share(what: str, hits: Sequence[bool], predicted: float) -> Figure:
    """A measured share against its predicted probability; ValueError without observations."""
    return Figure(what, fmean(hits), predicted, sqrt(predicted * (1 - predicted) / len(hits)))


def mean(what: str, values: Sequence[float], predicted: float) -> Figure:
    """The mean of observations against its prediction, with the observed standard error."""
    spread = variance(values) if len(values) > 1 else 0.0
    return Figure(what, fmean(values), predicted, sqrt(spread / len(values)))


Extra = Callable[[Sequence[Trial]], Iterable[Figure]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A setting with its predictions; None for a figure that is not part of the proof. `extra` adds further figures.

    `effort` multiplies the usual number of trials, for cheap ones that need a narrow band. `right` is compared with a
    plain vote of as many calls, unless the experiment is one.
    """

    about: str
    setting: Setting
    right: float | None = None
    calls: float | None = None
    extra: Extra | None = None
    effort: int = 1

    @property
    def name(self) -> str:
        """The unique name, which also seeds the trials."""
        return f"{self.setting.strategy}: {self.about}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A finished experiment. `vote` is the plain vote with as many calls, if they can be compared."""

    strategy: str
    about: str
    runs: int
    figures: tuple[Figure, ...]
    vote: Figure | None = None

    @property
    def all(self) -> tuple[Figure, ...]:
        """The figures, with the vote's last."""
        return self.figures if self.vote is None else (*self.figures, self.vote)

    @property
    def outside(self) -> list[Figure]:
        """The figures outside their bands."""
        return [figure for figure in self.all if not figure.within]


def short(rate: float) -> str:
    """A rate in its short form: .7, 0, 1."""
    return f"{rate:g}".removeprefix("0") or "0"


def distribution_of(setting: Setting, agents: int | None = None) -> Distribution:
    """The distribution of the number of right drafts in a setting, for its agents or for another number."""
    model, size = setting.model, agents or setting.agents
    if model.common_cause:
        return common_cause(size, model.accuracy, model.correlation)
    return right_drafts(size, model.accuracy, model.correlation)


def run(experiment: Experiment, runs: int, seed: int) -> Row:
    """Measure an experiment over `runs` trials; the same seed gives the same row."""
    setting = experiment.setting
    found = trials(setting, seed, experiment.name, runs)
    figures: list[Figure] = []
    if experiment.right is not None:
        figures.append(share(RIGHT_VERDICT, [trial.right for trial in found], experiment.right))
    if experiment.calls is not None:
        figures.append(mean("calls", [trial.calls for trial in found], experiment.calls))
    if experiment.extra is not None:
        figures += experiment.extra(found)
    votes = matched_votes(experiment)
    vote = None if votes is None else matched_vote(setting, votes, runs, seed)
    return Row(strategy=setting.strategy, about=experiment.about, runs=runs, figures=tuple(figures), vote=vote)


def matched_votes(experiment: Experiment) -> int | None:
    """The size of the plain vote with as many calls; None for a vote, a single call, or no prediction."""
    if experiment.right is None or experiment.calls is None or experiment.setting.strategy in (VOTE, "single"):
        return None
    return min(AGENTS_MAX, max(1, round(experiment.calls)))


def matched_vote(setting: Setting, votes: int, runs: int, seed: int) -> Figure:
    """The plain vote of so many agents of the same model."""
    plain = Setting(strategy=VOTE, agents=votes, model=setting.model, parameters=ASK_ALL)
    name = f"{setting.strategy} matched by {votes}"
    hits = [trial.right for trial in trials(plain, seed, name, runs)]
    return share(f"right, a vote of {votes} instead", hits, plurality(distribution_of(plain)))
