"""The tools of a call, each of a server, and the outcomes of their uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from app.deliberation.tools import ToolLimits
from app.tenant_slots import TenantSlots

FailureCode = Literal["server_away", "timeout", "too_large", "refused"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of a server. A tool is `repeatable` where its server marks it as read-only or idempotent."""

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


@dataclass(frozen=True, slots=True)
class GrantedTools:
    """The tools of one server that a call may use, by name, within limits that hold for the call.

    `slots` bounds the uses of the server by all calls of the replica; None where nothing does.
    """

    server: str
    toolbox: Toolbox
    names: frozenset[str]
    limits: ToolLimits
    slots: TenantSlots | None = None
