from typing import Any

import pytest

from app.deliberation.answers import requirement
from app.deliberation.strategies import STRATEGIES
from tests.unit.facts_of import run, specification
from tests.unit.strategies.every_strategy import prompt
from tests.unit.strategies.voting import answering

COUNTING = [name for name, found in STRATEGIES.items() if "normaliser" in found.parameters.model_fields]
SAID = {
    "number": ["It is 1", "2.", "3", "4"],
    "choice": ["A", "B", "C", "D"],
    "json": ["[1]", "[2]", "[3]", "[4]"],
    "text": ["a", "b", "c", "d"],
}
FORMS = [requirement("number"), requirement("choice"), requirement("choice", ("A", "B", "C", "D")), requirement("json")]

WAYS: list[tuple[str, dict[str, Any]]] = [*((name, {}) for name in COUNTING), ("auto", {"escalate_to": "debate"})]


@pytest.mark.parametrize(("strategy", "more"), WAYS)
@pytest.mark.parametrize(
    ("normaliser", "options"), [("number", ()), ("choice", ()), ("choice", ("A", "B", "C", "D")), ("json", ())]
)
def test_every_prompt_states_the_form_once(
    strategy: str, more: dict[str, Any], normaliser: Any, options: tuple[str, ...]
) -> None:
    parameters = {"normaliser": normaliser, "options": list(options), **more}
    filled = STRATEGIES[strategy].parameters.model_validate(parameters).model_dump(mode="json")
    ended = run(specification(4, strategy=strategy, parameters=filled), answering(SAID[normaliser]))
    form = requirement(normaliser, options)
    assert form is not None
    assert [prompt(call).count(form) for call in ended.calls] == [1] * len(ended.calls)
    if strategy == "debate" or more:
        assert "debate" in ended.purposes
