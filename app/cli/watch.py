"""`deliberate watch`: shows a running deliberation; `ask` and `demo` use it too."""

import asyncio
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.live import Live

from app.api.schemas import Deliberation
from app.cli.client import GatewayClient, JsonObject, Retry, parsed
from app.cli.exits import Exit, exit_of, naming_options, print_json
from app.cli.options import IdArgument
from app.cli.render.lanes import CouncilView
from app.cli.render.lines import PrintLine, event_line, heartbeats, print_to_stderr, waiting_line
from app.cli.render.panels import picture
from app.cli.render.report import deliberation_report
from app.cli.resources import full_id
from app.cli.target import on_gateway
from app.deliberation.facts import CallWaiting

_FRAME_S = 1 / 8  # bounds the frame rate, to leave the CPU to the work
_IDLE_FRAME_S = 1.0  # updates the displayed time without events
# Every agent of a council waits for the same engines: one of their lines is enough.
_WAITING_LINE_INTERVAL = timedelta(seconds=2)


def retry_text(retry: Retry) -> str:
    return f"stream lost: {retry.reason}; attempt {retry.attempt} in {retry.delay_s:.1f} s"


async def _draw(live: Live, console: Console, view: CouncilView, changed: asyncio.Event) -> NoReturn:
    while True:
        live.update(picture(console, view, datetime.now(UTC)), refresh=True)
        await asyncio.sleep(_FRAME_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(_IDLE_FRAME_S):
                await changed.wait()
        changed.clear()


async def show_lanes(gateway: GatewayClient, deliberation_id: str, console: Console, *, after: str = "0") -> None:
    view, changed = CouncilView(), asyncio.Event()

    def show_retry(retry: Retry) -> None:
        view.notice = retry_text(retry)
        changed.set()

    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        drawing = asyncio.create_task(_draw(live, console, view, changed))
        try:
            async with aclosing(gateway.follow(deliberation_id, after=after, on_retry=show_retry)) as frames:
                async for frame in frames:
                    view.apply(frame)
                    changed.set()
        finally:
            drawing.cancel()
            live.update(picture(console, view, datetime.now(UTC)), refresh=True)


async def show_lines(
    gateway: GatewayClient, deliberation_id: str, print_line: PrintLine, *, after: str = "0", waits_only: bool = False
) -> None:
    """Print a line per event, or per wait alone, and one after each silence of four seconds, until the end."""
    view, waited_at = CouncilView(), None
    async with heartbeats(lambda: waiting_line(view, datetime.now(UTC)), print_line) as spoke:

        def speak(line: str) -> None:
            print_line(line)
            spoke.set()

        follow = gateway.follow(
            deliberation_id, after=after, deltas=False, on_retry=lambda retry: speak(retry_text(retry))
        )
        async with aclosing(follow) as frames:
            async for frame in frames:
                noticed = view.notice
                event = view.apply(frame)
                news = view.notice if view.notice != noticed else None
                if isinstance(event, CallWaiting):
                    if waited_at is not None and event.ts < waited_at + _WAITING_LINE_INTERVAL:
                        continue
                    waited_at = event.ts
                elif waits_only:
                    continue
                line = event_line(event, view.accepted_at) if event is not None else news
                if line:
                    speak(line)


async def print_events(
    gateway: GatewayClient, deliberation_id: str, *, after: str = "0", deltas: bool = True
) -> JsonObject:
    """Print each event's JSON on a line until the end, and notices to stderr. Returns the resource."""
    view = CouncilView()
    follow = gateway.follow(
        deliberation_id, after=after, deltas=deltas, on_retry=lambda retry: print_to_stderr(retry_text(retry))
    )
    beats = heartbeats(lambda: waiting_line(view, datetime.now(UTC)), print_to_stderr)
    async with beats as spoke, aclosing(follow) as frames:
        async for frame in frames:
            view.apply(frame)
            print_json(frame.fields())
            spoke.set()
    return await gateway.deliberation(deliberation_id)


async def until_ended(gateway: GatewayClient, deliberation_id: str, print_line: PrintLine) -> JsonObject:
    """Wait for a deliberation's end; `print_line` gets the cause every few seconds. Returns the resource."""
    await show_lines(gateway, deliberation_id, print_line, waits_only=True)
    return await gateway.deliberation(deliberation_id)


async def watch_deliberation(
    gateway: GatewayClient, deliberation_id: str, console: Console, *, after: str = "0"
) -> JsonObject:
    """Show a deliberation until its end, live if the console can redraw, then its report. Returns the resource."""
    if console.is_terminal and not console.is_dumb_terminal:
        await show_lanes(gateway, deliberation_id, console, after=after)
    else:
        print_line = partial(console.print, markup=False, soft_wrap=True)
        await show_lines(gateway, deliberation_id, print_line, after=after)
    resource = await gateway.deliberation(deliberation_id)
    console.print(deliberation_report(parsed(Deliberation, resource)))
    return resource


@on_gateway
async def watch(
    gateway: GatewayClient,
    deliberation_id: IdArgument,
    *,
    as_json: bool,
    after: Annotated[str, typer.Option(metavar="CURSOR", help="Start after this cursor; 0 is the beginning.")] = "0",
    deltas: Annotated[bool, typer.Option(help="With --json, also print pieces of text.")] = True,
) -> Exit:
    """Watch a deliberation live until it ends.

    A terminal shows a lane with a progress bar per agent, then the ranking, scores and the winning text. Elsewhere each
    event is a line. The stream resumes at its cursor after a restart of the gateway. Ctrl-C stops only this command.
    """
    id = await full_id(gateway, deliberation_id)
    # The first request reports an unknown id or an unreachable gateway without retries.
    await gateway.deliberation(id)
    with naming_options({"after": "--after"}):
        if as_json:
            resource = await print_events(gateway, id, after=after, deltas=deltas)
        else:
            resource = await watch_deliberation(gateway, id, Console(highlight=False), after=after)
    return exit_of(parsed(Deliberation, resource).status)
