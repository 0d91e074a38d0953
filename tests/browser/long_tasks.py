"""Tasks of the page's thread that take long, as PerformanceObserver reports them from 50 ms on."""

from playwright.async_api import Page

TASK_MS_MAX = 100

_OBSERVED = """window.longTasks = [];
new PerformanceObserver((list) => longTasks.push(...list.getEntries().map(({ duration }) => Math.round(duration))))
  .observe({ type: "longtask", buffered: true });"""


async def observe(page: Page) -> None:
    """Reports the tasks of every document that the page opens from now on, its first ones included."""
    await page.add_init_script(_OBSERVED)


async def long_tasks(page: Page) -> list[int]:
    """The milliseconds of each task over the limit. The observer reports a task behind the next frame."""
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 200)))")
    return [ms for ms in await page.evaluate("longTasks") if ms > TASK_MS_MAX]
