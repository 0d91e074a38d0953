"""The prompt of a debater: its own earlier answer, different answers of others, and the condition for a switch."""

from collections.abc import Sequence

from app.deliberation.calls import ChatMessage
from app.deliberation.choice.anonymity import fence
from app.deliberation.prompts.form import candidate, messages
from app.deliberation.specification import Specification


def turn(
    specification: Specification, own: tuple[str, str], others: Sequence[tuple[str, str, str]], nonce: str
) -> tuple[ChatMessage, ...]:
    """Check the own (answer, reasons) against (label, answer, reasons) of others; switch for a concrete error only.

    The prompt hides how many agents hold which answer: debaters follow agreement, which is no evidence
    (arXiv:2509.05396).
    """
    answer, reasons = own
    shown = [
        section
        for label, text, because in others
        for section in (candidate(label, text, nonce), f"Its reasons:\n{fence(because, nonce)}" if because else "")
    ]
    return messages(
        specification,
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
