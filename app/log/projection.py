"""Projections of the log: subscribe, replay what is stored, and replay again when live records may have been lost."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Self

from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import Journal, Record, Subscription

RETRY_S = 1.0


class Projection:
    """Keeps what is derived from some subjects of the log current, and waits for a log that is away.

    `apply` takes live records, `replay` reads stored ones: a record may come twice, and before an older one. `wait`
    returns when a replay is due; `stale` is set when live records may have been lost, so that one is due at once.
    """

    def __init__(
        self,
        journal: Journal,
        patterns: Sequence[str],
        apply: Callable[[Record], None],
        replay: Callable[[Journal], Awaitable[None]],
        wait: Callable[[Self], Awaitable[object]],
        *,
        retry_s: float | None = None,
    ) -> None:
        self.stale = asyncio.Event()
        self._journal = journal
        self._patterns = patterns
        self._apply = apply
        self._replay = replay
        self._wait = wait
        self._retry_s = RETRY_S if retry_s is None else retry_s

    async def run(self) -> None:
        """Run until cancelled. Raises what `replay` raises, except JournalUnavailable."""
        async with AsyncExitStack() as stack:
            stack.callback(self._journal.on_reconnect(self.stale.set))
            subscription = await self._subscribe()
            stack.push_async_callback(subscription.close)
            while True:
                self.stale.clear()
                try:
                    await self._replay(self._journal)
                except JournalUnavailable:
                    await self.stale_within(self._retry_s)
                else:
                    await self._wait(self)

    async def stale_within(self, seconds: float) -> bool:
        """Wait until live records may have been lost; False when none were after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return await self.stale.wait()
        except TimeoutError:
            return False

    async def _subscribe(self) -> Subscription:
        while True:
            try:
                return await self._journal.subscribe(self._patterns, self._apply)
            except JournalUnavailable:
                await asyncio.sleep(self._retry_s)
