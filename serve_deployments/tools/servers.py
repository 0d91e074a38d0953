"""The tool servers of a replica: a connection to each, opened at its first use, and how it fares."""

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import random
from typing import TYPE_CHECKING, Any

import structlog

from app.deliberation.calls import Call
from app.deliberation.tools import McpServer, RoleTools
from app.tenant_slots import TenantSlots
from serve_deployments.node_directory.directory import NodeDirectory
from serve_deployments.node_directory.slots import AT_ONCE, NodeSlots
from serve_deployments.tools.toolbox import GrantedTools, Tool, ToolFailure, ToolResult

if TYPE_CHECKING:
    from serve_deployments.tools.mcp_client import Connected

CONNECT_WITHIN_S = 10.0
# A command may fetch its packages at its first start, as `npx` and `uvx` do.
START_WITHIN_S = 60.0
# A call waits so long for the first connection, and not at all for a server that is known to be away.
FIRST_WAIT_S = 5.0
RETRY_WAIT_MIN_S = 0.25
RETRY_WAIT_MAX_S = 30.0
# After so many uses in a row without a reply the connection is made anew.
SILENT_USES_MAX = 3

log = structlog.get_logger(__name__)


class _LostConnection(ToolFailure):
    """A use with a lost connection, which may be made again."""

    def __init__(self, detail: str) -> None:
        super().__init__("server_away", detail)


class ToolServer:
    """One server, as a `Toolbox`. Its task connects, and with patience again after the connection is lost."""

    def __init__(self, spec: McpServer, node: NodeDirectory | None = None) -> None:
        self.spec = spec
        self._checks = NodeSlots(node or NodeDirectory(), "checks", AT_ONCE)
        self.away_since: datetime | None = None
        self.why = ""
        self._connected: Connected | None = None
        self._changed = asyncio.Event()
        self._silent_uses = 0
        # Since the last result.
        self._losses = 0
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    def open(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep(), name=f"tools-{self.spec.name}")

    async def close(self) -> None:
        if self._task is not None:
            self._closing = True
            self._task.cancel()
            await asyncio.wait({self._task})

    @property
    def tool_names(self) -> tuple[str, ...]:
        return () if self._connected is None else tuple(tool.name for tool in self._connected.tools)

    async def tools(self) -> Sequence[Tool]:
        connected = await self._connection(FIRST_WAIT_S)
        if connected.outdated:
            try:
                async with asyncio.timeout(FIRST_WAIT_S):
                    await connected.list_tools()
            except TimeoutError:
                log.info("tools_not_listed", server=self.spec.name)
            except ToolFailure as failure:
                if failure.code == "server_away":
                    self._lose(connected, failure.detail)
                    connected = await self._connection(FIRST_WAIT_S)
        return connected.tools

    async def use(self, name: str, arguments: Mapping[str, Any], within_s: float, tenant: str = "") -> ToolResult:
        """See `Toolbox.use`; the check of the result takes a slot of `tenant`.

        A lost connection is made again once, where the tool may be repeated.
        """
        try:
            async with asyncio.timeout(within_s):
                try:
                    result = await self._used(name, arguments, within_s, tenant)
                except _LostConnection:
                    result = await self._used(name, arguments, within_s, tenant)
        except TimeoutError:
            self._silent_uses += 1
            if self._silent_uses >= SILENT_USES_MAX and self._connected is not None:
                self._lose(self._connected, "it answered none of the last uses in time")
            raise ToolFailure("timeout", f"no result within {within_s:.3g} s") from None
        self._silent_uses = self._losses = 0
        return result

    async def _used(self, name: str, arguments: Mapping[str, Any], within_s: float, tenant: str) -> ToolResult:
        connected = await self._connection(within_s)
        try:
            return await connected.use(name, arguments, self._checks.slot(tenant))
        except ToolFailure as failure:
            if failure.code not in ("server_away", "too_large"):
                raise
            self._lose(connected, failure.detail)
            if failure.code == "too_large":
                raise
            if failure.made and not any(tool.name == name and tool.repeatable for tool in connected.tools):
                raise
            raise _LostConnection(failure.detail) from None

    async def _connection(self, wait_s: float) -> "Connected":
        self.open()
        if self._connected is None and self.away_since is None:
            try:
                async with asyncio.timeout(wait_s):
                    while self._connected is None and self.away_since is None:
                        await self._changed.wait()
            except TimeoutError:
                raise ToolFailure("server_away", f"no connection within {wait_s:.3g} s") from None
        if self._connected is None:
            raise ToolFailure("server_away", self.why)
        return self._connected

    def _lose(self, connected: "Connected", why: str) -> None:
        if connected is self._connected:
            self._set(None, self.away_since, why)
            connected.ended.set()

    async def _keep(self) -> None:
        # Not at the start: most replicas have no tools, and the package takes a second to import.
        client = await asyncio.to_thread(importlib.import_module, "serve_deployments.tools.mcp_client")
        # Over all connections: a server that is cut off would else send as much again on the next one.
        sent = client.SentBound()
        while True:
            try:
                within_s = CONNECT_WITHIN_S if self.spec.command is None else max(CONNECT_WITHIN_S, START_WITHIN_S)
                async with client.connection(self.spec, within_s, sent) as connected:
                    self._silent_uses = 0
                    self._set(connected, None, "")
                    if not self._closing:
                        await connected.ended.wait()
                    self._lose(connected, connected.wire.ended)
            except ToolFailure as failure:
                self.why = failure.detail
                self._losses = max(1, self._losses)
            except Exception as error:
                # A named place for a broad except: a closing connection raises errors of any kind, and ends alone.
                log.info("tool_server_close_failed", server=self.spec.name, error=type(error).__name__)
            if self._closing:
                # An error of the package may replace the cancellation.
                return
            self._losses += 1
            if self._losses == 1:
                # Lost after it had worked: at once again.
                continue
            self._set(None, self.away_since or datetime.now(UTC), self.why)
            log.warning("tool_server_away", server=self.spec.name, why=self.why)
            wait_s = min(RETRY_WAIT_MAX_S, RETRY_WAIT_MIN_S * 2 ** min(self._losses - 2, 10))
            await asyncio.sleep(wait_s * (0.5 + random()))

    def _set(self, connected: "Connected | None", away_since: datetime | None, why: str) -> None:
        self._connected, self.away_since, self.why = connected, away_since, why
        self._changed.set()
        self._changed = asyncio.Event()

    def described(self) -> dict[str, Any]:
        return {
            "name": self.spec.name,
            "connected": self._connected is not None,
            "tools": self.tool_names,
            "away_since": None if self.away_since is None else self.away_since.isoformat(),
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class _TenantTools:
    """A server as the `Toolbox` of a tenant."""

    server: ToolServer
    tenant: str

    async def tools(self) -> Sequence[Tool]:
        return await self.server.tools()

    async def use(self, name: str, arguments: Mapping[str, Any], within_s: float) -> ToolResult:
        return await self.server.use(name, arguments, within_s, self.tenant)


class ToolServers:
    """The servers of a role's tools, one connection to each for all calls of the replica."""

    def __init__(self, tools: Sequence[RoleTools], node: NodeDirectory) -> None:
        self._declared = tuple(
            (role_tools, ToolServer(role_tools.mcp, node), TenantSlots(role_tools.mcp.concurrency))
            for role_tools in tools
        )

    def granted(self, call: Call, tenant: str) -> Sequence[GrantedTools]:
        allowed = frozenset(call.tools.names) if call.tools is not None else frozenset[str]()
        return [
            GrantedTools(declared.mcp.name, _TenantTools(server, tenant), names, declared.per_call, slots)
            for declared, server, slots in self._declared
            if (names := allowed & frozenset(declared.allow))
        ]

    def described(self) -> list[dict[str, Any]]:
        """The servers as `GET /tools` shows them; a question connects to servers that no call has used yet."""
        for _, server, _ in self._declared:
            server.open()
        return [server.described() for _, server, _ in self._declared]

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for _, server, _ in self._declared))
