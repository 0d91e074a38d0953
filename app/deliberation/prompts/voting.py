"""The prompt of picking the most consistent of several answers."""

from collections.abc import Sequence

from app.deliberation.calls import ChatMessage
from app.deliberation.prompts.form import candidate, messages
from app.deliberation.specification import Specification


def pick(specification: Specification, candidates: Sequence[tuple[str, str]], nonce: str) -> tuple[ChatMessage, ...]:
    """Choose the one of (label, text) pairs that most of the others agree with in substance."""
    labels = ", ".join(label for label, _ in candidates)
    return messages(
        specification,
        f"# Your work: pick\nSeveral members answered the task independently; their answers ({labels}) are below. "
        "Compare what they say, not their wording, length or style. Write first, in a few sentences, which of them "
        "agree in substance and where they differ. Then choose the answer that is most consistent with the others. "
        "Where no two agree, choose the one that holds best under the rubric.",
        *(candidate(label, text, nonce) for label, text in candidates),
        f'# Your reply\n{{"reasoning": who agrees with whom, "choice": one of {labels}}}',
    )
