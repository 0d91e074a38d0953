"""Councils whose members act, for the page to show."""

import json
from collections.abc import Sequence
from typing import Any

from app.deliberation.calls import Call
from app.deliberation.specification import Actions, ActionTool, AgentSpec
from tests.unit.facts_of import CouncilScript, Run, agent_ids, run, specification

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
ANY = {"type": "object", "properties": {}}
TOOLS = (
    ActionTool(name="read", parameters=PATH),
    ActionTool(name="delete", parameters=PATH, agreement_min=1),
    ActionTool(name="note", parameters=ANY),
)


class ActingScript(CouncilScript):
    """A council whose texts are actions, as JSON."""

    def answered(self, call: Call) -> object:
        return json.loads(self.text(call.call_id))


def called(name: str, *paths: str) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": {"path": path}} for path in paths]}


def acting(actions: Sequence[dict[str, Any]], strategy: str = "vote", **demanded: Any) -> Run:
    """A council whose members give these actions; `demanded` are further fields of the constraints."""
    by_agent = dict(zip(agent_ids(len(actions)), map(json.dumps, actions), strict=True))
    offered = Actions(tools=TOOLS, calls_max=4)
    # All are asked, also where the outcome is settled before.
    parameters: dict[str, Any] = {"stop": "none"} if strategy == "vote" else {}
    council: dict[str, Any] = {"strategy": strategy, "parameters": parameters, "quorum": 1, "seed": 1}
    members = [AgentSpec(agent_id=each, role="DEV", model="model-1") for each in by_agent]
    asked = specification(len(actions), **council, agents=members, actions=offered, **demanded)
    return run(asked, ActingScript(text=lambda call_id: by_agent[call_id.partition("-")[2]]))
