"""Experiments on counting: `vote` with its stops, and `debate`, which counts first and last answers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from benchmarks.quality import closed_forms
from benchmarks.quality.closed_forms import StopsAt
from benchmarks.quality.experiments import ASK_ALL, VOTE, Experiment, Extra, Figure, distribution_of, share, short
from benchmarks.quality.simulated_agents import RIGHT, WRONG, AgentModel
from benchmarks.quality.trials import Setting, Trial, agent_ids, deliberate

_NUMBERS = {"normaliser": "number"}
# The share of equal answers that skips the debate: the strategy's default.
_AGREEMENT = 0.8


def votes() -> Iterator[Experiment]:
    """Condorcet's jury with and without correlation, early stops, and debate."""
    for correlation in (0.0, 0.1, 0.44):
        for agents in (3, 5, 9):
            yield _plurality(agents, AgentModel(accuracy=0.7, correlation=correlation), f"p=.7 ρ={short(correlation)}")
    yield _plurality(9, AgentModel(accuracy=0.7, correlation=0.44, common_cause=True), "p=.7 ρ=.44 by a common cause")
    yield _plurality(5, AgentModel(accuracy=0.4), "p=.4, one wrong answer")
    yield _many_wrong(5, AgentModel(accuracy=0.4, wrong_answers=4))
    for agents, accuracy in ((5, 0.7), (15, 0.8)):
        yield _unassailable(agents, accuracy)
    yield _stopped(_vote(15, AgentModel(accuracy=0.8), "beta"), closed_forms.beta_rule)
    yield from _beta_counts()
    yield _picked(6, 0.7)
    for agents, correlation in ((4, 0.0), (5, 0.0), (5, 0.44)):
        yield _debate(agents, correlation)


def _vote(agents: int, model: AgentModel, stop: str = "none") -> Setting:
    return Setting(strategy=VOTE, agents=agents, model=model, parameters={**_NUMBERS, "stop": stop})


def _plurality(agents: int, model: AgentModel, about: str) -> Experiment:
    setting = _vote(agents, model)
    return Experiment(
        about=f"N={agents} {about}",
        setting=setting,
        right=closed_forms.plurality(distribution_of(setting)),
        calls=agents,
        effort=4,
    )


def _many_wrong(agents: int, model: AgentModel) -> Experiment:
    right = closed_forms.plurality_of_many(agents, model.accuracy, model.wrong_answers)
    about = f"N={agents} p={short(model.accuracy)}, {model.wrong_answers} wrong answers"
    return Experiment(about=about, setting=_vote(agents, model), right=right, calls=agents, effort=4)


def _unassailable(agents: int, accuracy: float) -> Experiment:
    setting = _vote(agents, AgentModel(accuracy=accuracy), "unassailable")

    def same_winner(found: Sequence[Trial]) -> Iterable[Figure]:
        full = (deliberate(replace(setting, parameters=ASK_ALL), trial.seed).conclusion for trial in found)
        same = [
            (every_vote.winner, every_vote.content) == (trial.conclusion.winner, trial.conclusion.content)
            for every_vote, trial in zip(full, found, strict=True)
        ]
        yield share("winner is the full vote's", same, 1.0)

    return _stopped(setting, closed_forms.unassailable, same_winner)


def _stopped(setting: Setting, rule: StopsAt, extra: Extra | None = None) -> Experiment:
    agents, accuracy = setting.agents, setting.model.accuracy
    predicted = closed_forms.stopped_vote(agents, accuracy, rule)
    return Experiment(
        about=f"N={agents} p={short(accuracy)}, stop {setting.parameters['stop']}",
        setting=setting,
        right=predicted.right,
        calls=predicted.calls,
        extra=extra,
        effort=2,
    )


def _beta_counts() -> Iterator[Experiment]:
    # The confidence is .938 after 3-0 and after 5-1, so both votes continue.
    for answers, calls, about in (("RRRR", 4, "4-0 stops, 3-0 does not"), ("RRRWRRR", 7, "6-1 stops, 5-1 does not")):
        said = [RIGHT if each == "R" else WRONG[0] for each in answers.ljust(15, "R")]
        model = AgentModel(planted=dict(zip(agent_ids(15), said, strict=True)))
        yield Experiment(about=f"beta rule: {about}", setting=_vote(15, model, "beta"), calls=calls)


def _picked(agents: int, accuracy: float) -> Experiment:
    # The picker is an author that does not see its own text: it picks the plurality of the others.
    model = AgentModel(accuracy=accuracy)
    return Experiment(
        about=f"N={agents} p={short(accuracy)}, nothing counted: one call picks the most consistent",
        setting=Setting(strategy=VOTE, agents=agents, model=model, parameters={"normaliser": "none"}),
        right=closed_forms.plurality(closed_forms.right_drafts(agents - 1, accuracy)),
        calls=agents + 1,
    )


def _debate(agents: int, correlation: float) -> Experiment:
    model = AgentModel(accuracy=0.7, correlation=correlation, fix=0.5, harm=0.2)
    setting = Setting(strategy="debate", agents=agents, model=model, parameters=_NUMBERS)
    predicted = closed_forms.debated(distribution_of(setting), _AGREEMENT, model.fix, model.harm)
    return Experiment(
        about=f"N={agents} R=1 p=.7 ρ={short(correlation)} u=.5 h=.2",
        setting=setting,
        right=predicted.right,
        calls=predicted.calls,
    )
