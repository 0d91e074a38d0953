"""What theory says of a council of seeded minds: closed forms, each with its derivation.

Drafts are exchangeable: a question's difficulty is drawn, then each agent is right with that probability, alone. So
most predictions have one shape: the number k of right drafts among N has a known law (`right_drafts`), and given k the
method is right with a probability that does not depend on who is right: Σ P(k)·g(k) (`expected`).

There are two answers, right and wrong, unless a function says otherwise.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import comb, exp, factorial, lgamma, prod

Law = Sequence[float]
"""P(k) for k = 0 … N."""
StopsAt = Callable[[int, int, int], bool]
"""Whether a vote stops with so many for the first, for the second, and agents not asked yet."""


def right_drafts(agents: int, accuracy: float, correlation: float = 0.0) -> Law:
    """The law of the number of right drafts: beta-binomial with pairwise correlation ρ, binomial at ρ = 0.

    A question's difficulty is Beta(α, β) with α = p(1-ρ)/ρ, β = (1-p)(1-ρ)/ρ: its mean is p, and two agents' answers
    correlate with 1/(α+β+1) = ρ. Ladha, American Journal of Political Science 36 (1992), on correlated juries.
    """
    if correlation == 0.0:
        return [comb(agents, k) * accuracy**k * (1 - accuracy) ** (agents - k) for k in range(agents + 1)]
    alpha, beta = beta_shape(accuracy, correlation)
    return [
        comb(agents, k) * exp(_log_beta(k + alpha, agents - k + beta) - _log_beta(alpha, beta))
        for k in range(agents + 1)
    ]


def beta_shape(accuracy: float, correlation: float) -> tuple[float, float]:
    """α and β of the difficulty's law; `correlation` above 0 and below 1."""
    scale = (1 - correlation) / correlation
    return accuracy * scale, (1 - accuracy) * scale


def common_cause(agents: int, accuracy: float, correlation: float) -> Law:
    """The law when, with probability ρ, one common cause decides for all agents, and else each answers alone.

    The pairwise correlation is ρ, as of the beta-binomial; the law is another, and so is what a vote makes of it.
    """
    law = [(1 - correlation) * each for each in right_drafts(agents, accuracy)]
    law[0] += correlation * (1 - accuracy)
    law[-1] += correlation * accuracy
    return law


def expected(law: Law, given: Callable[[int], float]) -> float:
    """Σ P(k)·g(k)."""
    return sum(chance * given(k) for k, chance in enumerate(law))


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def plurality(law: Law) -> float:
    """How often the right answer has most votes; equal votes are a coin flip. Condorcet (1785), Ladha (1992)."""
    agents = len(law) - 1
    return expected(law, lambda k: 1.0 if 2 * k > agents else 0.5 if 2 * k == agents else 0.0)


def beta_confidence(first: int, second: int) -> float:
    """1 - I½(v₁+1, v₂+1): the chance that the leader is ahead of the second in the end, under a uniform prior.

    For whole numbers the incomplete beta function is a binomial tail: I½(a, b) = P(Bin(a+b-1, ½) ≥ a).
    Adaptive-Consistency, arXiv:2305.11860.
    """
    trials = first + second + 1
    tail = sum(comb(trials, successes) for successes in range(first + 1, trials + 1))
    return float(1 - Fraction(tail, 2**trials))


def plurality_of_many(agents: int, accuracy: float, wrong_answers: int) -> float:
    """How often the right answer has most votes where the wrong ones are several and equally likely, agents alone.

    The sum over all ways in which the votes can fall; of equal leaders each wins as often.
    """
    chances = [accuracy, *[(1 - accuracy) / wrong_answers] * wrong_answers]
    total = 0.0
    for votes in product(range(agents + 1), repeat=len(chances)):
        if sum(votes) == agents and votes[0] == max(votes):
            ways = factorial(agents) // prod(map(factorial, votes))
            total += ways * prod(map(pow, chances, votes)) / votes.count(votes[0])
    return total


@dataclass(frozen=True, slots=True)
class Stopping:
    """What a vote that may stop early gives: how often it is right, and how many it asks in the mean."""

    right: float
    calls: float


def unassailable(first: int, second: int, left: int) -> bool:
    """v₁ - v₂ > N - n: the rest cannot bring the second level."""
    return first - second > left


def beta_rule(first: int, second: int, left: int) -> bool:
    """Unassailable, or the leader is ahead in the end with 95 %."""
    return unassailable(first, second, left) or beta_confidence(first, second) >= 0.95


def stopped_vote(agents: int, accuracy: float, stops: StopsAt) -> Stopping:
    """A vote of independent agents, asked one by one until the rule stops it: a walk over the counts (right, wrong)."""
    walk, right, calls = {(0, 0): 1.0}, 0.0, 0.0
    for asked in range(1, agents + 1):
        onward: dict[tuple[int, int], float] = defaultdict(float)
        for (yes, no), chance in walk.items():
            onward[yes + 1, no] += chance * accuracy
            onward[yes, no + 1] += chance * (1 - accuracy)
        walk = {}
        for (yes, no), chance in onward.items():
            if asked == agents or stops(max(yes, no), min(yes, no), agents - asked):
                calls += chance * asked
                right += chance * (0.5 if yes == no else yes > no)
            else:
                walk[yes, no] = chance
    return Stopping(right, calls)


def selected_by_one_mind(agents: int, judge: float) -> Callable[[int], float]:
    """g(k): how often selection is right when all reviewers share one mind, which is right with q.

    A right mind puts every right candidate above every wrong one, a wrong mind the reverse. With three authors or
    more every two candidates are seen by someone who wrote neither, so in the Borda average the whole upper kind
    leads: the winner is right if some candidate is, or with a wrong mind if all are.
    """
    return selected_of_versions(agents, kept=1.0, mended=0.0, judge=judge)


def selected_by_many(agents: int, judge: float) -> Callable[[int], float]:
    """g(k): how often listwise selection is right given k right drafts, when each reviewer is right with q, alone.

    A reviewer sees the N-1 others. Right, it puts the right ones above the wrong ones, else the reverse; equal
    candidates share their places' mean. So a candidate's Borda average depends only on its own kind, on how many
    reviewers of either kind are right, and on whether its own author, who does not vote on it, is among them. Two
    binomial sums are left. ValueError where the best right and the best wrong one can tie: the form ends there.
    """

    def given(k: int) -> float:
        if k in (0, agents):
            return float(k == agents)
        total = 0.0
        for true_right in range(k + 1):
            for true_wrong in range(agents - k + 1):
                chance = (
                    comb(k, true_right)
                    * comb(agents - k, true_wrong)
                    * judge ** (true_right + true_wrong)
                    * (1 - judge) ** (agents - true_right - true_wrong)
                )
                total += chance * _right_leads(agents, k, true_right, true_wrong)
        return total

    return given


def _right_leads(agents: int, k: int, true_right: int, true_wrong: int) -> bool:
    others = agents - 1
    # (is the reviewer's own draft right, is the reviewer right) → how many reviewers there are of the kind
    reviewers = {
        (True, True): true_right,
        (True, False): k - true_right,
        (False, True): true_wrong,
        (False, False): agents - k - true_wrong,
    }

    def value(shown_is_right: bool, author_is_right: bool, true: bool) -> Fraction:
        right_shown = k - author_is_right
        size = right_shown if shown_is_right else others - right_shown
        on_top = shown_is_right == true
        first = 0 if on_top else others - size
        return 1 - Fraction(2 * first + size - 1, 2 * (others - 1))

    def best(is_right: bool) -> Fraction:
        averages: list[Fraction] = []
        for own_reviewer in ((is_right, True), (is_right, False)):
            if not reviewers[own_reviewer]:
                continue
            voting = {kind: count - (kind == own_reviewer) for kind, count in reviewers.items()}
            points = sum((count * value(is_right, *kind) for kind, count in voting.items() if count), Fraction())
            averages.append(points / others)
        return max(averages)

    right, wrong = best(True), best(False)
    if right == wrong:
        raise ValueError(f"with {agents} agents and {k} right drafts the ballots can tie")
    return right > wrong


def kept_and_mended(fix: float, harm: float, rounds: int) -> tuple[float, float]:
    """A text's chain of revisions: how often a right draft is right after `rounds`, and how often a wrong one is.

    Two states; each round a wrong text is mended with u and a right one spoilt with h. The chain's second eigenvalue
    is 1-u-h, its limit u/(u+h). Where (1-p)u = ph it stands still in the mean: revision is then a martingale and
    adds nothing (arXiv:2508.17536).
    """
    if fix + harm == 0:
        return 1.0, 0.0
    limit, fading = fix / (fix + harm), (1 - fix - harm) ** rounds
    return limit + (1 - limit) * fading, limit * (1 - fading)


def selected_of_versions(agents: int, kept: float, mended: float, judge: float) -> Callable[[int], float]:
    """g(k): how often selection by reviewers of one mind is right, of N drafts, k of them right, and N last versions.

    `selected_by_one_mind` needs two chances: that some text is right, which is missed when all drafts are wrong and
    none was mended; and that all are, when all drafts are right and each was kept.
    """

    def given(k: int) -> float:
        some = 1 - (k == 0) * (1 - mended) ** agents
        all_ = (k == agents) * kept**agents
        return judge * some + (1 - judge) * all_

    return given


@dataclass(frozen=True, slots=True)
class Debated:
    """What one round of debate gives: how often it is right, and its calls in the mean."""

    right: float
    calls: float


def debated(law: Law, agreement: float, fix: float, harm: float) -> Debated:
    """One round of debate about two answers, where only dissenters speak, and first and last answers vote.

    With a plurality, only the minority speaks, and whatever it says the plurality keeps its first and last votes: it
    wins as it would have won without debate. Only where the first place is shared do all speak; then each right one is
    lost with h and each wrong one won with u, and the last votes decide.
    """
    agents = len(law) - 1
    right = calls = 0.0
    for k, chance in enumerate(law):
        leaders = max(k, agents - k)
        if leaders >= agreement * agents:
            right, calls = right + chance * (k == leaders), calls + chance * agents
        elif 2 * k != agents:
            right, calls = right + chance * (k == leaders), calls + chance * (2 * agents - leaders)
        else:
            right, calls = right + chance * _after_a_draw(k, fix, harm), calls + chance * 2 * agents
    return Debated(right, calls)


def _after_a_draw(side: int, fix: float, harm: float) -> float:
    """How often right answers win when `side` right and `side` wrong ones have all spoken; a draw is a coin flip."""
    kept, won = right_drafts(side, 1 - harm), right_drafts(side, fix)
    return sum(
        kept[one] * won[other] * (0.5 if one + other == side else one + other > side)
        for one in range(side + 1)
        for other in range(side + 1)
    )


def unanimous(agents: int, k: int, first: int) -> tuple[float, float]:
    """How often the first few of the agents are all right, and all wrong, given k right drafts.

    Drafts are exchangeable: any `first` of them are as likely to be the first ones.
    """
    ways = comb(agents, first)
    return comb(k, first) / ways, comb(agents - k, first) / ways


@dataclass(frozen=True, slots=True)
class Escalated:
    """What drafts that may be unanimous give: how often the verdict is right, and its calls in the mean."""

    right: float
    calls: float


def escalated(law: Law, first: int, given: Callable[[int], float], calls: float) -> Escalated:
    """The first drafts, taken if unanimous; else another method on all drafts, right with g(k), of so many calls."""
    agents = len(law) - 1
    right = asked = 0.0
    for k, chance in enumerate(law):
        yes, no = unanimous(agents, k, first)
        right += chance * (yes + (1 - yes - no) * given(k))
        asked += chance * ((yes + no) * first + (1 - yes - no) * calls)
    return Escalated(right, asked)


def tested_by_two(agents: int, tester: float) -> Callable[[int], float]:
    """g(k): how often the best of N programs is right, k of them right, under two written tests, each right with t.

    Two right tests, which are one, pass the right programs; two wrong ones the wrong ones, which leads to a right one
    only if there is no wrong one. A right and a wrong test pass a group each, and the larger group leads: agreement
    then decides as a vote does (CodeT, arXiv:2207.10397).
    """

    def given(k: int) -> float:
        split = 1.0 if 2 * k > agents else 0.5 if 2 * k == agents else 0.0
        return tester**2 * (k > 0) + (1 - tester) ** 2 * (k == agents) + 2 * tester * (1 - tester) * split

    return given
