"""The prompt of a debater: its own earlier answer, different answers of others, and the condition for a switch."""

from collections.abc import Sequence

from app.deliberation.calls import ChatMessage
from app.deliberation.choice.anonymity import fence
from app.deliberation.prompts.form import Labelled, messages
from app.deliberation.specification import Specification


def turn(
    specification: Specification, own: tuple[str, str, str], others: Sequence[tuple[Labelled, str]]
) -> tuple[ChatMessage, ...]:
    """Check the own (answer, reasons, nonce) against others' answers and reasons; switch for a concrete error only.

    The prompt hides how many agents hold which answer: debaters follow agreement, which is no evidence
    (arXiv:2509.05396).
    """
    answer, reasons, nonce = own
    shown = [
        section
        for other, because in others
        for section in (other.section, f"Its reasons:\n{fence(because, other.nonce)}" if because else "")
    ]
    return messages(
        specification,
        # Before the texts, since no other prompt begins with the same one.
        "# Your work: debate\nBelow is your own earlier answer, and answers of others that differ from it. Any of them "
        "may be right, yours too. Work the task through again and look for the step at which they part. Change your "
        "answer only when you find a concrete error in your own: say in `error` where it stands and why it is wrong, "
        "so that a reader can check it. That others think otherwise, or sound sure, is no error. Without one leave "
        "`error` empty and give your answer again as it is.",
        f"Your answer:\n{fence(answer, nonce)}",
        f"Your reasons:\n{fence(reasons, nonce)}" if reasons else "",
        *shown,
        '# Your reply\n{"reasoning": what you checked, briefly; "error": the error in your earlier answer, or ""; '
        '"answer": the complete answer, changed or not; "confidence": 0 to 100}',
    )
