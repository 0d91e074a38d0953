"""`single` and `independent`: the baselines of every comparison."""

from app.deliberation.decider import Conclusion, Strategy, StrategyDefinition
from app.deliberation.specification import Specification
from app.deliberation.strategies.strategy_run import StrategyRun


def _single(specification: Specification) -> Strategy:
    alone = specification.model_copy(update={"agents": specification.agents[:1], "quorum": 1})
    run = StrategyRun(alone)
    (draft,) = yield from run.propose(stages_left=1)
    return run.conclude([(draft, None)], margin=None, tie=False)


def _independent(specification: Specification) -> Strategy:
    run = StrategyRun(specification)
    yield from run.propose(stages_left=1)
    return Conclusion(winner=None, content=None, degraded=tuple(run.degraded))


SINGLE = StrategyDefinition(
    name="single",
    version=3,
    summary="One answer of the first agent: the baseline.",
    steps=("propose",),
    formula="1",
    source="baseline",
    tool_calls="1",
    run=_single,
    size=1,
)
INDEPENDENT = StrategyDefinition(
    name="independent",
    version=3,
    summary="N answers side by side, unranked.",
    steps=("propose",),
    formula="N",
    source="baseline",
    tool_calls="N",
    run=_independent,
)
