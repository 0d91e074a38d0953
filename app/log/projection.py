"""Projections of the log: subscribe, replay the stored records, and again after live records may have been lost."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import Journal, Record, Subscription

RETRY_S = 1.0


@dataclass(eq=False)
class Projection:
    """Keeps a view of some subjects current: `apply` takes live records, `replay` reads stored ones.

    A record may come twice, and before an older one. `wait` returns when a replay is due; `stale` is set when live
    records may have been lost.
    """

    journal: Journal
    patterns: Sequence[str]
    apply: Callable[[Record], None]
    replay: Callable[[Journal], Awaitable[None]]
    wait: Callable[["Projection"], Awaitable[object]]
    retry_s: float = field(default_factory=lambda: RETRY_S)
    stale: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            stack.callback(self.journal.on_reconnect(self.stale.set))
            subscription = await self._subscribe()
            stack.push_async_callback(subscription.close)
            while True:
                self.stale.clear()
                try:
                    await self.replay(self.journal)
                except JournalUnavailable:
                    await self.stale_within(self.retry_s)
                else:
                    await self.wait(self)

    async def stale_within(self, seconds: float) -> bool:
        """Wait until live records may have been lost; False when none were after `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self.stale.wait()
        return False

    async def _subscribe(self) -> Subscription:
        while True:
            try:
                return await self.journal.subscribe(self.patterns, self.apply)
            except JournalUnavailable:
                await asyncio.sleep(self.retry_s)
