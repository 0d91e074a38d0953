"""Closed forms that predict a council of simulated agents, each with its derivation.

Drafts are exchangeable: given a question's difficulty, each agent is independently right with the same probability. So
most predictions are Σ P(k)·g(k) (`expected`). The number k of right drafts among N has a known distribution, and g(k)
is the probability that the method is then right. There are two answers unless a function says otherwise.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import comb, exp, factorial, lgamma, prod

Distribution = Sequence[float]
"""P(k) for k = 0 … N."""
StopsAt = Callable[[int, int, int], bool]
"""Whether a vote stops: votes for the first, votes for the second, agents not asked yet."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """How often a method is right, and its mean number of calls."""

    right: float
    calls: float


def right_drafts(agents: int, accuracy: float, correlation: float = 0.0) -> Distribution:
    """The distribution of the number of right drafts: beta-binomial with pairwise correlation ρ, binomial at ρ = 0.

    A question's difficulty is Beta(α, β) (`beta_shape`): its mean is p, and two agents' answers correlate with
    1/(α+β+1) = ρ. Ladha, American Journal of Political Science 36 (1992), on correlated juries.
    """
    if correlation == 0.0:
        return [comb(agents, k) * accuracy**k * (1 - accuracy) ** (agents - k) for k in range(agents + 1)]
    alpha, beta = beta_shape(accuracy, correlation)
    return [
        comb(agents, k) * exp(_log_beta(k + alpha, agents - k + beta) - _log_beta(alpha, beta))
        for k in range(agents + 1)
    ]


def beta_shape(accuracy: float, correlation: float) -> tuple[float, float]:
    """α = p(1-ρ)/ρ and β = (1-p)(1-ρ)/ρ of the difficulty's distribution; `correlation` is in (0, 1)."""
    scale = (1 - correlation) / correlation
    return accuracy * scale, (1 - accuracy) * scale


def common_cause(agents: int, accuracy: float, correlation: float) -> Distribution:
    """The distribution if, with probability ρ, one common cause decides for all agents, and else each is independent.

    The pairwise correlation ρ equals the beta-binomial's, but the distribution and a vote's accuracy differ.
    """
    distribution = [(1 - correlation) * each for each in right_drafts(agents, accuracy)]
    distribution[0] += correlation * (1 - accuracy)
    distribution[-1] += correlation * accuracy
    return distribution


def expected(distribution: Distribution, given: Callable[[int], float]) -> float:
    """Σ P(k)·g(k)."""
    return sum(chance * given(k) for k, chance in enumerate(distribution))


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def plurality(distribution: Distribution) -> float:
    """How often the right answer has most votes; a tie is a coin flip. Condorcet (1785), Ladha (1992)."""
    agents = len(distribution) - 1
    return expected(distribution, lambda k: 1.0 if 2 * k > agents else 0.5 if 2 * k == agents else 0.0)


def beta_confidence(first: int, second: int) -> float:
    """1 - I½(v₁+1, v₂+1): the probability that the leader finally beats the second, under a uniform prior.

    For whole numbers the incomplete beta function is a binomial tail: I½(a, b) = P(Bin(a+b-1, ½) ≥ a).
    Adaptive-Consistency, arXiv:2305.11860.
    """
    trials = first + second + 1
    tail = sum(comb(trials, successes) for successes in range(first + 1, trials + 1))
    return float(1 - Fraction(tail, 2**trials))


def plurality_of_many(agents: int, accuracy: float, wrong_answers: int) -> float:
    """How often the right answer of independent agents has most votes, among several equally likely wrong ones.

    The sum over all outcomes of the vote; tied leaders win equally often.
    """
    chances = [accuracy, *[(1 - accuracy) / wrong_answers] * wrong_answers]
    total = 0.0
    for votes in product(range(agents + 1), repeat=len(chances)):
        if sum(votes) == agents and votes[0] == max(votes):
            ways = factorial(agents) // prod(map(factorial, votes))
            total += ways * prod(map(pow, chances, votes)) / votes.count(votes[0])
    return total


def unassailable(first: int, second: int, left: int) -> bool:
    """v₁ - v₂ > N - n: the remaining votes cannot level the second."""
    return first - second > left


def beta_rule(first: int, second: int, left: int) -> bool:
    """Unassailable, or the leader finally wins with a probability of 95 %."""
    return unassailable(first, second, left) or beta_confidence(first, second) >= 0.95


def stopped_vote(agents: int, accuracy: float, stops: StopsAt) -> Prediction:
    """A vote of independent agents, asked one by one until the rule stops: a walk over the counts (right, wrong)."""
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
    return Prediction(right, calls)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The chances that enough agree, that they are right as well, and the mean number of calls."""

    covered: float
    right: float
    calls: float


_Votes = dict[tuple[int, tuple[int, ...]], float]
"""Chances by the votes for the right answer, and for each wrong one that was given."""


def agreed(agents: int, accuracy: float, wrong_answers: int, needed: int) -> Agreement:
    """A vote of independent agents that ends once the winner and its agreement are settled, or none can be reached.

    Agents are asked in waves: each is the smallest that would settle it if all of the wave chose the leader. Wrong
    answers are equally likely.
    """
    waiting: dict[int, _Votes] = {0: {(0, ()): 1.0}}
    covered = right = calls = 0.0
    while waiting:
        asked = min(waiting)
        for (yes, wrong), chance in waiting.pop(asked).items():
            second, first = sorted((0, yes, *wrong))[-2:]
            left = agents - asked
            wave = next(more for more in range(left + 1) if _settled(first + more, second, left - more, needed))
            if not wave or first + left < needed:
                calls += chance * asked
                covered += chance * (first >= needed)
                right += chance * (yes >= needed)
                continue
            onward: _Votes = {(yes, wrong): chance}
            for _ in range(wave):
                onward = _one_more(onward, accuracy, wrong_answers)
            later = waiting.setdefault(asked + wave, {})
            for votes, portion in onward.items():
                later[votes] = later.get(votes, 0.0) + portion
    return Agreement(covered, right, calls)


def _settled(first: int, second: int, left: int, needed: int) -> bool:
    return left == 0 or (first - second > left and (first >= needed or first + left < needed))


def _one_more(walk: _Votes, accuracy: float, wrong_answers: int) -> _Votes:
    onward: _Votes = defaultdict(float)
    for (yes, wrong), chance in walk.items():
        onward[yes + 1, wrong] += chance * accuracy
        for place, votes in enumerate(wrong):
            more = tuple(sorted((*wrong[:place], votes + 1, *wrong[place + 1 :])))
            onward[yes, more] += chance * (1 - accuracy) / wrong_answers
        unseen = wrong_answers - len(wrong)
        onward[yes, tuple(sorted((*wrong, 1)))] += chance * (1 - accuracy) * unseen / wrong_answers
    return onward


def selected_by_independent_reviewers(agents: int, judge: float) -> Callable[[int], float]:
    """g(k): how often listwise selection is right given k right drafts, when reviewers are independently right with q.

    A reviewer ranks the N-1 others: the right ones above the wrong ones if it is right, else the reverse. Equal
    candidates share the mean of their positions. So a candidate's Borda average depends on its kind, its author's
    judgement, and the number of right reviewers of each kind. This leaves two binomial sums. ValueError if the best
    right and the best wrong one can tie: then there is no closed form.
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
    # (is the reviewer's draft right, does the reviewer judge rightly) → number of such reviewers
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


def kept_and_repaired(fix: float, harm: float, rounds: int) -> tuple[float, float]:
    """The probabilities that a right and a wrong draft are right after `rounds` revisions.

    A Markov chain with two states: each round a wrong text becomes right with u, a right one wrong with h. Its second
    eigenvalue is 1-u-h, its limit u/(u+h). For (1-p)u = ph revision is a martingale and adds nothing
    (arXiv:2508.17536).
    """
    if fix + harm == 0:
        return 1.0, 0.0
    limit, fading = fix / (fix + harm), (1 - fix - harm) ** rounds
    return limit + (1 - limit) * fading, limit * (1 - fading)


def selected_of_versions(agents: int, kept: float, repaired: float, judge: float) -> Callable[[int], float]:
    """g(k): how often selection by identical reviewers is right among N drafts, k of them right, and N last versions.

    All reviewers judge rightly with q, and then rank every right text above every wrong one, else the reverse. With at
    least three authors every two texts have a common reviewer, so the upper kind leads the Borda average. The winner is
    right if some text is, or under wrong judgement if all are. No text is right if all drafts are wrong and none was
    repaired; all are right if every draft is right and was kept. Without revisions `kept` is 1 and `repaired` 0.
    """

    def given(k: int) -> float:
        some = 1 - (k == 0) * (1 - repaired) ** agents
        all_ = (k == agents) * kept**agents
        return judge * some + (1 - judge) * all_

    return given


def debated(distribution: Distribution, agreement: float, fix: float, harm: float) -> Prediction:
    """One round of debate about two answers: only dissenters speak, and first and last answers vote.

    With a plurality only the minority speaks, and the plurality keeps its first and last votes: it wins as without
    debate. Only in a tie all speak; then right answers become wrong with h, wrong ones right with u, and the last votes
    decide.
    """
    agents = len(distribution) - 1
    right = calls = 0.0
    for k, chance in enumerate(distribution):
        leaders = max(k, agents - k)
        if leaders >= agreement * agents:
            right, calls = right + chance * (k == leaders), calls + chance * agents
        elif 2 * k != agents:
            right, calls = right + chance * (k == leaders), calls + chance * (2 * agents - leaders)
        else:
            right, calls = right + chance * _after_a_draw(k, fix, harm), calls + chance * 2 * agents
    return Prediction(right, calls)


def _after_a_draw(side: int, fix: float, harm: float) -> float:
    """How often right answers win after `side` right and `side` wrong ones have spoken; a tie is a coin flip."""
    kept, won = right_drafts(side, 1 - harm), right_drafts(side, fix)
    return sum(
        kept[one] * won[other] * (0.5 if one + other == side else one + other > side)
        for one in range(side + 1)
        for other in range(side + 1)
    )


def unanimous(agents: int, k: int, first: int) -> tuple[float, float]:
    """The probabilities that the `first` agents are all right, and all wrong, given k right drafts.

    Drafts are exchangeable, so all subsets of that size are equally likely.
    """
    ways = comb(agents, first)
    return comb(k, first) / ways, comb(agents - k, first) / ways


def escalated(distribution: Distribution, first: int, given: Callable[[int], float], calls: float) -> Prediction:
    """The `first` drafts if unanimous; else another method on all drafts, right with g(k), in `calls` calls."""
    agents = len(distribution) - 1
    right = asked = 0.0
    for k, chance in enumerate(distribution):
        yes, no = unanimous(agents, k, first)
        right += chance * (yes + (1 - yes - no) * given(k))
        asked += chance * ((yes + no) * first + (1 - yes - no) * calls)
    return Prediction(right, asked)


def tested_by_two(agents: int, tester: float) -> Callable[[int], float]:
    """g(k): how often the best of N programs is right, k of them right, under two written tests, each right with t.

    Two right tests pass the right programs. Two wrong tests pass the wrong ones, so a right one wins only if there is
    no wrong one. A right and a wrong test pass one group each, and the larger group wins as in a vote (CodeT,
    arXiv:2207.10397).
    """

    def given(k: int) -> float:
        split = 1.0 if 2 * k > agents else 0.5 if 2 * k == agents else 0.0
        return tester**2 * (k > 0) + (1 - tester) ** 2 * (k == agents) + 2 * tester * (1 - tester) * split

    return given
