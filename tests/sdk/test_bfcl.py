"""Berkeley's function-calling data: every question can be asked, and the leaderboard's own checker grades answers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from app.api.action_requests import ActionsRequest, TurnRequest
from app.cli.bench.bfcl import CATEGORIES
from app.cli.bench.dataset import read_dataset
from app.deliberation.facts import Action, ActionCall
from sdk import build
from tests.e2e.conftest import DELIBERATE
from tests.sdk.conftest import output_of

pytestmark = pytest.mark.sdk
# The checker refuses the right answers of these questions, or the data write them in another form.
ODD = {"parallel_multiple": {12, 26}, "live_simple": {106, 112}, "live_multiple": {121, 507, 862, 964}}


def packages() -> Path:
    (found,) = (build.work() / "venv-bfcl" / "lib").glob("python*/site-packages")
    return found


@pytest.fixture(autouse=True)
def leaderboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(packages())


def truths(category: str) -> list[Any]:
    path = packages() / "bfcl_eval" / "data" / "possible_answer" / f"BFCL_v4_{category}.json"
    return [json.loads(line)["ground_truth"] for line in path.read_text().splitlines()]


def first_right(possible: object) -> object:
    """The first value that the leaderboard allows; of an object the first of each property, which may be absent."""
    if isinstance(possible, dict):
        named = cast("Mapping[str, list[object]]", possible)
        values = {name: [each for each in allowed if each != ""] for name, allowed in named.items()}
        return {name: first_right(allowed[0]) for name, allowed in values.items() if allowed}
    return [first_right(each) for each in cast("list[object]", possible)] if isinstance(possible, list) else possible


def action_of(truth: list[Mapping[str, Any]]) -> Action:
    named = [(name, arguments) for call in truth for name, arguments in call.items()]
    return Action(
        calls=tuple(
            ActionCall(name=name.replace(".", "_"), arguments=cast("dict[str, Any]", first_right(arguments)))
            for name, arguments in named
        )
    )


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_gateway_takes_every_question(category: str) -> None:
    questions = read_dataset(f"bfcl:{category}", None)
    assert questions
    for question in questions:
        actions = ActionsRequest.model_validate_json(json.dumps(question.asked["actions"]))
        turns = [TurnRequest.model_validate(turn) for turn in question.asked["conversation"]]
        assert actions.tools and any(turn.text for turn in turns)


@pytest.mark.parametrize("category", [name for name in CATEGORIES if not name.endswith("relevance")])
def test_the_leaderboards_answers_are_right_and_others_are_wrong(category: str) -> None:
    pairs = list(zip(read_dataset(f"bfcl:{category}", None), truths(category), strict=True))
    for place, (question, truth) in enumerate(pairs):
        if place in ODD.get(category, ()):
            continue
        action = action_of(truth)
        assert question.is_right(action.model_dump_json()), place
        more = Action(calls=(*action.calls, action.calls[0]))
        assert not question.is_right(more.model_dump_json()), place
        assert not question.is_right(Action(reply="It depends.").model_dump_json())
        assert not question.is_right("no action") and not question.is_right(None)


async def test_a_category_is_asked_and_graded(stack: dict[str, Any], quick_url: str) -> None:
    command = [DELIBERATE, "bench", "quality", "--url", stack["url"], "--dataset", "bfcl:simple_python"]
    options = ["--limit", "3", "--strategy", "vote", "--no-baseline", "--json"]
    document = json.loads(await output_of([*command, *options], PYTHONPATH=str(packages())))
    (vote,) = document["strategies"]
    assert document["dataset"] == "bfcl:simple_python" and vote["questions"] == 3
    # The simulator calls no tool but those that the conversation spells out.
    assert (vote["failed"], vote["unread"], vote["right"]) == (0, 0, 0)
