"""Prompts of proposing, criticising, revising, scoring, comparing and picking."""

from collections.abc import Sequence

from app.deliberation.calls import ChatMessage
from app.deliberation.choice.anonymity import fence
from app.deliberation.outputs import Issue
from app.deliberation.prompts.form import Labelled, messages
from app.deliberation.specification import Specification

ANSWER_FORM = """\
{"reasoning": your reasons, briefly; "answer": the complete answer, Markdown where it helps; "confidence": 0 to 100}"""

# The first agent gets no hint; each later one gets another approach.
_APPROACHES = (
    "",
    "Begin from what could go wrong, and build the answer so that it cannot.",
    "Begin from the simplest thing that could work, and add only what the requirements force.",
    "Begin from the reader or user of the result, and work back to what they need.",
    "Begin with two different designs, compare them in a few lines, and develop the better one.",
    "Begin from the data and its invariants; let the rest follow.",
    "Begin from how the result will be tested or verified.",
    "Begin from constraints and limits: time, size, cost.",
)


def propose(specification: Specification, place: int) -> tuple[ChatMessage, ...]:
    approach = _APPROACHES[place % len(_APPROACHES)]
    return messages(
        specification,
        "# Your work: propose\nSolve the task on your own, completely. Say briefly why, then give the answer.",
        f"# Your reply\n{ANSWER_FORM}",
        f"# Approach\n{approach}" if approach else "",
    )


def critique(specification: Specification, candidate: Labelled) -> tuple[ChatMessage, ...]:
    return messages(
        specification,
        candidate.section,
        "# Your work: critique\nExamine the candidate against the task, the rubric and the requirements. Report faults "
        "that can be checked: where, what is claimed to be wrong, the evidence, and how to mend it. A fault without "
        "evidence is not reported; if you find none, the list is empty. Severity: blocker (the answer is wrong or "
        "unusable), major (a requirement is missed or a claim is false), minor (worth mending, harmless).",
        '# Your reply\n{"issues": [at most 8 of {"severity": "blocker|major|minor", "where": …, "claim": …, '
        '"evidence": …, "fix": …}], "verdict": "accept|revise|reject"}',
    )


def _line(text: str) -> str:
    """A critic's words on one line: a line break could begin another number in the list of issues."""
    return " ".join(text.split())


def revise(specification: Specification, own: Labelled, issues: Sequence[Issue], nonce: str) -> tuple[ChatMessage, ...]:
    listed = "\n".join(
        f"{number}. [{issue.severity}] {_line(issue.where)}: {_line(issue.claim)} "
        f"Evidence: {_line(issue.evidence)} Fix: {_line(issue.fix)}"
        for number, issue in enumerate(issues, start=1)
    )
    return messages(
        specification,
        own.section,
        f"Issues:\n{fence(listed, nonce)}",
        f"# Your work: revise\nCandidate {own.label} is your own answer, and reviewers raised the issues. Take each "
        "issue on its merits: accept it and mend the answer, or reject it with a reason. Never change something merely "
        "to agree. Then give the complete answer, changed or not.",
        '# Your reply\n{"responses": [{"issue": number, "decision": "accept|reject", "reason": …}], "answer": the '
        'complete answer, "confidence": 0 to 100}',
    )


def score(
    specification: Specification, candidates: Sequence[Labelled], *, texts_first: bool = False
) -> tuple[ChatMessage, ...]:
    labels = ", ".join(candidate.label for candidate in candidates)
    criteria = ", ".join(criterion.id for criterion in specification.constraints.rubric)
    return _arranged(
        specification,
        candidates,
        f"# Your work: score\nScore each candidate ({labels}) on each criterion ({criteria}) from 0 to 10. Write the "
        "evidence first, in a sentence, then the score. Judge what is there, not its length or style. Equal work gets "
        "equal scores.",
        '# Your reply\nFor every label, in the order shown: {"A": {"criteria": [for every criterion, in the rubric\'s '
        'order: {"id": …, "rationale": …, "score": 0 to 10}]}, …}',
        texts_first=texts_first,
    )


def judge_pair(
    specification: Specification, first: Labelled, second: Labelled, *, texts_first: bool = False
) -> tuple[ChatMessage, ...]:
    return _arranged(
        specification,
        (first, second),
        "# Your work: compare\nNote the strengths and faults of each of the two candidates against the rubric, then "
        "say which is better, or that neither is, and by how much (1 slightly, 3 clearly).",
        '# Your reply\n{"notes_a": …, "notes_b": …, "winner": "A|B|tie", "margin": 1 to 3}',
        texts_first=texts_first,
    )


def _arranged(
    specification: Specification, candidates: Sequence[Labelled], work: str, reply: str, *, texts_first: bool
) -> tuple[ChatMessage, ...]:
    """A prompt with the work before the candidates; with `texts_first`, for prompts of several stages, after them."""
    texts = [candidate.section for candidate in candidates]
    return messages(specification, *((*texts, work, reply) if texts_first else (work, reply, *texts)))


def pick(specification: Specification, candidates: Sequence[Labelled]) -> tuple[ChatMessage, ...]:
    labels = ", ".join(candidate.label for candidate in candidates)
    return messages(
        specification,
        *(candidate.section for candidate in candidates),
        f"# Your work: pick\nSeveral members answered the task independently; the candidates ({labels}) are their "
        "answers. Compare what they say, not their wording, length or style. Write first, in a few sentences, which of "
        "them agree in substance and where they differ. Then choose the answer that is most consistent with the "
        "others. Where no two agree, choose the one that holds best under the rubric.",
        f'# Your reply\n{{"reasoning": who agrees with whom, "choice": one of {labels}}}',
    )
