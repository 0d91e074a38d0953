"""Waiting for conditions: what tests use where others sleep and hope."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    """Return as soon as `condition` holds; fail after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)
