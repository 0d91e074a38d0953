"""Virtual time: it moves to the next timer when no task can run, so that waiting costs nothing."""

import asyncio
import random
import selectors
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from logging import CRITICAL
from types import ModuleType, SimpleNamespace
from typing import Any, Self, TypeVar
from unittest.mock import patch

import structlog
import tenacity

_Result = TypeVar("_Result")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class NothingWillHappen(RuntimeError):
    """Every task waits for another one, and no timer is set."""


class _Jump(selectors.SelectSelector):
    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise NothingWillHappen
        self.loop.now_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    now_s: float = 0.0
    epoch = EPOCH

    def __init__(self) -> None:
        jump = _Jump()
        jump.loop = self
        super().__init__(jump)

    def time(self) -> float:
        return self.now_s

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.now_s)

    def run_in_executor(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, executor: object, func: Callable[..., _Result], *args: Any
    ) -> asyncio.Future[_Result]:
        """Runs at once what a thread would do: real time passes in a thread, and virtual time would run ahead of it."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def _datetime_of(now: Callable[[], datetime]) -> type[datetime]:
    class Virtual(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
            assert tz is UTC
            return now()  # pyright: ignore[reportReturnType] -- a datetime like any other

    return Virtual


@cache
def _reading_clocks() -> list[ModuleType]:
    read = ("serve_deployments.", "app.log.announced_ends", "app.log.erasure")
    return [tenacity, *(module for name, module in sys.modules.items() if name.startswith(read))]


@contextmanager
def virtual_time(seed: int = 0) -> Generator[VirtualLoop]:
    """A loop of its own; the coordinator, agents, engines' clients, announcements and retries use its time.

    The jitter of retries is drawn from `seed`, and nothing is logged.
    """
    loop = VirtualLoop()
    logging, drawn = structlog.get_config(), random.getstate()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))
    random.seed(seed)
    clocks = SimpleNamespace(monotonic=loop.time, time=lambda: loop.now().timestamp())
    try:
        with ExitStack() as patches:
            for module in _reading_clocks():
                if getattr(module, "datetime", None) is datetime:
                    patches.enter_context(patch.object(module, "datetime", _datetime_of(loop.now)))
                if getattr(module, "time", None) is time:
                    patches.enter_context(patch.object(module, "time", clocks))
            yield loop
    finally:
        loop.close()
        structlog.configure(**logging)
        random.setstate(drawn)
