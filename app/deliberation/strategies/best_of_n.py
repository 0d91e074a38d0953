"""`best_of_n`: every agent proposes, every peer scores the others listwise, the best is selected.

LLM-PeerReview (arXiv:2512.23213) selects by peer scores. Selecting the best single answer beats free debate
(DeliberationBench, arXiv:2601.08835).
"""

from collections.abc import Sequence

from pydantic import Field

from app.deliberation.choice.aggregation import Aggregation
from app.deliberation.decider import Conclusion, Strategy, StrategyDefinition
from app.deliberation.specification import Parameters, Specification
from app.deliberation.strategies.strategy_run import Candidate, Step, StrategyRun


class BestOfNParameters(Parameters):
    """The rule that turns scores into a choice."""

    aggregation: Aggregation = Field(default="borda", description="How the scores are counted into one ranking")


def _best_of_n(specification: Specification) -> Strategy:
    run = StrategyRun(specification)
    drafts = yield from run.propose(stages_left=2)
    return (yield from continue_from(run, drafts))


def continue_from(run: StrategyRun, drafts: Sequence[Candidate]) -> Step[Conclusion]:
    parameters = BestOfNParameters.model_validate(run.specification.parameters)
    return (yield from run.select(drafts, round=1, aggregation=parameters.aggregation))


BEST_OF_N = StrategyDefinition(
    name="best_of_n",
    version=4,
    summary="Propose; every peer scores the others listwise; select.",
    steps=("propose", "score"),
    formula="2N (1 when N is 1)",
    source="arXiv:2512.23213, arXiv:2601.08835",
    tool_calls="N",
    run=_best_of_n,
    parameters=BestOfNParameters,
)
