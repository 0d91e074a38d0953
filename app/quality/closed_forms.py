"""What theory says of a council of seeded minds: closed forms, each with its derivation.

Drafts are exchangeable: a question's difficulty is drawn, then each agent is right with that probability, alone. So
most predictions have one shape: the number k of right drafts among N has a known law (`right_drafts`), and given k the
method is right with a probability that does not depend on who is right: Σ P(k)·g(k) (`expected`).

There are two answers, right and wrong, unless a function says otherwise.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import comb, exp, lgamma

Law = Sequence[float]
"""P(k) for k = 0 … N."""


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


def orders_agree(judge: float, bias: float) -> float:
    """How often both orders name the same winner, of one right and one wrong candidate.

    The judge names the right one with probability q+b where it stands first and q-b where it stands second, so both
    name it with (q+b)(q-b), and both the wrong one with (1-q-b)(1-q+b).
    """
    return pair_won(judge, bias) + pair_lost(judge, bias)


def pair_won(judge: float, bias: float) -> float:
    """How often the right one of two wins in both orders."""
    return (judge + bias) * (judge - bias)


def pair_lost(judge: float, bias: float) -> float:
    """How often the wrong one of two wins in both orders."""
    return (1 - judge - bias) * (1 - judge + bias)


def right_when_consistent(judge: float, bias: float) -> float:
    """How often the winner is right, where both orders agree."""
    return pair_won(judge, bias) / orders_agree(judge, bias)


def selected_by_one_mind(law: Law, judge: float) -> float:
    """How often selection is right when all reviewers share one mind, which is right with q.

    A right mind puts every right candidate above every wrong one, a wrong mind the reverse. With three authors or
    more every two candidates are seen by someone who wrote neither, so in the Borda average the whole upper kind
    leads: the winner is right if some candidate is, or with a wrong mind if all are.
    """
    return selected_of_versions(law, kept=1.0, mended=0.0, judge=judge)


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


def selected_of_versions(law: Law, kept: float, mended: float, judge: float) -> float:
    """How often selection by reviewers of one mind is right, of N drafts and as many last versions.

    `selected_by_one_mind` needs two chances: that some text is right, which is missed when all drafts are wrong and
    none was mended; and that all are, when all drafts are right and each was kept.
    """
    agents = len(law) - 1
    some = 1 - law[0] * (1 - mended) ** agents
    all_ = law[-1] * kept**agents
    return judge * some + (1 - judge) * all_
