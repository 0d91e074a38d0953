"""Tasks of a page's thread that take long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Page

TASK_MS_MAX = 100
# The observer's clock and the trace's differ by less.
_CLOCKS_MS = 2

_OBSERVED = """const long = [];
const observer = new PerformanceObserver((list) => long.push(...list.getEntries()));
observer.observe({ type: "longtask" });
window.longTasks = () => [...long, ...observer.takeRecords()].map(({ duration }) => duration);"""
_TRACED = {"includedCategories": ["toplevel"], "excludedCategories": ["*"]}


@asynccontextmanager
async def long_tasks(page: Page) -> AsyncIterator[list[tuple[float, float]]]:
    """The tasks over TASK_MS_MAX of the document that `page` opens in the block, known at its end.

    PerformanceObserver reports them. A pair has the milliseconds by the clock, and those on a CPU by Chromium's trace.
    A task that waited for a CPU, as beside other tests, is not long.
    """
    long: list[tuple[float, float]] = []
    events: list[dict[str, Any]] = []
    ended = asyncio.Event()
    session = await page.context.new_cdp_session(page)
    session.on("Tracing.dataCollected", lambda part: events.extend(part["value"]))
    session.on("Tracing.tracingComplete", lambda _: ended.set())
    await page.add_init_script(_OBSERVED)
    await session.send("Tracing.start", {"traceConfig": _TRACED})
    yield long
    observed: list[float] = await page.evaluate("longTasks()")
    await session.send("Tracing.end")
    await ended.wait()
    tasks = [(each["dur"] / 1_000, each["tdur"] / 1_000) for each in events if "tdur" in each and "dur" in each]
    assert tasks, "the trace has tasks"
    for wall_ms in observed:
        cpu_ms = max((cpu for wall, cpu in tasks if abs(wall - wall_ms) < _CLOCKS_MS), default=wall_ms)
        if cpu_ms > TASK_MS_MAX:
            long.append((wall_ms, cpu_ms))
