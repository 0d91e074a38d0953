"""Commands that wait print a line at least every five seconds, and say what they wait for."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import NoReturn

from rich.console import Console
from rich.text import Text

from app.cli.render.lanes import CouncilView
from app.cli.render.panels import stage_text
from app.cli.render.prose import printable
from app.deliberation import facts
from app.deliberation.facts import CallFinished, CallWaiting, Event

# Below the promised five seconds, so that a busy machine keeps the promise too.
SILENCE_MAX_S = 4.0
# Every agent of a council waits for the same engines: one of their lines is enough.
WAITING_LINE_INTERVAL = timedelta(seconds=2)

WAIT_EVENT_TYPES = "call.waiting,call.finished"
# A waiting call reports every three to five seconds, so that one that reports no more waits no more.
_RECENT = timedelta(seconds=10)

PrintLine = Callable[[str], None]


def print_to_stderr(line: str) -> None:
    """Print a line beside a command's output."""
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


def waiting_line(view: CouncilView, now: datetime) -> str:
    """What a silent deliberation waits for, with the seconds since its acceptance."""
    passed_s = max(0.0, (now - (view.accepted_at or now)).total_seconds())
    if view.stage:
        stage = f"stage {view.stage} {stage_text(view.purpose, view.round)}"
        what = f"{stage}, {view.calls_seen} of {view.calls_total} answered"
    else:
        what = "no coordinator has started it"
    return f"{passed_s:6.1f} s  still waiting: {what}"


class WaitingLines:
    """Chooses the `call.waiting` events of a deliberation that become lines."""

    def __init__(self) -> None:
        self._last_at: datetime | None = None

    def skips(self, event: facts.Event | None) -> bool:
        """Whether the event repeats what a line said a moment ago."""
        if not isinstance(event, facts.CallWaiting):
            return False
        if self._last_at is not None and event.ts < self._last_at + WAITING_LINE_INTERVAL:
            return True
        self._last_at = event.ts
        return False


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
