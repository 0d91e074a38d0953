"""One answer for all who ask within a moment, so that a crowd of viewers asks the log what one of them would."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from app.deliberation.errors import JournalUnavailable

_Answer = TypeVar("_Answer")
_Key = TypeVar("_Key", bound=Hashable)


class SingleFlightCache(Generic[_Answer]):
    """An answer that holds for `fresh_s`. Whoever comes while it is asked for waits for it.

    With `pace` it holds that many times as long as it took to find, `fresh_s` at most: what is cheap is nearly always
    new, and what is dear takes no more than a share of 1/`pace` of the time. Those who waited for an answer that could
    not be given fail with it, rather than trying one after the other.
    """

    def __init__(self, fresh_s: float, pace: float | None = None) -> None:
        self._fresh_s = fresh_s
        self._pace = pace
        self._lock = asyncio.Lock()
        self._answers: list[_Answer] = []
        self._fresh_until_s = 0.0
        self._failure: JournalUnavailable | None = None
        self._failed_at_s = 0.0

    @property
    def idle(self) -> bool:
        """Whether nobody asks, and what was answered has grown old."""
        return not self._lock.locked() and asyncio.get_running_loop().time() > self._fresh_until_s

    def forget(self) -> None:
        """Whoever asks from now on gets a new answer."""
        self._answers.clear()

    def took(self, spent_s: float) -> None:
        """The answer has just cost so much, now or in addition: it holds accordingly from now on."""
        fresh_s = self._fresh_s if self._pace is None else min(self._fresh_s, self._pace * spent_s)
        self._fresh_until_s = max(self._fresh_until_s, asyncio.get_running_loop().time() + fresh_s)

    async def get(
        self, ask: Callable[[], Awaitable[_Answer]], fits: Callable[[_Answer], bool] = lambda answer: True
    ) -> _Answer:
        """The answer, if it is fresh and `fits`; otherwise a new one. Raises what `ask` raises."""
        loop = asyncio.get_running_loop()
        came_at_s = loop.time()
        async with self._lock:
            if self._answers and loop.time() <= self._fresh_until_s and fits(self._answers[0]):
                return self._answers[0]
            if self._failure is not None and self._failed_at_s >= came_at_s:
                raise JournalUnavailable(str(self._failure)) from self._failure
            asked_at_s = loop.time()
            try:
                answer = await ask()
            except JournalUnavailable as exc:
                self._failure, self._failed_at_s = exc, loop.time()
                raise
            self._answers, self._failure = [answer], None
            self.took(loop.time() - asked_at_s)
            return answer


class KeyedSingleFlightCache(Generic[_Key, _Answer]):
    """Shared answers by key; of those that are no longer fresh none is kept, of the others `size_max`."""

    def __init__(self, fresh_s: float, pace: float | None = None, size_max: int = 64) -> None:
        self._fresh_s = fresh_s
        self._pace = pace
        self._size_max = size_max
        self._shared: dict[_Key, SingleFlightCache[_Answer]] = {}

    def __getitem__(self, key: _Key) -> SingleFlightCache[_Answer]:
        """The answer under a key, perhaps one that nobody has asked for."""
        shared = self._shared.get(key)
        if shared is None:
            self._shared = {each: known for each, known in self._shared.items() if not known.idle}
            while len(self._shared) >= self._size_max:
                del self._shared[next(iter(self._shared))]
            shared = self._shared[key] = SingleFlightCache[_Answer](self._fresh_s, self._pace)
        return shared

    def forget(self) -> None:
        """Whoever asks from now on gets new answers."""
        self._shared.clear()
