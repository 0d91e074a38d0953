"""Events as plain lines, for logs and terminals that cannot redraw."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import assert_never

from app.cli.render.panels import seconds, stage_text
from app.cli.render.prose import counted, printable
from app.deliberation import facts
from app.deliberation.strategies import STRATEGIES


def parameter_texts(parameters: Mapping[str, object]) -> list[str]:
    """Each parameter of a strategy as `name = value`; one without a value says nothing."""
    return [
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in parameters.items()
        if value not in (None, [], {})
    ]


def _accepted(event: facts.Accepted) -> str:
    specification = event.specification
    agents = ", ".join(f"{agent.agent_id} ({agent.role})" for agent in specification.agents)
    definition = STRATEGIES.get(specification.strategy)
    rounds = f"; {counted(specification.rounds, 'round')}" if definition is None or definition.rounds else ""
    parameters = "".join(f"; {each}" for each in parameter_texts(specification.parameters))
    return f"accepted {event.deliberation_id}: {specification.strategy} of {agents}{rounds}{parameters}"


def _opened(event: facts.StageOpened) -> str:
    calls = counted(len(event.calls), "call")
    return f"stage {event.stage} {stage_text(event.purpose, event.round)}: {calls}, quorum {event.quorum}"


def _finished(event: facts.CallFinished) -> str:
    took = f"in {seconds(event.duration_ms / 1_000)}"
    if event.problem is not None:
        return f"  {event.agent_id} failed {took}: {event.problem.code}: {event.problem.detail}"
    return f"  {event.agent_id} answered {took}: {len(event.text or ''):,} characters, {event.usage.tokens:,} tokens"


def _describe(event: facts.Event) -> str | None:
    match event:
        case facts.Accepted():
            return _accepted(event)
        case facts.StageOpened():
            return _opened(event)
        case facts.CallStarted():
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            return f"  {event.agent_id} starts on {event.model}{again}"
        case facts.CallDelta():
            return None
        case facts.CallWaiting():
            return f"  {event.agent_id} waits: {event.detail}"
        case facts.CallFinished():
            return _finished(event)
        case facts.StageClosed():
            return f"stage {event.stage} closed ({event.reason}): {len(event.seen)} seen"
        case facts.CancelRequested():
            return f"cancelling{f': {event.reason}' if event.reason else ''}"
        case facts.Resumed(given_back=True):
            return f"given back by {event.replica}, which stops; recorded results are kept"
        case facts.Resumed():
            return f"taken over by {event.replica}; recorded results are kept"
        case facts.Completed() | facts.Failed() | facts.Cancelled() | facts.TimedOut():
            return event.type.removeprefix("deliberation.")
        case facts.Deleted():
            return "deleted"
        case _:
            assert_never(event)


def event_line(event: facts.Event, started_at: datetime | None) -> str | None:
    """One line for an event with the seconds since `started_at`; None for a delta."""
    text = _describe(event)
    if text is None:
        return None
    passed_s = (event.ts - (started_at or event.ts)).total_seconds()
    return printable(f"{passed_s:6.1f} s  {text}").replace("\n", " ")
