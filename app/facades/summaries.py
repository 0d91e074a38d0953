"""A stage, and a member's call in it, as prose, for façades that show the work."""

from collections.abc import Iterable, Mapping

from app.deliberation.choice.ballots import author
from app.deliberation.contributions import AgentCall
from app.deliberation.facts import StageClosed, StageOpened
from app.deliberation.outputs import Analysis, Choice, Critique, Issue, Pair, SandboxReport, Scores, Tests, answer_text
from app.deliberation.specification import Constraints


def stage_begun(opened: StageOpened) -> str:
    members = ", ".join(dict.fromkeys(call.agent_id for call in opened.calls))
    stage = opened.purpose + (f", round {opened.round}" if opened.round else "")
    return f"**{stage}**\n\nAsked: {members}."


def stage_ended(opened: StageOpened, closed: StageClosed | None) -> str:
    """The close of a stage; `closed` is None for one that the deliberation's end cut."""
    counted = len(closed.seen) if closed is not None else 0
    how = f"closed: {closed.reason}" if closed is not None else "the deliberation ended first"
    return f"{counted} of {len(opened.calls)} outcomes counted ({how})."


def summary(call: AgentCall, constraints: Constraints) -> str:
    """The member, its stage, and its answer, critique or ballot as Markdown; letters are resolved to members."""
    return f"**{call.planned.agent_id}, {call.opened.purpose}**\n\n{call_text(call, constraints)}"


def call_text(call: AgentCall, constraints: Constraints) -> str:
    """The answer, or a critique or ballot as Markdown; letters are resolved to members."""
    finished, labels = call.finished, call.planned.labels
    if finished is None:
        return "No outcome."
    if finished.problem is not None:
        return f"Failed: {finished.problem.detail}"
    match parsed := call.output(constraints):
        case Critique(verdict=verdict, issues=issues):
            return _listed(f"Verdict: {verdict}.", map(_issue, issues))
        case Scores(candidates=candidates):
            scores = {
                label: [str(criterion.score) for criterion in scored.criteria] for label, scored in candidates.items()
            }
            return _listed("Scores:", (f"{_of(label, labels)}: {', '.join(marks)}" for label, marks in scores.items()))
        case Pair(winner="tie"):
            return f"A tie.\n\n{parsed.notes_a}\n\n{parsed.notes_b}"
        case Pair(winner=winner, margin=margin):
            return f"Prefers {_of(winner, labels)} by {margin}.\n\n{parsed.notes_a}\n\n{parsed.notes_b}"
        case Choice(choice=choice, reasoning=reasoning):
            return f"Chooses {_of(choice, labels)}.\n\n{reasoning}"
        case Analysis():
            points = {"Agreement": parsed.agreements, "Conflict": parsed.conflicts, "Gap": parsed.gaps}
            return _listed("Analysis:", (f"{kind}: {point}" for kind, texts in points.items() for point in texts))
        case Tests(tests=tests):
            return _listed("Tests:", (test.name for test in tests))
        case SandboxReport(outcomes=outcomes, fault=fault):
            return fault or f"{sum(outcome.passed for outcome in outcomes)} of {len(outcomes)} tests passed."
        case None:
            return "An answer that cannot be read."
        case _:
            return answer_text(parsed) or ""


def _listed(head: str, items: Iterable[str]) -> str:
    return "\n".join([head, *(f"- {item}" for item in items)])


def _issue(issue: Issue) -> str:
    return f"{issue.severity}, {issue.where}: {issue.claim} {issue.evidence} Fix: {issue.fix}"


def _of(label: str, labels: Mapping[str, str]) -> str:
    return author(labels[label]) if label in labels else label
