"""Prompts of fusing: an analysis of several candidates, and one text made from them."""

from collections.abc import Sequence

from app.deliberation.calls import ChatMessage
from app.deliberation.choice.anonymity import fence
from app.deliberation.outputs import Analysis
from app.deliberation.prompts.council import ANSWER_FORM
from app.deliberation.prompts.form import Labelled, messages
from app.deliberation.specification import Specification


def analyse(specification: Specification, candidates: Sequence[Labelled]) -> tuple[ChatMessage, ...]:
    """List agreements, conflicts and gaps of the candidates; the analyst neither ranks nor writes."""
    return messages(
        specification,
        *(each.section for each in candidates),
        "# Your work: analyse\nRead every candidate and compare what they say, not how they say it. List agreements "
        "(what they establish together, and which of it the task bears out), conflicts (where they contradict each "
        "other: what each says, by its letter, and which side its own evidence supports) and gaps (what the task, the "
        "rubric or a requirement asks for and no candidate gives). That many say the same proves nothing. One point an "
        "entry, each one checkable; a list may be empty. Do not rank and do not write an answer.",
        '# Your reply\n{"agreements": [at most 8 sentences], "conflicts": [at most 8], "gaps": [at most 8]}',
    )


def fuse(
    specification: Specification, candidates: Sequence[Labelled], analysis: Analysis, nonce: str
) -> tuple[ChatMessage, ...]:
    """Write one answer from candidates and the analysis that names their labels; `nonce` fences the analysis."""
    return messages(
        specification,
        *(each.section for each in candidates),
        f"Analysis:\n{fence(_listed(analysis), nonce)}",
        "# Your work: fuse\nWrite the one answer that the candidates make possible together. Keep what is right in the "
        "best of them, settle each conflict by the evidence, and take from the others only what makes it better. "
        "Invent nothing: every fact, figure, name and claim stands in a candidate or in the task, or follows from "
        "them. What the candidates leave open stays open, and the answer says so. The reader knows neither the "
        "candidates nor the analysis: mention neither.",
        f"# Your reply\n{ANSWER_FORM}",
    )


def _listed(analysis: Analysis) -> str:
    points = {"Agreements": analysis.agreements, "Conflicts": analysis.conflicts, "Gaps": analysis.gaps}
    return "\n".join(
        f"{heading}:\n" + ("\n".join(f"- {each}" for each in listed) or "- none") for heading, listed in points.items()
    )
