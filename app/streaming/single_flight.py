"""Caches that load a value once for all concurrent requests."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from app.deliberation.errors import JournalUnavailable

_Value = TypeVar("_Value")
_Key = TypeVar("_Key", bound=Hashable)


class SingleFlightCache(Generic[_Value]):
    """One value, fresh for `fresh_s`, or for `pace` times its cost if that is less; one load serves all requests."""

    def __init__(self, fresh_s: float, pace: float | None = None) -> None:
        self._fresh_s = fresh_s
        self._pace = pace
        self._lock = asyncio.Lock()
        self._values: list[_Value] = []
        self._fresh_until_s = 0.0
        self._failure: JournalUnavailable | None = None
        self._failed_at_s = 0.0

    @property
    def idle(self) -> bool:
        return not self._lock.locked() and asyncio.get_running_loop().time() > self._fresh_until_s

    def clear(self) -> None:
        self._values.clear()

    def charge(self, spent_s: float) -> None:
        fresh_s = self._fresh_s if self._pace is None else min(self._fresh_s, self._pace * spent_s)
        self._fresh_until_s = max(self._fresh_until_s, asyncio.get_running_loop().time() + fresh_s)

    async def get(
        self, load: Callable[[], Awaitable[_Value]], fits: Callable[[_Value], bool] = lambda value: True
    ) -> _Value:
        """The value if it is fresh and `fits`, otherwise a new one. Raises what `load` raises."""
        loop = asyncio.get_running_loop()
        requested_at_s = loop.time()
        async with self._lock:
            if self._values and loop.time() <= self._fresh_until_s and fits(self._values[0]):
                return self._values[0]
            if self._failure is not None and self._failed_at_s >= requested_at_s:
                raise JournalUnavailable(str(self._failure)) from self._failure
            began_s = loop.time()
            try:
                value = await load()
            except JournalUnavailable as exc:
                self._failure, self._failed_at_s = exc, loop.time()
                raise
            self._values, self._failure = [value], None
            self.charge(loop.time() - began_s)
            return value


class KeyedSingleFlightCache(Generic[_Key, _Value]):
    """A SingleFlightCache for each key, `size_max` at most; stale ones are dropped first."""

    def __init__(self, fresh_s: float, pace: float | None = None, size_max: int = 64) -> None:
        self._fresh_s = fresh_s
        self._pace = pace
        self._size_max = size_max
        self._caches: dict[_Key, SingleFlightCache[_Value]] = {}

    def __getitem__(self, key: _Key) -> SingleFlightCache[_Value]:
        cache = self._caches.get(key)
        if cache is None:
            self._caches = {cached_key: known for cached_key, known in self._caches.items() if not known.idle}
            while len(self._caches) >= self._size_max:
                del self._caches[next(iter(self._caches))]
            cache = self._caches[key] = SingleFlightCache[_Value](self._fresh_s, self._pace)
        return cache

    def clear(self) -> None:
        self._caches.clear()
