"""`vote`: sample answers in waves, normalise them, take the plurality, and stop as soon as it is decided.

Self-consistency (arXiv:2203.11171) with the early stopping of Adaptive-Consistency (arXiv:2305.11860), or an exact stop
that never changes the winner. If no two answers are equal, a call picks the most consistent answer (Universal
Self-Consistency, arXiv:2311.17311). The picker is an author, and does not see its own answer. Stated confidence does
not count: it does not rank answers within a question (arXiv:2502.06233).
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import comb
from typing import Literal

from pydantic import Field

from app.deliberation.answers import FORMS, OPTIONS, READ_AS, Count, Options, tally
from app.deliberation.choice.anonymity import arrangements, lettered, nonce
from app.deliberation.decider import Conclusion, Strategy, StrategyDefinition
from app.deliberation.outputs import Choice, Output
from app.deliberation.prompts.council import pick
from app.deliberation.specification import Parameters, Specification
from app.deliberation.strategies.strategy_run import (
    Candidate,
    Samples,
    Step,
    StrategyRun,
    asking_for,
    by_votes,
    reader,
)

ROUND = 1
PICKED_FROM_MIN = 3
# Forms in which different answers may mean the same. Different numbers or choices never do.
_OPEN_FORMS = ("text", "exact", "json")

VoteStopRule = Literal["unassailable", "beta", "none"]
"""`unassailable` never changes the winner; `beta` also stops when the leader is probably the majority."""

CERTAINTY = Fraction(95, 100)


class VoteParameters(Parameters):
    """The comparison of answers, and the rule that ends the vote."""

    normaliser: Literal["text", "number", "choice", "json", "exact", "none"] = Field(
        default="text",
        description=f"{FORMS}; with `none` nothing is counted and a call picks the most consistent answer",
    )
    options: Options = Field(default=(), description=OPTIONS)
    approaches: bool = Field(
        default=True,
        description="Give each agent another approach. Without, agents of one role get the same prompt",
    )
    stop: VoteStopRule = Field(
        default="unassailable",
        description="`unassailable`: when no rest of the votes could change the winner. `beta`: also when the leader "
        "is the true majority with 95 %. `none`: ask every agent at once",
    )


@cache
def lead_probability(first: int, second: int) -> Fraction:
    """1 - I½(v₁+1, v₂+1): the probability that the leader is ahead of the runner-up among all possible votes.

    With whole arguments the incomplete beta function is a binomial tail: I½(a, b) = P(Bin(a+b-1, ½) ≥ a).
    """
    flips = first + second + 1
    return 1 - Fraction(sum(comb(flips, heads) for heads in range(first + 1, flips + 1)), 2**flips)


def may_stop(rule: VoteStopRule, first: int, second: int, left: int, needed: int = 0) -> bool:
    """Whether the winner is settled, and also whether the votes that it `needed` are there or out of reach."""
    if left == 0:
        return True
    if rule == "none" or first < needed <= first + left:
        return False
    if first - second > left:
        return True
    return rule == "beta" and lead_probability(first, second) >= CERTAINTY


def wave(rule: VoteStopRule, first: int, second: int, left: int, needed: int = 0) -> int:
    """The fewest of the agents left that could decide the vote, if all chose the leader; 0 when it is decided.

    Asking agents one by one would need at least as many calls, so waves make exactly those calls, in fewer stages.
    """
    return next(asked for asked in range(left + 1) if may_stop(rule, first + asked, second, left - asked, needed))


def _is_hopeless(run: StrategyRun, first: int, left: int) -> bool:
    """Whether no answer can reach the agreement without which none counts."""
    constraints = run.specification.constraints
    return constraints.on_disagreement != "best" and first + left < run.needed()


def _vote(specification: Specification) -> Strategy:
    parameters = VoteParameters.model_validate(specification.parameters)
    options = parameters.options
    form = None if parameters.normaliser == "none" else parameters.normaliser
    asked = asking_for(specification, form, options) if form else specification
    run = StrategyRun(asked, read=reader(form, options) if form else None)
    may_pick = specification.size >= PICKED_FROM_MIN and parameters.normaliser in (*_OPEN_FORMS, "none")
    samples = Samples(run, alike=not parameters.approaches)
    count = tally((), specification.seed)
    while not _is_hopeless(run, count.first, samples.left):
        needed = run.needed(_leading(samples.drafts, count))
        size = wave(parameters.stop if form else "none", count.first, count.second, samples.left, needed)
        # Plans for one more wave only: most votes have no third wave.
        stages_left = 1 + (size < samples.left) + may_pick
        if not size or not (yield from samples.ask(size, stages_left)):
            break
        if form:
            count = run.count(samples.drafts)
    drafts = samples.completed()
    if len(drafts) == 1 < specification.size:
        run.degraded.append("unreviewed")
    if form:
        run.report(len(drafts) - count.votes, len(drafts), f"answers could not be read as {READ_AS[form]}")
    return (yield from _decided(run, drafts, count, parameters))


def _leading(drafts: Sequence[Candidate], count: Count) -> str | None:
    """The text of a draft with the leading answer."""
    return next((draft.text for draft in drafts if count.groups and draft.author == count.groups[0].agents[0]), None)


def _decided(
    run: StrategyRun, drafts: Sequence[Candidate], count: Count, parameters: VoteParameters
) -> Step[Conclusion]:
    """The plurality, or a call's pick where nothing is counted or no two answers in an open form agree."""
    if run.is_pair([draft.author for draft in drafts]) and (count.tie or not count.groups):
        return replace((yield from run.select(drafts, ROUND)), tally=count.tallies)
    picked = None
    if _is_hopeless(run, count.first, left=0):
        return by_votes(run, drafts, count)
    if not count.groups:
        picked = yield from _picked(run, drafts)
    elif count.first == 1 and parameters.normaliser in _OPEN_FORMS:
        picked = yield from _picked(run, [draft for draft in drafts if draft.author in count.voters])
    return by_votes(run, drafts, count, picked)


def _picked(run: StrategyRun, drafts: Sequence[Candidate]) -> Step[Candidate | None]:
    """The draft that one author finds most consistent with the others; None below three drafts or without an answer."""
    if len(drafts) < PICKED_FROM_MIN:
        return None
    seed = run.specification.seed
    by_id = {draft.id: draft for draft in drafts}
    picker = min((draft.author for draft in drafts), key=lambda author: nonce(seed, "picker", author))
    shown = arrangements(list(by_id), [picker], seed, ROUND)[picker]
    labelled = lettered(shown)
    texts = [run.shown(letter, by_id[candidate]) for letter, candidate in labelled.items()]
    call = run.call(
        run.agent(picker),
        pick(run.specification, texts),
        Output(kind="choice", labels=tuple(labelled)),
        labelled=labelled,
        judging=True,
    )
    outcomes = yield from run.ask("pick", ROUND, [call], quorum=1, stages_left=1)
    choice = outcomes.answer(call)
    if isinstance(choice, Choice):
        return by_id[labelled[choice.choice]]
    if outcomes.admitted:
        run.degraded.append("the pick is missing")
    return None


VOTE = StrategyDefinition(
    name="vote",
    version=5,
    summary="Sample in waves; normalise; plurality, stopped as soon as it is decided; a pick where all differ.",
    steps=("propose", "pick"),
    formula="≤ N, + 1 when nothing is counted or no two of 3 or more texts agree",
    source="arXiv:2203.11171, arXiv:2305.11860, arXiv:2311.17311",
    tool_calls="N",
    run=_vote,
    parameters=VoteParameters,
)
