"""The live view of a council: a header and one lane per agent, sized to the terminal."""

from collections.abc import Iterator
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from app.cli.render.lanes import IDLE, CouncilView, Lane, is_simulated, stage_text
from app.cli.render.text import printable, prose, role_style, seconds

_STATE_STYLES = {"writing": "bold", "failed": "red", "stopped": "yellow"}
_TEXT_LINES_MAX = 8
_ACTIVITY_WIDTH = 42  # fixed, so that the bars keep their length while the words change
_FRAME_LINES = 3  # a panel's two borders and its bar
_HEADER_LINES = 2


def progress_line(view: CouncilView, now: datetime) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(printable(view.strategy or "deliberation"), "bold")
    if view.ended:
        line.append(f" · {view.status}", "bold green" if view.status == "completed" else "bold red")
    elif view.stage:
        line.append(f" · stage {view.stage}: {stage_text(view.purpose, view.round)}", "bold")
        line.append(f" · {view.calls_seen} of {view.calls_total} answered")
    else:
        line.append(" · waits for a coordinator")
    if view.status == "cancelling":
        line.append(" · cancelling", "yellow")
    if view.accepted_at is not None:
        line.append(f" · {seconds(max(0.0, ((view.ended_at or now) - view.accepted_at).total_seconds()))}")
    line.append(f" · {view.tokens:,} tokens")
    line.append(f" · {view.deliberation_id}", "dim")
    return line


def _activity(view: CouncilView, lane: Lane) -> Text:
    if view.ended and not lane.calls_opened:
        return Text("not asked", "dim")  # a strategy may end before it asks every agent
    text = Text(f"{lane.purpose} ", _STATE_STYLES.get(lane.state, ""))
    if lane.state != "writing" and lane.purpose != IDLE:
        text.append(f"{lane.state} ")
    if lane.problem is not None:
        text.append(f"({lane.problem}) ", "red")
    if lane.attempt > 1:
        text.append(f"attempt {lane.attempt} ", "yellow")
    text.append(f"{lane.calls_done}/{view.planned(lane)} calls", "dim")
    text.append("" if lane.state == "waiting" else f", {len(view.text(lane)):,} chars", "dim")
    return text


def _bar(lane: Lane) -> ProgressBar:
    style = role_style(lane.role)
    return ProgressBar(total=1.0, completed=lane.progress, complete_style=style, finished_style=style)


def _last_lines(console: Console, text: str, width: int, count: int) -> Text:
    tail = prose(text).rstrip()[-width * (count + 1) :]
    lines = [line for line in Text(tail).wrap(console, width) if line.plain.strip()][-count:]
    return Text("\n").join([*lines, *[Text("")] * (count - len(lines))])


def _panel(console: Console, view: CouncilView, lane: Lane, text_lines: int) -> Panel:
    row = Table.grid(expand=True, padding=(0, 1))
    row.add_column(ratio=1)
    row.add_column(justify="right", no_wrap=True, min_width=_ACTIVITY_WIDTH)
    row.add_row(_bar(lane), _activity(view, lane))
    content: list[RenderableType] = [row]
    if text_lines:
        content.append(_last_lines(console, view.text(lane), console.width - 4, text_lines))
    style = role_style(lane.role)
    border = style if lane.state == "writing" else "dim"
    title = Text.assemble(
        (lane.agent_id, f"bold {style}"), f" {printable(lane.role)} ", (printable(lane.model or ""), "dim")
    )
    return Panel(Group(*content), title=title, title_align="left", border_style=border)


def _compact(view: CouncilView, lanes: list[Lane]) -> Table:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True, justify="right", min_width=_ACTIVITY_WIDTH)
    for lane in lanes:
        name = Text.assemble((lane.agent_id, role_style(lane.role)), f" {printable(lane.role)}")
        table.add_row(name, _bar(lane), _activity(view, lane))
    return table


def _lanes(console: Console, view: CouncilView) -> Iterator[RenderableType]:
    lanes = list(view.lanes.values())
    room = console.height - _HEADER_LINES - 1
    text_lines = min(_TEXT_LINES_MAX, room // max(1, len(lanes)) - _FRAME_LINES)
    if view.ended or text_lines < 0:
        shown = lanes if view.ended else lanes[: max(1, room - 1)]
        yield _compact(view, shown)
        if len(shown) < len(lanes):
            yield Text(f"and {len(lanes) - len(shown)} agents more", "dim")
    else:
        for lane in lanes:
            yield _panel(console, view, lane, text_lines)


def picture(console: Console, view: CouncilView, now: datetime) -> Group:
    """The whole live view; after the end, one line per agent."""
    simulated = any(is_simulated(lane.model) for lane in view.lanes.values())
    header = Table.grid(expand=True)
    header.add_column(ratio=1)
    header.add_column(justify="right", no_wrap=True)
    notice = Text("simulated engine ", "black on yellow") if simulated else Text("")
    header.add_row(progress_line(view, now), notice)
    state = Text(printable(view.notice), "yellow") if view.notice else Text("")
    return Group(header, state, *_lanes(console, view))
