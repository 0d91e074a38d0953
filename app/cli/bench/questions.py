"""Questions whose answers a machine can grade: a text, or an action."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
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
        return answer is not None and (found := self.read(answer)) is not None and found == self.read(self.answer)


@dataclass(frozen=True, slots=True)
class ActionQuestion:
    """A conversation that ends in a call of `tools`, or in a reply. `graded` says of an action whether it is right."""

    conversation: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    graded: Callable[[Action], bool]

    @property
    def asked(self) -> Mapping[str, Any]:
        return {"conversation": list(self.conversation), "actions": {"tools": list(self.tools)}}

    @property
    def reading(self) -> Mapping[str, Any]:
        return {}

    def read(self, answer: str) -> str | None:
        """The same for two actions with equal calls in another order."""
        action = _action_of(answer)
        if action is None or action.reply is not None:
            return answer if action is not None else None
        calls = sorted(action.calls, key=lambda call: json.dumps([call.name, call.arguments], sort_keys=True))
        return Action(calls=tuple(calls)).model_dump_json(exclude={"calls": {"__all__": {"id"}}})

    def is_right(self, answer: str | None) -> bool:
        action = None if answer is None else _action_of(answer)
        return action is not None and self.graded(action)


def _action_of(answer: str) -> Action | None:
    try:
        return read_action(answer)
    except (ValueError, KeyError, TypeError, RecursionError):
        # A text of a council that wrote no action, as the verdict that states a dissent.
        return None


def equals_one_of(right: Iterable[Sequence[ActionCall]], tools: Actions) -> Callable[[Action], bool]:
    """Grades an action by the equality of actions with one of the `right` ones; no calls stand for any reply."""
    texts, replies = set[str | None](), False
    for calls in right:
        replies = replies or not calls
        texts.add(compared_action(tools, Action(calls=tuple(calls)).model_dump_json()) if calls else None)

    def graded(action: Action) -> bool:
        if action.reply is not None:
            return replies
        return compared_action(tools, action.model_dump_json()) in texts

    return graded
