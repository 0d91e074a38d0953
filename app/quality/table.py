"""The proof table: every experiment in its order."""

from collections.abc import Collection, Iterator

from app.quality.contests import contests, judges
from app.quality.experiments import Experiment
from app.quality.selections import programs, selections
from app.quality.votes import votes


def experiments(strategies: Collection[str] = ()) -> Iterator[Experiment]:
    """All experiments, or only those of the given strategies."""
    for experiment in (*votes(), *selections(), *contests(), *programs(), *judges()):
        if not strategies or experiment.setting.strategy in strategies:
            yield experiment
