"""The tools of a call, each of a server, and the outcomes of their uses."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from app.deliberation.tools import ToolLimits

FailureCode = Literal["server_away", "timeout", "too_large", "refused"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of a server. One is `repeatable` where its server marks it as read-only or idempotent."""

    server: str
    name: str
    description: str
    input_schema: Mapping[str, Any]
    repeatable: bool


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The text that a tool returned; `failed` where the tool says so itself."""

    text: str
    failed: bool


class ToolFailure(Exception):
    """A use without a result. It was surely not made where `made` is false."""

    def __init__(self, code: FailureCode, detail: str, *, made: bool = True) -> None:
        super().__init__(detail)
        self.code: FailureCode = code
        self.detail = detail
        self.made = made


class Toolbox(Protocol):
    """The tools of one server."""

    async def tools(self) -> Sequence[Tool]:
        """The tools that may be used; raises ToolFailure."""
        ...

    async def use(self, name: str, arguments: Mapping[str, Any], within_s: float) -> ToolResult:
        """Use a tool once, within a number of seconds; raises ToolFailure."""
        ...


class FairSlots:
    """At most `count` uses at once; more of them wait. Next is a use of the tenant with the fewest at work.

    Of several such tenants it is the one that began a use the longest ago. Uses of one tenant begin in their order.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._working = Counter[str]()
        self._begun = 0
        # The number of each tenant's latest use, while uses are at work.
        self._latest = dict[str, int]()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncGenerator[None]:
        if self._free:
            self._free -= 1
            self._begin(tenant)
        else:
            await self._turn(tenant)
        try:
            yield
        finally:
            self._end(tenant)

    def _begin(self, tenant: str) -> None:
        self._begun += 1
        self._working[tenant] += 1
        self._latest[tenant] = self._begun

    async def _turn(self, tenant: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._end(tenant)
            elif turn in self._waiting.get(tenant, ()):
                self._forget(tenant, turn)
            raise

    def _end(self, tenant: str) -> None:
        self._working[tenant] -= 1
        while self._waiting:
            chosen = min(self._waiting, key=lambda each: (self._working[each], self._latest.get(each, 0)))
            turn = self._waiting[chosen][0]
            self._forget(chosen, turn)
            if not turn.cancelled():
                self._begin(chosen)
                turn.set_result(None)
                return
        self._free += 1
        if not self._working.total():
            self._working.clear()
            self._latest.clear()

    def _forget(self, tenant: str, turn: asyncio.Future[None]) -> None:
        self._waiting[tenant].remove(turn)
        if not self._waiting[tenant]:
            del self._waiting[tenant]


@dataclass(frozen=True, slots=True)
class GrantedTools:
    """The tools of one server that a call may use, by name, within limits that hold for the call.

    `slots` bounds the uses of the server by all calls of the replica; None where nothing does.
    """

    server: str
    toolbox: Toolbox
    names: frozenset[str]
    limits: ToolLimits
    slots: FairSlots | None = None
