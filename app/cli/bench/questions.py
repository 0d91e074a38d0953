"""The questions of a bench. A machine grades their answers, which are texts or actions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.deliberation.actions import compared_action, read_action
from app.deliberation.answers import Normaliser, normalise
from app.deliberation.facts import Action, ActionCall
from app.deliberation.specification import Actions

# Added to the task so that the answer can be parsed; the same for every strategy.
_REQUIREMENTS: dict[Normaliser, str] = {
    "text": "The answer is the answer alone: no sentence around it, no explanation.",
    "number": "The answer is one number, in digits, and nothing follows it.",
    "choice": "The answer names one of the choices, and nothing follows it.",
    "json": "The answer is one JSON document and nothing else.",
    "exact": "The answer is the answer alone, exactly as asked for.",
}


class Question(Protocol):
    """A question of a data set, and what is right. An answer is a text; that of an action is the action's JSON."""

    @property
    def asked(self) -> Mapping[str, Any]:
        """The fields of a request that ask it; the same for every strategy."""
        ...

    @property
    def reading(self) -> Mapping[str, Any]:
        """The parameters by which a strategy that counts answers reads them as they are graded."""
        ...

    def read(self, answer: str) -> str | None:
        """The answer in the form in which equal answers are the same text; None when it is unreadable."""
        ...

    def is_right(self, answer: str | None) -> bool:
        """Whether an answer is right; a missing or unreadable one is not."""
        ...


@dataclass(frozen=True, slots=True)
class TextQuestion:
    text: str
    answer: str
    normaliser: Normaliser = "text"
    options: tuple[str, ...] = ()

    @property
    def asked(self) -> Mapping[str, Any]:
        return {"task": self.text, "constraints": {"requirements": [_REQUIREMENTS[self.normaliser]]}}

    @property
    def reading(self) -> Mapping[str, Any]:
        return {"normaliser": self.normaliser, **({"options": list(self.options)} if self.options else {})}

    def read(self, answer: str) -> str | None:
        return normalise(answer, self.normaliser, self.options)

    def is_right(self, answer: str | None) -> bool:
        text = None if answer is None else self.read(answer)
        return text is not None and text == self.read(self.answer)


@dataclass(frozen=True, slots=True)
class ActionQuestion:
    """A conversation that is answered by an action. `graded` says of an action whether it is right."""

    conversation: Sequence[Mapping[str, Any]]
    actions: Actions
    graded: Callable[[Action], bool]

    @property
    def asked(self) -> Mapping[str, Any]:
        return {"conversation": list(self.conversation), "actions": self.actions.model_dump(mode="json")}

    @property
    def reading(self) -> Mapping[str, Any]:
        return {}

    def read(self, answer: str) -> str | None:
        return None if _action_of(answer) is None else compared_action(self.actions, answer)

    def is_right(self, answer: str | None) -> bool:
        action = None if answer is None else _action_of(answer)
        return action is not None and self.graded(action)


def _action_of(answer: str) -> Action | None:
    try:
        return read_action(answer)
    except (ValueError, KeyError, TypeError, RecursionError):
        # A text of a council that wrote no action, as the verdict that states a dissent.
        return None


def equals_one_of(right: Sequence[Sequence[ActionCall]], actions: Actions) -> Callable[[Action], bool]:
    """Grades an action by the equality of actions with one of the `right` ones; no calls stand for any reply."""
    calling = [Action(calls=tuple(calls)) for calls in right if calls]
    texts = {compared_action(actions, action.model_dump_json()) for action in calling}

    def graded(action: Action) -> bool:
        if action.reply is not None:
            return len(calling) < len(right)
        return compared_action(actions, action.model_dump_json()) in texts

    return graded
