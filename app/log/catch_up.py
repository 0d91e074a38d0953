"""Following the log: hear what comes first, read what was stored before second, and again after whatever was missed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import Journal, Record, Subscription

RETRY_S = 1.0


async def subscribe_and_replay(
    journal: Journal,
    patterns: Sequence[str],
    apply: Callable[[Record], None],
    read: Callable[[Journal], Awaitable[None]],
    until_doubted: Callable[[Journal, asyncio.Event], Awaitable[None]],
) -> None:
    """Give `apply` what is stored from now on and have `read` bring in the rest, until cancelled.

    Reads again when `until_doubted` returns; the event that it is given tells that a connection was lost and is back.
    Waits for a log that is away. A record may come twice, and before an older one.
    """
    doubted = asyncio.Event()
    unhook = journal.on_reconnect(doubted.set)
    subscription = await _subscribed(journal, patterns, apply)
    try:
        while True:
            doubted.clear()
            try:
                await read(journal)
            except JournalUnavailable:
                await asyncio.sleep(RETRY_S)
                continue
            await until_doubted(journal, doubted)
    finally:
        unhook()
        await subscription.close()


async def _subscribed(journal: Journal, patterns: Sequence[str], apply: Callable[[Record], None]) -> Subscription:
    while True:
        try:
            return await journal.subscribe(patterns, apply)
        except JournalUnavailable:
            await asyncio.sleep(RETRY_S)
