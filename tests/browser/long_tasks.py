"""Tasks of a page's thread that take long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Page

TASK_MS_MAX = 100

_OBSERVED = """const long = [];
const observer = new PerformanceObserver((list) => long.push(...list.getEntries()));
observer.observe({ type: "longtask" });
window.longTasks = (mark) => {
  const { startTime: now } = performance.mark(mark);
  return [...long, ...observer.takeRecords()].map(({ startTime, duration }) => [now - startTime, duration]);
};"""
_MARK = "long tasks were read"
_TRACED = {"includedCategories": ["toplevel", "blink.user_timing"], "excludedCategories": ["*"]}


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
    observed: list[tuple[float, float]] = await page.evaluate("(mark) => longTasks(mark)", _MARK)
    await session.send("Tracing.end")
    await ended.wait()
    # The mark stands on both clocks, and names the page's thread.
    (mark,) = [each for each in events if each["name"] == _MARK]
    tasks = [each for each in events if each["tid"] == mark["tid"] and each["pid"] == mark["pid"] and "tdur" in each]
    for ms_ago, wall_ms in observed:
        began = mark["ts"] - 1_000 * ms_ago
        during = [each for each in tasks if each["ts"] < began + 1_000 * wall_ms and each["ts"] + each["dur"] > began]
        cpu_ms = max(each["tdur"] for each in during) / 1_000
        if min(wall_ms, cpu_ms) > TASK_MS_MAX:
            long.append((wall_ms, cpu_ms))
