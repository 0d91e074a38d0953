"""Compares measurements with predictions: figures with their bands, and intervals without a prediction."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance

BAND_SIGMAS = 3.0
# The share of normally distributed figures outside three standard errors.
OUTSIDE_BY_CHANCE = 0.0027
# Rounding errors of sums; no standard error is that small.
_ROUNDING = 1e-9
_Z_95 = 1.959964


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


def wilson(hits: int, total: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion; (0, 1) of nothing. Wilson, JASA 22 (1927).

    It stays inside [0, 1] and is valid for few observations and for proportions near 0 and 1, unlike
    p ± 1.96·√(p(1-p)/n).
    """
    if not 0 <= hits <= total:
        raise ValueError(f"{hits} of {total} is not a proportion")
    if total == 0:
        return 0.0, 1.0
    rate, weight = hits / total, _Z_95**2 / total
    centre = (rate + weight / 2) / (1 + weight)
    half = _Z_95 * sqrt(rate * (1 - rate) / total + weight / (4 * total)) / (1 + weight)
    return max(0.0, centre - half), min(1.0, centre + half)
