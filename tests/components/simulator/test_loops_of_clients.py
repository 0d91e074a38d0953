"""Actions of the simulator: what a conversation spells out, a line at a time, and then a reply."""

from random import Random
from typing import Any

import pytest

from app.deliberation.outputs import Output, json_schema
from app.deliberation.specification import Actions, ActionTool, Constraints
from serve_deployments.simulator.writer.outputs import Behaviour, OutputWriter
from serve_deployments.simulator.writer.prompt import PromptReader
from tests.unit.facts_of import RUBRIC

TWO = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ACTIONS = Actions(
    tools=(ActionTool(name="add", parameters=TWO), ActionTool(name="double", parameters=TWO)), calls_max=9
)
ASKED = 'Compute.\nadd({"a": 1}) double({"a": 2})\nadd({"a": 3})'
FIRST = {"calls": [{"name": "add", "arguments": {"a": 1}}, {"name": "double", "arguments": {"a": 2}}]}
SECOND = {"calls": [{"name": "add", "arguments": {"a": 3}}]}
RETURNED = ("Result of call c1:\n3", "Result of call c2:\n4")
# As smolagents tells calls and an error.
TOLD = ("Calling tools:\n[{'id': 'c1', 'type': 'function'}]", "Call id: c2\nError:\nZeroDivisionError")
SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": False}


def acted(*said: str, schema: dict[str, Any] | None = None) -> Any:
    constraints = Constraints(rubric=RUBRIC, timeout_seconds=9, actions=ACTIONS, answer_schema=schema)
    output = Output(kind="answer").with_answers_of(constraints.answer_form, is_action=True)
    writer = OutputWriter(PromptReader(said), Behaviour.NORMAL, Random(1))
    written: Any = writer.document(json_schema(output))
    return written["answer"]


@pytest.mark.parametrize(
    ("said", "action"),
    [((ASKED,), FIRST), ((ASKED, *RETURNED[:1]), FIRST), ((ASKED, *RETURNED), SECOND), ((ASKED, *TOLD), SECOND)],
)
def test_the_calls_of_a_line_follow_those_of_the_line_before(said: tuple[str, ...], action: object) -> None:
    assert acted(*said) == action


def test_after_the_last_line_a_reply_is_a_text_or_of_the_schema_of_replies() -> None:
    ended = (ASKED, *RETURNED, "Result of call c3:\n6")
    assert isinstance(acted(*ended)["reply"], str)
    assert isinstance(acted(*ended, schema=SUM)["reply"]["sum"], int)
