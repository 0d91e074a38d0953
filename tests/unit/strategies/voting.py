"""Votes by answers, in waves."""

from collections.abc import Sequence
from typing import Any

from app.deliberation.facts import StageOpened
from tests.unit.facts_of import CouncilScript, Run, agent_ids

FAILS = ""


def agent_of(call_id: str) -> str:
    return call_id.partition("-")[2]


def answering(answers: Sequence[str], **more: Any) -> CouncilScript:
    by_agent = dict(zip(agent_ids(len(answers)), answers, strict=True))
    failing = [f"s{stage}-{agent}" for stage in range(1, 40) for agent, said in by_agent.items() if said == FAILS]
    return CouncilScript(
        text=lambda call_id: by_agent[agent_of(call_id)], failing={*failing, *more.pop("failing", ())}, **more
    )


def waves(ended: Run) -> list[int]:
    return [len(stage.calls) for stage in ended.all(StageOpened) if stage.purpose == "propose"]
