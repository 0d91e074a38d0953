"""The prompt of a debater: the answers that it compares, the condition for a switch, and which answer is its own."""

from collections.abc import Sequence

from app.deliberation.calls import ChatMessage
from app.deliberation.choice.anonymity import fence
from app.deliberation.prompts.form import Labelled, messages
from app.deliberation.specification import Specification


def turn(specification: Specification, shown: Sequence[tuple[Labelled, str]], own: str) -> tuple[ChatMessage, ...]:
    """Check the answer with the letter `own` against the others, each with its reasons; switch for an error only.

    The prompt hides how many agents hold which answer: debaters follow agreement, which is no evidence
    (arXiv:2509.05396).
    """
    texts = [
        section
        for candidate, because in shown
        for section in (candidate.section, f"Its reasons:\n{fence(because, candidate.nonce)}" if because else "")
    ]
    return messages(
        specification,
        *texts,
        "# Your work: debate\nAbove are answers that differ. One of them is your own earlier answer; its letter comes "
        "last. Any of them may be right, yours too. Work the task through again and look for the step at which they "
        "part. Change your answer only when you find a concrete error in your own: say in `error` where it stands and "
        "why it is wrong, so that a reader can check it. That others think otherwise, or sound sure, is no error. "
        "Without one leave `error` empty and give your answer again as it is.",
        '# Your reply\n{"reasoning": what you checked, briefly; "error": the error in your earlier answer, or ""; '
        '"answer": the complete answer, changed or not; "confidence": 0 to 100}',
        # Last, since prompts that show the same answers differ in this line alone.
        f"# Your own answer\nCandidate {own} is your own earlier answer.",
    )
