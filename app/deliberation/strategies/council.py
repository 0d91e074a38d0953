"""`council`: propose, criticise, let the author revise, score the old and the new, rank.

The critic never writes: the author revises, and only when a major issue or a blocker is open, because free revision
flips right answers to wrong ones (arXiv:2509.05396). The final scores cover first and last versions, so that a
revision which made things worse loses to what it replaced.
"""

from collections.abc import Mapping, Sequence

from app.deliberation.anonymity import nonce, ring
from app.deliberation.calls import Call
from app.deliberation.engine import Conclusion, Strategy, StrategyDefinition
from app.deliberation.outputs import Critique, Issue, Output, Revision
from app.deliberation.prompts.council import critique, revise
from app.deliberation.specification import Specification
from app.deliberation.strategies.steps import Candidate, Course, Step

CRITICS = 1


def _council(specification: Specification) -> Strategy:
    course = Course(specification)
    drafts = yield from course.propose(stages_left=2 + 2 * specification.rounds)
    return (yield from continue_from(course, drafts))


def continue_from(course: Course, drafts: Sequence[Candidate]) -> Step[Conclusion]:
    """The whole strategy after its proposals; `drafts` are one per author, at least one."""
    specification = course.specification
    latest = {draft.author: draft for draft in drafts}
    # Two below the quorum are judged as a pair, which cannot show old and new versions: they are not revised.
    rounds = 0 if course.is_pair(list(latest)) else specification.rounds
    for round in range(1, rounds + 1):
        stages_left = 2 + 2 * (rounds - round)
        issues = yield from _criticised(course, latest, round, stages_left + 1)
        if not issues:
            break
        revised = yield from _revised(course, latest, issues, round, stages_left)
        if revised is None:
            break
        latest.update(revised)
    versions = [*drafts, *(candidate for candidate in latest.values() if candidate.version > 0)]
    return (yield from course.select(versions, specification.rounds + 1))


def _criticised(
    course: Course, latest: Mapping[str, Candidate], round: int, stages_left: int
) -> Step[dict[str, list[Issue]]]:
    """Issues by author, for the authors who have a major issue or a blocker open; empty for one author alone."""
    specification = course.specification
    calls: list[Call] = []
    for critic, authors in ring(list(latest), CRITICS, specification.seed, round).items():
        for part, author in enumerate(authors, start=1):
            candidate = latest[author]
            mark = nonce(specification.seed, "critique", round, critic, author)
            calls.append(
                course.call(
                    course.agent(critic),
                    critique(specification, candidate.text, mark),
                    Output(kind="critique"),
                    labelled={"A": candidate.id},
                    judging=True,
                    part=part if len(authors) > 1 else None,
                )
            )
    if not calls:
        return {}
    outcomes = yield from course.run(
        "critique", round, calls, quorum=min(specification.quorum, len(calls)), stages_left=stages_left
    )
    critiques = [(call.labels["A"].partition("#")[0], outcomes.answer(call)) for call in calls]
    missing = sum(found is None for _, found in critiques)
    if outcomes.admitted and missing:
        course.degraded.append(f"{missing} of {len(calls)} critiques of round {round} are missing")
    open_issues: dict[str, list[Issue]] = {}
    for author, found in critiques:
        if isinstance(found, Critique) and found.demands_revision:
            open_issues.setdefault(author, []).extend(found.issues)
    return open_issues


def _revised(
    course: Course, latest: Mapping[str, Candidate], issues: Mapping[str, list[Issue]], round: int, stages_left: int
) -> Step[dict[str, Candidate] | None]:
    """New versions by author, without those whose revision failed: they keep the old text. None: over the budget."""
    specification = course.specification
    calls: list[Call] = []
    for author, open_issues in issues.items():
        agent = course.agent(author)
        mark = nonce(specification.seed, "revise", round, author)
        output = Output(kind="revision", issues=len(open_issues))
        calls.append(course.call(agent, revise(specification, latest[author].text, open_issues, mark), output))
    outcomes = yield from course.run("revise", round, calls, quorum=1, stages_left=stages_left)
    if not outcomes.admitted:
        return None
    revised: dict[str, Candidate] = {}
    for call in calls:
        revision = outcomes.answer(call)
        if isinstance(revision, Revision):
            before = latest[call.agent_id]
            tokens = outcomes.completion_tokens(call)
            version = before.version + 1
            revised[call.agent_id] = Candidate(call.agent_id, version, revision.answer, tokens, call.call_id)
    if len(revised) < len(calls):
        course.degraded.append(f"{len(calls) - len(revised)} of {len(calls)} revisions of round {round} failed")
    return revised


COUNCIL = StrategyDefinition(
    name="council",
    version=1,
    summary="Propose; ring critics; the author revises on a major issue or blocker; listwise scores; rank.",
    steps=("propose", "critique × R", "revise × R", "score"),
    formula="N + R·(N + revisions ≤ N) + N ≤ 2N(R+1); 1 when N is 1",
    source="arXiv:2509.05396, arXiv:2510.07517, arXiv:2512.23213",
    run=_council,
    rounds=True,
)
