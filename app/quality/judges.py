"""Experiments on judges: two orders against a judge's position bias, and rotation of the positions in a list."""

from collections.abc import Iterable, Iterator, Sequence

from app.deliberation.outputs import Scores, parse_output
from app.quality.contest_forms import orders_agree, right_when_consistent
from app.quality.experiments import Experiment, short
from app.quality.figures import Figure, share
from app.quality.simulated_agents import RIGHT, WRONG, AgentModel
from app.quality.trials import Setting, Trial, TrialCall, agent_ids


def judges() -> Iterator[Experiment]:
    """A pair judged in both orders, and equal candidates for reviewers who prefer the first position."""
    yield _both_orders(judge=0.7, bias=0.15)
    for agents in (3, 4):
        yield _rotation(agents, bias=0.15)


def _both_orders(judge: float, bias: float) -> Experiment:
    # Only two of five answer, one of them rightly: below the quorum both are compared as a pair, in both orders.
    right, wrong = agent_ids(2)
    model = AgentModel(judge=judge, pair_bias=bias, planted={right: RIGHT, wrong: WRONG[0]})

    def figures(found: Sequence[Trial]) -> Iterable[Figure]:
        agreeing = [trial for trial in found if not trial.conclusion.tie]
        yield share("both orders agree", [not trial.conclusion.tie for trial in found], orders_agree(judge, bias))
        yield share("right when consistent", [trial.right for trial in agreeing], right_when_consistent(judge, bias))

    return Experiment(
        about=f"a pair in both orders, q={short(judge)} b={short(bias)}",
        setting=Setting(strategy="best_of_n", agents=5, model=model),
        # Five drafts are requested, and two orders are judged.
        calls=7,
        extra=figures,
    )


def _rotation(agents: int, bias: float) -> Experiment:
    council = agent_ids(agents)

    def figures(found: Sequence[Trial]) -> Iterable[Figure]:
        ballots = [asked for trial in found for asked in trial.of("score")]
        yield share("ballots put the first shown on top", [first_on_top(cast) for cast in ballots], 2 * bias)
        for place, agent_id in enumerate(council, start=1):
            wins = [trial.conclusion.winner == agent_id for trial in found]
            yield share(f"agent {place} of {agents} wins", wins, 1 / agents)

    return Experiment(
        about=f"N={agents} equal answers, b={short(bias)}, places rotated",
        setting=Setting(strategy="best_of_n", agents=agents, model=AgentModel(accuracy=1.0, place_bias=bias)),
        calls=2 * agents,
        extra=figures,
    )


def first_on_top(cast: TrialCall) -> bool:
    """Whether a ballot scores its first candidate above all others."""
    ballot = parse_output(cast.call.output, cast.text or "")
    assert isinstance(ballot, Scores)
    first, *others = (ballot.candidates[letter].criteria[0].score for letter in cast.call.output.labels)
    return all(first > other for other in others)
