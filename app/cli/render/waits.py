"""What the calls of a running deliberation wait for: engines that cannot be connected to."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from rich.text import Text

from app.cli.render.prose import printable
from app.deliberation.facts import CallFinished, CallWaiting, Event

WAIT_EVENT_TYPES = "call.waiting,call.finished"
# A waiting call reports every three to five seconds, so that one that reports no more waits no more.
_RECENT = timedelta(seconds=10)


def waits_text(events: Sequence[Event], now: datetime) -> Text:
    """A line for each outage with the agents that wait; empty where none has waited lately. `events` are in order."""
    latest = dict[str, CallWaiting]()
    for event in events:
        if isinstance(event, CallWaiting):
            latest[event.call_id] = event
        elif isinstance(event, CallFinished):
            latest.pop(event.call_id, None)
    agents = dict[str, list[str]]()
    for waiting in latest.values():
        if waiting.ts > now - _RECENT:
            agents.setdefault(waiting.detail, []).append(waiting.agent_id)
    lines = (
        Text.assemble(("waiting ", "yellow"), printable(f"{', '.join(sorted(waiting))}: {detail}"))
        for detail, waiting in agents.items()
    )
    return Text("\n").join(lines)
