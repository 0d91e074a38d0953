"""Connections to servers of the Model Context Protocol, by the `mcp` package.

Nothing that a server sends is trusted: messages, lists and results have bounds in bytes and numbers, and every fault is
a ToolFailure. The package reads lines of a process, and bodies of responses, without a bound, so both are read here.
"""

import asyncio
import logging
import os
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import anyio
import httpx2
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from app.deliberation.tools import TOOL_PATTERN, McpServer
from app.headers_file import HeadersUnreadable, read_headers, secrets_of, without
from serve_deployments.tools.toolbox import Tool, ToolFailure, ToolResult

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
TOOLS_MAX = 256
DESCRIPTION_CHARS_MAX = 2_000
SCHEMA_BYTES_MAX = 16_384
DETAIL_CHARS_MAX = 300
STOP_WITHIN_S = 2.0

# The package logs unreadable messages, which may hold secrets.
logging.getLogger("mcp").setLevel(logging.CRITICAL)
logging.getLogger("client").setLevel(logging.CRITICAL)
logging.getLogger("httpx2").setLevel(logging.WARNING)

MessageStreams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@dataclass(slots=True)
class _Wire:
    """Whether a server has sent more than `MESSAGE_BYTES_MAX` bytes at once, which the package does not tell."""

    overflowed: bool = False


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, wire: _Wire) -> None:
        self._inner = inner
        self._wire = wire

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            size += len(chunk)
            if size > MESSAGE_BYTES_MAX:
                self._wire.overflowed = True
                raise httpx2.ReadError(f"more than {MESSAGE_BYTES_MAX:,} bytes in one response")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """Responses of a bounded size, none of them encoded: a few bytes may decode to any number."""

    def __init__(self, wire: _Wire) -> None:
        super().__init__()
        self._wire = wire

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.ReadError("an encoded response, although none was asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, self._wire)
        return response


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection with its tools. Secrets of its headers are replaced in whatever it brings."""

    name: str
    client: Client
    tools: Sequence[Tool]
    secrets: tuple[str, ...]
    wire: _Wire

    async def use(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """The result of a tool; raises ToolFailure. A cancellation is sent to the server."""
        with _failures(self.secrets, self.wire):
            result = await self.client.call_tool(name, dict(arguments))
        return ToolResult(without(_text(result), self.secrets), failed=bool(result.is_error))


@asynccontextmanager
async def connection(spec: McpServer, within_s: float) -> AsyncGenerator[Connected]:
    """A connection after its handshake and its list of tools; raises ToolFailure when they come too late."""
    wire = _Wire()
    async with AsyncExitStack() as stack:
        headers = await _headers(spec)
        secrets = secrets_of(headers)
        try:
            with _failures(secrets, wire):
                async with asyncio.timeout(within_s):
                    client = await stack.enter_async_context(await _client(spec, headers, wire, within_s, stack))
                    tools = await _tools(spec.name, client)
        except TimeoutError:
            raise ToolFailure("server_away", f"no list of tools within {within_s:.3g} s") from None
        except ToolFailure as failure:
            raise ToolFailure("server_away", failure.detail) from None
        yield Connected(spec.name, client, tools, secrets, wire)


async def _client(
    spec: McpServer, headers: dict[str, str], wire: _Wire, within_s: float, stack: AsyncExitStack
) -> Client:
    if spec.url is None:
        return Client(_process(spec.command or (), wire), cache=None)
    timeout = httpx2.Timeout(within_s, read=None)
    http = httpx2.AsyncClient(headers=headers, timeout=timeout, transport=_BoundedTransport(wire))
    await stack.enter_async_context(http)
    # A server that hangs would answer no end of the session either.
    transport = streamable_http_client(spec.url, http_client=http, max_sse_event_size=None, terminate_on_close=False)
    return Client(transport, cache=None)


@contextmanager
def _failures(secrets: Sequence[str], wire: _Wire) -> Generator[None]:
    """Raise any error as a ToolFailure, but for TimeoutError.

    The package raises many kinds of errors for bad messages, some of them groups, and names no base of them.
    """
    try:
        yield
    except TimeoutError:
        raise
    except Exception as error:
        # A named place for a broad except: the errors have no common base, and each ends one use alone.
        if wire.overflowed:
            wire.overflowed = False
            detail = f"the server sent more than {MESSAGE_BYTES_MAX:,} bytes at once"
            raise ToolFailure("too_large", detail) from None
        raise _failure(error, secrets) from None


async def _headers(spec: McpServer) -> dict[str, str]:
    if spec.headers_file is None:
        return {}
    try:
        return await asyncio.to_thread(read_headers, spec.headers_file)
    except HeadersUnreadable as unreadable:
        raise ToolFailure("server_away", str(unreadable)) from None


async def _tools(server: str, client: Client) -> list[Tool]:
    found: list[Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        found += [tool for each in page.tools[:TOOLS_MAX] if (tool := _tool(server, each)) is not None]
        cursor = page.next_cursor
        if cursor is None or len(found) >= TOOLS_MAX or not page.tools:
            return found[:TOOLS_MAX]


def _tool(server: str, given: mcp_types.Tool) -> Tool | None:
    """A tool that engines can be offered; None for a name or a schema that they would refuse."""
    schema = given.input_schema
    if re.fullmatch(TOOL_PATTERN, given.name) is None or len(repr(schema)) > SCHEMA_BYTES_MAX:
        return None
    hints = given.annotations
    repeatable = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    return Tool(server, given.name, (given.description or "")[:DESCRIPTION_CHARS_MAX], schema, repeatable)


def _text(result: mcp_types.CallToolResult) -> str:
    """The texts of a result. Other content is named by kind and type, and not carried."""
    parts = [
        each.text
        if isinstance(each, mcp_types.TextContent)
        else f"[{each.type}, {getattr(each, 'mime_type', None) or 'of no type'}: not carried]"
        for each in result.content
    ]
    return "\n".join(parts)


def _failure(error: BaseException, secrets: Sequence[str]) -> ToolFailure:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    detail = without(str(error), secrets)[:DETAIL_CHARS_MAX] or type(error).__name__
    if isinstance(error, MCPError) and error.code not in (mcp_types.CONNECTION_CLOSED, mcp_types.PARSE_ERROR):
        return ToolFailure("refused", detail)
    if isinstance(error, ValidationError):
        return ToolFailure("refused", "the server's result is not of the protocol's form")
    if isinstance(error, RuntimeError | ValueError):
        # A result that breaks the tool's own output schema.
        return ToolFailure("refused", detail)
    return ToolFailure("server_away", detail)


@asynccontextmanager
async def _process(command: Sequence[str], wire: _Wire) -> AsyncGenerator[MessageStreams]:
    """A server's process: a message on each line of its output. It ends with the connection, and its children too."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=get_default_environment(),
        limit=MESSAGE_BYTES_MAX,
        start_new_session=True,
    )
    heard, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, sending = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        assert process.stdout is not None
        async with heard:
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while line := await _line(process.stdout, wire):
                    try:
                        message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        # Servers print other things too.
                        continue
                    await heard.send(SessionMessage(message))

    async def write() -> None:
        assert process.stdin is not None
        async with sending:
            with suppress(OSError):
                async for each in sending:
                    process.stdin.write(
                        each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                    )
                    await process.stdin.drain()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(write)
        try:
            yield received, sent
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process)
            group.cancel_scope.cancel()


async def _line(output: asyncio.StreamReader, wire: _Wire) -> bytes:
    """The next line; nothing at the end, and after a line that is too long."""
    try:
        return await output.readline()
    except ValueError:
        wire.overflowed = True
        return b""


async def _stop(process: asyncio.subprocess.Process) -> None:
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_WITHIN_S):
            await process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
