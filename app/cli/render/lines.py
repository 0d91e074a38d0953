"""Plain lines about deliberations, for logs and terminals that cannot redraw, at least one every five seconds."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import NoReturn, assert_never

from rich.console import Console
from rich.text import Text

from app.cli.render.lanes import CouncilView, stage_text
from app.cli.render.text import counted, printable, seconds
from app.deliberation import facts
from app.deliberation.strategies import STRATEGIES

# Below the promised five seconds, so that a busy machine keeps the promise too.
SILENCE_MAX_S = 4.0
WAIT_EVENT_TYPES = "call.waiting,call.finished"
# A waiting call reports every three to five seconds, so that one that reports no more waits no more.
_RECENT = timedelta(seconds=10)

PrintLine = Callable[[str], None]


def parameter_texts(parameters: Mapping[str, object]) -> list[str]:
    """Each parameter of a strategy as `name = value`; one without a value is left out."""
    return [
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in parameters.items()
        if value not in (None, [], {})
    ]


def cancelled_text(by: facts.CancelledBy, reason: str | None) -> str:
    return f"by {by}{f': {reason}' if reason else ''}"


def _accepted(event: facts.Accepted) -> str:
    specification = event.specification
    agents = ", ".join(f"{agent.agent_id} ({agent.role})" for agent in specification.agents)
    definition = STRATEGIES.get(specification.strategy)
    rounds = f"; {counted(specification.rounds, 'round')}" if definition is None or definition.rounds else ""
    parameters = "".join(f"; {text}" for text in parameter_texts(specification.parameters))
    return f"accepted {event.deliberation_id}: {specification.strategy} of {agents}{rounds}{parameters}"


def _finished(event: facts.CallFinished) -> str:
    took = f"in {seconds(event.duration_ms / 1_000)}"
    if event.problem is not None:
        return f"  {event.agent_id} failed {took}: {event.problem.code}: {event.problem.detail}"
    return f"  {event.agent_id} answered {took}: {len(event.text or ''):,} characters, {event.usage.tokens:,} tokens"


def tool_text(use: facts.ToolUsed) -> str:
    """One use of a tool in a line: the tool, its server, the time, and its size or failure."""
    took = f"{use.name} of {use.server or 'no server'} in {seconds(use.duration_ms / 1_000)}"
    if use.problem is not None:
        return f"{took}: {use.problem.code}: {use.problem.detail}"
    return f"{took}: {'it failed, ' if use.failed else ''}{use.bytes:,} bytes"


def _describe(event: facts.Event) -> str | None:
    match event:
        case facts.Accepted():
            return _accepted(event)
        case facts.StageOpened():
            calls = counted(len(event.calls), "call")
            return f"stage {event.stage} {stage_text(event.purpose, event.round)}: {calls}, quorum {event.quorum}"
        case facts.CallStarted():
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            return f"  {event.agent_id} starts on {event.model}{again}"
        case facts.CallDelta():
            return None
        case facts.CallWaiting():
            return f"  {event.agent_id} waits: {event.detail}"
        case facts.CallFinished():
            return _finished(event)
        case facts.ToolStarted():
            return f"  {event.agent_id} begins {event.name} of {event.server}"
        case facts.ToolUsed():
            return f"  {event.agent_id} used {tool_text(event)}"
        case facts.StageClosed():
            return f"stage {event.stage} closed ({event.reason}): {len(event.seen)} seen"
        case facts.CancelRequested():
            return f"cancelling, {cancelled_text(event.by, event.reason)}"
        case facts.Resumed(given_back=True):
            return f"given back by {event.replica}, which stops; recorded results are kept"
        case facts.Resumed():
            return f"taken over by {event.replica}; recorded results are kept"
        case facts.Completed() | facts.Failed() | facts.Cancelled() | facts.TimedOut() | facts.Deleted():
            return event.type.removeprefix("deliberation.")
        case _:
            assert_never(event)


def event_line(event: facts.Event, started_at: datetime | None) -> str | None:
    """One line for an event with the seconds since `started_at`; None for a delta."""
    text = _describe(event)
    if text is None:
        return None
    passed_s = (event.ts - (started_at or event.ts)).total_seconds()
    return printable(f"{passed_s:6.1f} s  {text}").replace("\n", " ")


def waiting_line(view: CouncilView, now: datetime) -> str:
    """The stage or the coordinator that a silent deliberation waits for, with the seconds since its acceptance."""
    passed_s = max(0.0, (now - (view.accepted_at or now)).total_seconds())
    if view.stage:
        stage = f"stage {view.stage} {stage_text(view.purpose, view.round)}"
        awaited = f"{stage}, {view.calls_seen} of {view.calls_total} answered"
    else:
        awaited = "no coordinator has started it"
    return f"{passed_s:6.1f} s  still waiting: {awaited}"


def waits_text(events: Sequence[facts.Event], now: datetime) -> Text:
    """A line for each outage with the agents that wait; empty where none has waited lately. `events` are in order."""
    latest = dict[str, facts.CallWaiting]()
    for event in events:
        if isinstance(event, facts.CallWaiting):
            latest[event.call_id] = event
        elif isinstance(event, facts.CallFinished):
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


def print_to_stderr(line: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(line, markup=False)


@asynccontextmanager
async def heartbeats(line: Callable[[], str], print_line: PrintLine) -> AsyncGenerator[asyncio.Event]:
    """Print `line()` whenever the event that it yields was not set for `SILENCE_MAX_S`."""
    spoke = asyncio.Event()

    async def beat() -> NoReturn:
        while True:
            try:
                async with asyncio.timeout(SILENCE_MAX_S):
                    await spoke.wait()
                spoke.clear()
            except TimeoutError:
                print_line(line())

    task = asyncio.create_task(beat())
    try:
        yield spoke
    finally:
        task.cancel()


@asynccontextmanager
async def progress_reports(first: str) -> AsyncGenerator[PrintLine]:
    """Yields a function that takes the newest state of long work.

    On stderr a terminal shows it in a moving line; elsewhere it is printed every four seconds.
    """
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    latest = first
    with errors.status(first) as status:

        def report(text: str) -> None:
            nonlocal latest
            latest = text
            status.update(Text(text))

        def print_line(line: str) -> None:
            if not errors.is_terminal:
                errors.print(line, markup=False)

        async with heartbeats(lambda: latest, print_line):
            yield report
