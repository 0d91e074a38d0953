import asyncio
import json
import os
import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.async_api import Page

from app.deliberation.facts import TERMINAL_STATUS
from app.streaming.frames import EVENT_TYPES
from tests.e2e.conftest import Stack
from tests.integration.cli.children import alive

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

# Stages are shorter than a gateway's start, so that at least one of them ends while it is away.
SLOW: dict[str, Any] = {"duration_ms": 700, "faults": [], "behaviour": "normal"}
FOLLOW = """([path, types]) => {
  const seen = globalThis.seen = {events: [], opened: 0, said: []};
  const stream = globalThis.stream = new EventSource(path);
  for (const type of types)
    stream.addEventListener(type, (frame) => seen.events.push([frame.lastEventId, frame.type, frame.data]));
  stream.addEventListener("stream.opened", () => { seen.opened += 1; });
  for (const type of ["stream.reconnect", "stream.gap"])
    stream.addEventListener(type, (frame) => seen.said.push([type, JSON.parse(frame.data).reason]));
}"""


@dataclass
class Follower:
    page: Page

    async def open(self, path: str) -> None:
        await self.page.evaluate(FOLLOW, [path, sorted(EVENT_TYPES)])

    async def until(self, condition: str, timeout_s: float = 60) -> None:
        await self.page.wait_for_function(condition, timeout=timeout_s * 1_000, polling=20)

    async def said(self) -> list[list[str]]:
        return await self.page.evaluate("seen.said")

    async def events(self) -> list[tuple[str, str, str]]:
        return [tuple(event) for event in await self.page.evaluate("seen.events")]


@pytest.fixture
def follower(page: Page) -> Follower:
    return Follower(page)


async def stored(stack: Stack, deliberation_id: str) -> list[tuple[str, str, str]]:
    epoch = (await stack.journal.state()).epoch
    pattern = f"deliberations.default.{deliberation_id}.>"
    events = [(f"{epoch}-{record.sequence}", record.data.decode()) async for record in stack.journal.read(pattern, 0)]
    return [(id, data.removeprefix('{"type":"').partition('"')[0], data) for id, data in events]


async def restarted(stack: Stack, follower: Follower, number: int) -> tuple[datetime, datetime]:
    pid = stack.child("gateway")["pid"]
    os.kill(pid, number)
    async with asyncio.timeout(60):
        while alive(pid):
            await asyncio.sleep(0.01)
    gone_at = datetime.now(UTC)
    await follower.until("seen.opened >= 2 || stream.readyState === EventSource.CLOSED")
    return gone_at, datetime.now(UTC)


def rebuilt(events: list[tuple[str, str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    pieces: dict[str, str] = {}
    recorded: dict[str, str] = {}
    for _, kind, data in events:
        event = json.loads(data)
        if kind == "call.started":
            pieces[event["call_id"]] = ""
        elif kind == "call.delta":
            assert event["offset"] <= len(pieces[event["call_id"]]), "a hole"
            pieces[event["call_id"]] = pieces[event["call_id"]][: event["offset"]] + event["text"]
        elif kind == "call.finished":
            recorded[event["call_id"]] = event["text"]
    return pieces, recorded


async def followed_to_its_end(stack: Stack, follower: Follower, deliberation_id: str) -> list[tuple[str, str, str]]:
    await follower.until("stream.readyState === EventSource.CLOSED")
    seen = await follower.events()
    log = await stored(stack, deliberation_id)
    assert [event[:2] for event in seen] == [event[:2] for event in log]
    assert seen == log
    assert seen[-1][1] in TERMINAL_STATUS
    return seen


def stored_while_away(events: list[tuple[str, str, str]], away: tuple[datetime, datetime]) -> list[dict[str, Any]]:
    parsed = [json.loads(data) for _, _, data in events]
    return [event for event in parsed if away[0] < datetime.fromisoformat(event["ts"]) < away[1]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["drained", "killed"])
async def test_an_event_source_loses_and_doubles_nothing_when_its_gateway_is(
    stack: Stack, follower: Follower, number: signal.Signals
) -> None:
    await stack.script(**SLOW)
    deliberation_id = await stack.submit(seed=5)
    await follower.open(f"/deliberations/{deliberation_id}/events?after=0")
    await follower.until("seen.events.filter(([, type]) => type === 'call.delta').length >= 20")
    away = await restarted(stack, follower, number)
    events = await followed_to_its_end(stack, follower, deliberation_id)
    assert stored_while_away(events, away), "the council went on without a viewer"
    texts, recorded = rebuilt(events)
    assert len(recorded) >= 9 and texts == recorded
    assert await follower.said() == ([["stream.reconnect", "draining"]] if number == signal.SIGTERM else [])
    assert await follower.page.evaluate("seen.opened") == 2
    assert (await stack.read(deliberation_id))["status"] == "completed"


async def test_one_event_source_of_several_councils_keeps_its_filters_when_its_gateway_is_killed(
    stack: Stack, follower: Follower
) -> None:
    await stack.script(**SLOW)
    ids = [await stack.submit(seed=seed) for seed in (6, 7)]
    unseen = await stack.submit(seed=8)
    named = "&".join(f"deliberation={id}" for id in ids)
    await follower.open(f"/events?{named}&after=0")
    await follower.until("seen.events.filter(([, type]) => type === 'call.finished').length >= 3")
    away = await restarted(stack, follower, signal.SIGKILL)
    await follower.until("stream.readyState === EventSource.CLOSED")
    seen = await follower.events()
    log = [event for id in ids for event in await stored(stack, id) if event[1] != "call.delta"]
    assert seen == sorted(log, key=lambda event: int(event[0].rpartition("-")[2]))
    assert stored_while_away(seen, away), "the councils went on without a viewer"
    assert not any(unseen in data for _, _, data in seen)
    await stack.until(unseen, status="completed")
