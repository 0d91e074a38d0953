"""Commands that wait: a line at least every few seconds, which names what they wait for."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import Any, cast

import pytest

from app.cli.client import GatewayClient
from app.cli.render.lanes import CouncilView
from app.cli.render.lines import event_line, progress_reports
from app.cli.watch import print_events, until_ended
from app.client.sse import Frame
from app.deliberation.facts import CallWaiting, StageOpened, encode
from tests.components.cli.council_run import ID, Council
from tests.conditions import until
from tests.story import Story


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr("app.cli.render.lines.SILENCE_MAX_S", 0.02)


def waiting(council: Council, agent_id: str = "dev-001", later_s: float = 0) -> CallWaiting:
    return Story(ID).waiting(agent_id, council.events[-1].ts + timedelta(seconds=later_s))


def frame_of(event: CallWaiting) -> Frame:
    return Frame(id="e1-1", event=event.type, data=encode(event).decode())


class SilentGateway:
    """Sends some frames, then nothing until it is released; then the rest of the council."""

    def __init__(self, council: Council, frames: list[Frame]) -> None:
        self.council = council
        self.frames = frames
        self.released = asyncio.Event()

    async def follow(self, *_: object, on_retry: Callable[..., None], **__: object) -> AsyncGenerator[Frame]:
        for frame in self.frames:
            yield frame
        await self.released.wait()

    async def deliberation(self, _: str) -> dict[str, Any]:
        return self.council.resource


async def test_waiting_for_an_end_says_what_the_deliberation_waits_for(council: Council) -> None:
    opened = next(place for place, event in enumerate(council.events) if isinstance(event, StageOpened))
    gateway = SilentGateway(council, council.frames[: opened + 2])
    lines: list[str] = []
    running = asyncio.create_task(until_ended(cast("GatewayClient", gateway), ID, lines.append))
    await until(lambda: len(lines) >= 2)
    gateway.released.set()
    assert (await running)["id"] == ID
    assert all("still waiting: stage 1 propose, 0 of 3 answered" in line for line in lines)


async def test_waiting_for_an_end_names_the_engine_once_for_all_agents(council: Council) -> None:
    frames = [frame_of(waiting(council, agent)) for agent in ("dev-001", "dev-002", "dev-003")]
    gateway = SilentGateway(council, [*frames, frame_of(waiting(council, later_s=3))])
    gateway.released.set()
    lines: list[str] = []
    await until_ended(cast("GatewayClient", gateway), ID, lines.append)
    told = [line for line in lines if "engine http://e1:8000 cannot be connected to since" in line]
    assert len(told) == 2 and "dev-001 waits" in told[0]


async def test_json_events_stay_alone_on_stdout_while_stderr_breaks_the_silence(
    council: Council, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = SilentGateway(council, council.frames[:1])
    running = asyncio.create_task(print_events(cast("GatewayClient", gateway), ID))
    heard: list[str] = []

    def beaten() -> bool:
        heard.append(capsys.readouterr().err)
        return "still waiting: no coordinator has started it" in "".join(heard)

    await until(beaten)
    gateway.released.set()
    await running


async def test_long_work_reports_its_newest_state_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []

    def told(text: str) -> bool:
        heard.append(capsys.readouterr().err)
        return text in "".join(heard)

    async with progress_reports("starting") as report:
        await until(lambda: told("starting"))
        report("3 of 9")
        await until(lambda: told("3 of 9"))


def test_a_wait_is_a_line_and_the_notice_of_the_live_view(council: Council) -> None:
    view, event = CouncilView(), waiting(council)
    for frame in council.frames[:2]:
        view.apply(frame)
    assert view.apply(frame_of(event)) == event
    assert view.notice == event.detail
    assert "dev-001 waits: engine http://e1:8000" in (event_line(event, view.accepted_at) or "")
