"""`council`: propose, criticise, let the author revise, score old and new versions, rank.

Only the author revises, and only on a major issue or blocker, because free revision flips right answers to wrong ones
(arXiv:2509.05396). First and last versions are scored, so that a harmful revision loses and a
ballot has at most 2(N-1) candidates whatever the rounds. Rounds
end early, because more of them tend to hurt (arXiv:2502.19130). A round begins only if the budget also holds its
revisions and the scores.
"""

from collections.abc import Collection, Mapping, Sequence

from pydantic import Field

from app.deliberation.budget import BYTES_PER_TOKEN, predicted, priced
from app.deliberation.calls import Call, Cost
from app.deliberation.choice.aggregation import Aggregation
from app.deliberation.choice.anonymity import nonce, ring
from app.deliberation.choice.ballots import Ballot, mean_scores
from app.deliberation.choice.ballots import author as author_of
from app.deliberation.choice.critiques import CritiqueStopRule, RoundScores, demanded, ends_rounds, is_settled
from app.deliberation.decider import Conclusion, Strategy, StrategyDefinition
from app.deliberation.outputs import Critique, Issue, Output
from app.deliberation.prompts.council import critique, revise, score
from app.deliberation.prompts.form import Labelled
from app.deliberation.specification import Parameters, Specification
from app.deliberation.strategies.strategy_run import Candidate, Step, StrategyRun, ballot_tokens, tool_uses, written

# The longest label, in a prompt's list of labels and between candidates.
_PER_CANDIDATE = "AA, \n\n"


class CouncilParameters(Parameters):
    """The number of critics, when rounds end early, and how scores are counted."""

    critics: int = Field(
        default=1, ge=1, le=8, description="Critics of each candidate in a round; all the others where there are fewer"
    )
    stop: CritiqueStopRule = Field(
        default="no_major",
        description="When rounds end before the last. no_major: no major issue or blocker is open. accepted: all "
        "critics accept, and authors revise on minor issues too. settled: no_major, or a round's scores show neither a "
        "gain nor another ranking (N more calls a round). none: never",
    )
    aggregation: Aggregation = Field(default="borda", description="How the scores are counted into one ranking")

    def stages(self, rounds: int) -> int:
        return 3 * rounds if self.stop == "settled" and rounds else 2 * rounds + 1


def _council(specification: Specification) -> Strategy:
    run = StrategyRun(specification)
    parameters = CouncilParameters.model_validate(specification.parameters)
    drafts = yield from run.propose(stages_left=1 + parameters.stages(specification.rounds))
    return (yield from continue_from(run, drafts))


def continue_from(run: StrategyRun, drafts: Sequence[Candidate]) -> Step[Conclusion]:
    run.texts_first = True
    specification = run.specification
    parameters = CouncilParameters.model_validate(specification.parameters)
    latest = {draft.author: draft for draft in drafts}
    # Two authors below the quorum are judged as a pair, which shows one version of each, so they do not revise.
    rounds = 0 if len(latest) == 1 or run.is_pair(list(latest)) else specification.rounds
    scored: tuple[list[Candidate], list[Ballot]] | None = None
    scores: RoundScores | None = None
    for round in range(1, rounds + 1):
        left = parameters.stages(rounds - round + 1)
        critiques = yield from _criticised(run, drafts, latest, parameters.critics, round, left)
        if critiques is None or ends_rounds(
            [critique for by_critics in critiques.values() for critique in by_critics], parameters.stop
        ):
            break
        issues = demanded(critiques, parameters.stop)
        if not issues:
            continue
        revised = yield from _revised(run, drafts, latest, issues, round, left - 1)
        if revised is None:
            break
        latest.update(revised)
        if parameters.stop == "settled":
            versions = _versions(drafts, latest)
            ballots = yield from run.scored(versions, round, left - 2)
            if not ballots:
                break
            ranked = run.ranked(versions, ballots, parameters.aggregation)
            before, scores = scores, RoundScores(ranked.order, mean_scores(ballots, specification.constraints.rubric))
            scored = versions, ballots
            if is_settled(before, scores):
                break
    if scored is not None:
        return run.concluded(*scored, parameters.aggregation)
    versions = _versions(drafts, latest)
    last = specification.rounds + 1
    return (yield from run.select(versions, last, aggregation=parameters.aggregation))


def _versions(drafts: Sequence[Candidate], latest: Mapping[str, Candidate]) -> list[Candidate]:
    return [*drafts, *(candidate for candidate in latest.values() if candidate.version > 0)]


def _criticised(
    run: StrategyRun,
    drafts: Sequence[Candidate],
    latest: Mapping[str, Candidate],
    critics: int,
    round: int,
    stages_left: int,
) -> Step[dict[str, list[Critique]] | None]:
    """The critiques of each author's latest version; missing ones are absent. None: it was refused."""
    specification = run.specification
    calls: list[Call] = []
    for critic, authors in ring(list(latest), critics, specification.seed, round).items():
        for part, author in enumerate(authors, start=1):
            candidate = latest[author]
            calls.append(
                run.call(
                    run.agent(critic),
                    critique(specification, run.shown("A", candidate)),
                    Output(kind="critique"),
                    labelled={"A": candidate.id},
                    judging=True,
                    part=part if len(authors) > 1 else None,
                    tools=True,
                )
            )
    # The quorum scales with the number of critics per author.
    quorum = min(specification.quorum * len(calls) // len(latest), len(calls))
    reserve = _revising(run, latest, calls) + _scoring(run, _versions(drafts, latest), coming=latest)
    outcomes = yield from run.ask("critique", round, calls, quorum=quorum, stages_left=stages_left, reserve=reserve)
    if not outcomes.admitted:
        return None
    critiques: dict[str, list[Critique]] = {}
    written = outcomes.answers(calls, Critique)
    for call, criticism in written:
        critiques.setdefault(author_of(call.labels["A"]), []).append(criticism)
    run.report(len(calls) - len(written), len(calls), f"critiques of round {round} are missing")
    return critiques


def _revised(
    run: StrategyRun,
    drafts: Sequence[Candidate],
    latest: Mapping[str, Candidate],
    issues: Mapping[str, list[Issue]],
    round: int,
    stages_left: int,
) -> Step[dict[str, Candidate] | None]:
    specification = run.specification
    calls: list[Call] = []
    for author, open_issues in issues.items():
        agent = run.agent(author)
        mark = nonce(specification.seed, "revise", round, author)
        output = Output(kind="revision", issues=len(open_issues))
        prompt = revise(specification, run.shown("A", latest[author]), open_issues, mark)
        calls.append(run.call(agent, prompt, output, tools=True))
    reserve = _scoring(run, _versions(drafts, latest), coming=issues)
    outcomes = yield from run.ask("revise", round, calls, quorum=1, stages_left=stages_left, reserve=reserve)
    if not outcomes.admitted:
        return None
    versions = (written(outcomes, call, latest[call.agent_id].version + 1) for call in calls)
    revised = {version.author: version for version in versions if version}
    run.report(len(calls) - len(revised), len(calls), f"revisions of round {round} failed")
    return revised


def _scoring(run: StrategyRun, versions: Sequence[Candidate], coming: Collection[str] = ()) -> Cost:
    """The cost of scoring each other's versions, with an unwritten last version of each author in `coming`."""
    authors = list(dict.fromkeys(version.author for version in versions))
    specification = run.specification
    if not specification.budget.counts_tokens:
        return Cost(calls=len(authors))
    frame = sum(message.size_bytes for message in score(specification, [], texts_first=True))
    empty = Labelled("AA", "", nonce(specification.seed, "reserve"))
    framing_bytes = len((empty.section + _PER_CANDIDATE).encode())
    sizes = _sizes(run, versions, coming)
    total = Cost(calls=len(authors))
    for reviewer in map(run.agent, authors):
        shown = [size + framing_bytes for author, size in sizes if author != reviewer.agent_id]
        bound = ballot_tokens(reviewer, len(shown), len(specification.constraints.rubric))
        prompt = (frame + sum(shown)) // BYTES_PER_TOKEN
        total += priced(specification.budget, reviewer.role, prompt, bound)
    return total


def _revising(run: StrategyRun, latest: Mapping[str, Candidate], critiques: Sequence[Call]) -> Cost:
    """The cost of a stage in which every author revises on these critiques, which are not written yet."""
    specification = run.specification
    if not specification.budget.counts_tokens:
        return Cost(calls=sum(1 + tool_uses(run.agent(author)) for author in latest))
    mark = nonce(specification.seed, "reserve")
    calls = [
        run.call(
            run.agent(author), revise(specification, run.shown("A", own), (), mark), Output(kind="revision"), tools=True
        )
        for author, own in latest.items()
    ]
    return predicted(specification.budget, calls) + run.reading(latest, sum(call.max_tokens for call in critiques))


def _sizes(run: StrategyRun, versions: Sequence[Candidate], coming: Collection[str]) -> list[tuple[str, int]]:
    """The bytes of each author's first and last version; the last one of authors in `coming` is not written yet."""
    first = [(version.author, len(version.text.encode())) for version in versions if not version.version]
    last = {version.author: len(version.text.encode()) for version in versions if version.version}
    for author in coming:
        last[author] = max(last.get(author, 0), run.agent(author).sampling.max_tokens * BYTES_PER_TOKEN)
    return [*first, *last.items()]


COUNCIL = StrategyDefinition(
    name="council",
    version=4,
    summary="Propose; k ring critics each; the author revises on a major issue or blocker; listwise scores; rank.",
    steps=("propose", "critique × R", "revise × R", "score"),
    formula="≤ N + R·N(k+1) + N, k = min(critics, N-1): 2N(R+1) for one; N·max(0, R-1) more if settled; 1 when N is 1",
    source="arXiv:2509.05396, arXiv:2510.07517, arXiv:2512.23213",
    tool_calls="N + R·N(k+1)",
    run=_council,
    parameters=CouncilParameters,
    rounds=True,
)
