"""Experiments on comparisons: `fuse`, `tournament`, and the position bias of judges and reviewers."""

from collections.abc import Iterable, Iterator, Sequence

from app.deliberation.outputs import Scores, parse_output
from benchmarks.quality import contest_forms
from benchmarks.quality.closed_forms import expected, selected_by_independent_reviewers
from benchmarks.quality.experiments import Experiment, Figure, distribution_of, share, short
from benchmarks.quality.simulated_agents import RIGHT, WRONG, AgentModel
from benchmarks.quality.trials import Setting, Trial, TrialCall, agent_ids


def contests() -> Iterator[Experiment]:
    """A fused text against the best single one, and tournaments of two formats."""
    # A judge that is little better than chance, and a good one.
    for judge in (0.55, 0.8):
        yield _fuse(agents=5, judge=judge, writer=0.6, bias=0.1)
    yield from _tournaments(judge=0.7, bias=0.15)


def _fuse(agents: int, judge: float, writer: float, bias: float) -> Experiment:
    # Reviewers are as accurate as judges, and have no position bias in lists.
    model = AgentModel(accuracy=0.6, judge=judge, writer=writer, pair_bias=bias)
    setting = Setting(strategy="fuse", agents=agents, model=model)
    distribution = distribution_of(setting)
    best_right = expected(distribution, selected_by_independent_reviewers(agents, judge))
    right, shipped = contest_forms.fused(best_right, 1 - distribution[0], writer, judge, bias)

    def figures(found: Sequence[Trial]) -> Iterable[Figure]:
        ships = [trial.conclusion.call_id == trial.of("fuse")[0].call.call_id for trial in found]
        yield share("fused text shipped", ships, shipped)

    return Experiment(
        about=f"N={agents} p=.6 q={short(judge)} b={short(bias)} w={short(writer)}",
        setting=setting,
        right=right,
        calls=2 * agents + 4,
        extra=figures,
    )


def _tournaments(judge: float, bias: float) -> Iterator[Experiment]:
    model = AgentModel(accuracy=0.6, judge=judge, pair_bias=bias)
    rates = f"p=.6 q={short(judge)} b={short(bias)}"
    setting = Setting(strategy="tournament", agents=3, model=model)
    right = expected(distribution_of(setting), contest_forms.round_robin(3, judge, bias))
    yield Experiment(about=f"N=3 {rates}, round robin", setting=setting, right=right, calls=3 + 3 * 2)
    setting = Setting(strategy="tournament", agents=4, model=model, parameters={"format": "knockout"})
    right = contest_forms.knockout_of_four(model.accuracy, judge, bias)
    yield Experiment(about=f"N=4 {rates}, knockout", setting=setting, right=right, calls=4 + 2 * 3)


def judges() -> Iterator[Experiment]:
    """A pair judged in both orders, and equal candidates for reviewers that prefer the first position."""
    yield _both_orders(judge=0.7, bias=0.15)
    for agents in (3, 4):
        yield _rotation(agents, bias=0.15)


def _both_orders(judge: float, bias: float) -> Experiment:
    # Only two of five answer, one of them rightly: below the quorum both are compared as a pair, in both orders.
    right, wrong = agent_ids(2)
    model = AgentModel(judge=judge, pair_bias=bias, planted={right: RIGHT, wrong: WRONG[0]})

    def figures(found: Sequence[Trial]) -> Iterable[Figure]:
        untied = [not trial.conclusion.tie for trial in found]
        yield share("both orders agree", untied, contest_forms.orders_agree(judge, bias))
        rights = [trial.right for trial in found if not trial.conclusion.tie]
        yield share("right when consistent", rights, contest_forms.right_when_consistent(judge, bias))

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
