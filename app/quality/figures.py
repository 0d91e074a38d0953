"""Measured against predicted: figures with their bands, and intervals for what has no prediction."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance

BAND_SIGMAS = 3.0
# Of a normal figure about 1 in 370 lies outside three standard errors by chance.
OUTSIDE_BY_CHANCE = 0.0027
# Sums of floats differ from the closed form in their last digits; no standard error is that small.
_ROUNDING = 1e-9
_Z_95 = 1.959964


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number, what a closed form says of it, and the standard error under that prediction.

    A standard error of 0 says that the prediction is exact: every run must give it.
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
    """How often something was so, against its predicted probability; ValueError without any observation."""
    _some(hits)
    return Figure(what, fmean(hits), predicted, sqrt(predicted * (1 - predicted) / len(hits)))


def mean(what: str, values: Sequence[float], predicted: float) -> Figure:
    """The mean of observations against its prediction, with the standard error of the observations themselves."""
    _some(values)
    spread = variance(values) if len(values) > 1 else 0.0
    return Figure(what, fmean(values), predicted, sqrt(spread / len(values)))


def every(what: str, hits: Sequence[bool]) -> Figure:
    """The share of cases in which something held that must hold always."""
    return share(what, hits, 1.0)


def _some(observations: Sequence[object]) -> None:
    if not observations:
        raise ValueError("a figure needs at least one observation")


def wilson(hits: int, total: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion; (0, 1) of nothing. Wilson, JASA 22 (1927).

    It stays inside [0, 1] and is honest for few observations and for proportions near 0 and 1, where the interval
    p ± 1.96·√(p(1-p)/n) has no width at all.
    """
    if not 0 <= hits <= total:
        raise ValueError(f"{hits} of {total} is no proportion")
    if total == 0:
        return 0.0, 1.0
    rate, weight = hits / total, _Z_95**2 / total
    centre = (rate + weight / 2) / (1 + weight)
    half = _Z_95 * sqrt(rate * (1 - rate) / total + weight / (4 * total)) / (1 + weight)
    return max(0.0, centre - half), min(1.0, centre + half)
