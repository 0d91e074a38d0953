"""`tournament`: propose; members that wrote neither judge each pair in both orders; Bradley-Terry ranks.

A round robin with Bradley-Terry ranks more reliably than comparisons with one baseline; swiss rounds come close for
fewer calls (arXiv:2502.14074). A knockout drops each pair's loser (arXiv:2501.13007).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import chain, combinations
from math import ceil
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from app.deliberation.calls import Call
from app.deliberation.choice import pairings
from app.deliberation.choice.ballots import Ranked
from app.deliberation.choice.comparisons import Comparison, agreement, beaten, dissent, ranked, rates
from app.deliberation.choice.pairings import Judges, Pairing
from app.deliberation.decider import Conclusion, Strategy, StrategyDefinition
from app.deliberation.outputs import Pair
from app.deliberation.specification import Parameters, Specification
from app.deliberation.strategies.strategy_run import Candidate, Step, StrategyRun


class TournamentParameters(Parameters):
    """The pairing of the candidates."""

    format: Literal["round_robin", "swiss", "knockout"] = Field(
        default="round_robin",
        description="round_robin: each candidate meets every other; swiss: it meets the nearest in the standing, for "
        "some rounds; knockout: the loser of a pair is out",
    )
    rounds_of_pairs: int | None = Field(
        default=None,
        ge=1,
        le=16,
        description="Rounds of a swiss tournament, and of no other: half as many as there are candidates at most, "
        "rounded up. The binary logarithm of their number, rounded up, if absent",
    )

    @field_validator("rounds_of_pairs")
    @classmethod
    def _of_a_swiss(cls, rounds: int | None, info: ValidationInfo) -> int | None:
        if rounds is not None and info.data.get("format", "swiss") != "swiss":
            raise ValueError("only a swiss tournament takes it: leave it out, or ask for the format swiss")
        return rounds

    def rounds(self, candidates: int) -> int:
        if self.format == "round_robin":
            return 1
        if self.format == "knockout" or self.rounds_of_pairs is None:
            return pairings.knockout_rounds(candidates)
        return min(self.rounds_of_pairs, pairings.swiss_rounds_max(candidates))


def _tournament(specification: Specification) -> Strategy:
    run = StrategyRun(specification)
    rounds = TournamentParameters.model_validate(specification.parameters).rounds(specification.size)
    drafts = yield from run.propose(stages_left=1 + rounds)
    return (yield from continue_from(run, drafts))


def continue_from(run: StrategyRun, drafts: Sequence[Candidate]) -> Step[Conclusion]:
    """Compare these drafts, one of each author, as the specification's parameters say, and rank them.

    A council of two has no neutral judge: each member scores the other's draft.
    """
    specification = run.specification
    by_id = {draft.id: draft for draft in drafts}
    if len(by_id) == 1 or specification.size == 2 or run.is_pair([draft.author for draft in drafts]):
        return (yield from run.select(drafts, round=1))
    parameters = TournamentParameters.model_validate(specification.parameters)
    rounds = parameters.rounds(len(by_id))
    drawn = pairings.bracket(list(by_id), specification.seed)
    tokens = {draft.id: draft.tokens for draft in drafts}
    played: list[list[Pairing]] = []
    comparisons: list[Comparison] = []
    load = Counter[str]()
    for round in range(1, rounds + 1):
        match parameters.format:
            case "round_robin":
                pairs = list(combinations(drawn, 2))
            case "swiss":
                standing = _rates(tuple(drawn), tuple(comparisons))
                pairs = pairings.swiss_round(sorted(drawn, key=lambda candidate_id: -standing[candidate_id]), played)
            case "knockout":
                out = {beaten(pair, comparisons, tokens, specification.seed) for earlier in played for pair in earlier}
                pairs = pairings.knockout_round([candidate_id for candidate_id in drawn if candidate_id not in out])
        judged = yield from _judged(run, by_id, pairs, load, round, stages_left=rounds - round + 1)
        if judged is None:
            break
        played.append(pairs)
        comparisons += judged
    asked = 2 * sum(map(len, played))
    run.report(asked - len(comparisons), asked, "comparisons are missing")
    return _concluded(run, by_id, comparisons, ranked(drawn, comparisons, tokens, specification.seed))


def _judged(
    run: StrategyRun,
    by_id: Mapping[str, Candidate],
    pairs: Sequence[Pairing],
    load: Counter[str],
    round: int,
    stages_left: int,
) -> Step[list[Comparison] | None]:
    """One round: each pair in both orders, all at once. Missing verdicts are absent. None: it was refused.

    The authors judge; of two authors, members without a draft judge.
    """
    specification = run.specification
    authors = {candidate.author for candidate in by_id.values()}
    members = [agent.agent_id for agent in specification.agents if len(authors) == 2 or agent.agent_id in authors]
    calls: list[Call] = []
    parts = Counter[str]()
    dealt = _dealt(tuple(pairs), tuple(members), tuple(sorted(load.items())), specification.seed, round)
    load.update(chain.from_iterable(dealt))
    for pair, both in zip(pairs, dealt, strict=True):
        for judge, (a, b) in zip(both, (pair, pair[::-1]), strict=True):
            parts[judge] += 1
            calls.append(run.pair_call(judge, by_id[a], by_id[b], parts[judge]))
    # The same share of the calls as the quorum is of the council, and never a single order.
    quorum = max(2, ceil(Fraction(len(calls) * specification.quorum, specification.size)))
    outcomes = yield from run.ask("judge", round, calls, quorum=quorum, stages_left=stages_left)
    if not outcomes.admitted:
        return None
    return [
        Comparison(call.agent_id, (call.labels["A"], call.labels["B"]), call.labels.get(said.winner))
        for call, said in outcomes.answers(calls, Pair)
    ]


# Every decision replays the strategy; its earlier rounds do not change. These two functions take most of the time.
_rates = lru_cache(maxsize=64)(rates)


@lru_cache(maxsize=64)
def _dealt(
    pairs: tuple[Pairing, ...], members: tuple[str, ...], load: tuple[tuple[str, int], ...], seed: int, round: int
) -> Sequence[Judges]:
    return pairings.judges(pairs, members, Counter(dict(load)), seed, round)


def _concluded(
    run: StrategyRun, by_id: Mapping[str, Candidate], comparisons: Sequence[Comparison], ranking: Ranked
) -> Conclusion:
    if not comparisons:
        run.degraded.append("unscored")
    return run.conclude(
        [(by_id[candidate_id], ranking.scores[candidate_id]) for candidate_id in ranking.order],
        margin=ranking.margin,
        tie=ranking.tie,
        dissent=dissent(comparisons, ranking.order[0]),
        agreement=agreement(comparisons, ranking.order),
    )


TOURNAMENT = StrategyDefinition(
    name="tournament",
    version=4,
    summary="Propose; pairs are judged in both orders by others than their authors; Bradley-Terry ranks.",
    steps=("propose", "judge × rounds of pairs", "score instead, when N is 2"),
    formula="round_robin N + N(N-1), swiss N + 2⌊N/2⌋·min(W, ⌈N/2⌉), knockout N + 2(N-1); 1 when N is 1",
    source="arXiv:2502.14074, arXiv:2501.13007, arXiv:2306.05685",
    tool_calls="N",
    run=_tournament,
    parameters=TournamentParameters,
)
