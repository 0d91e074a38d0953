"""Connections to servers of the Model Context Protocol, by the `mcp` package.

Nothing that a server sends is trusted: messages, lists and results have bounds in bytes and numbers, and every fault is
a ToolFailure. The package reads lines of a process, and bodies of responses, without a bound, so both are read here.
"""

import asyncio
import json
import logging
import os
import re
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import httpx2
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from app.deliberation.tools import TOOL_PATTERN, McpServer, engine_name
from app.secret_files import SecretsUnreadable, read_headers, read_variables, secrets_of, without
from serve_deployments.tools.toolbox import Tool, ToolFailure, ToolResult

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
TOOLS_MAX = 256
# OpenAI takes no longer ones.
DESCRIPTION_CHARS_MAX = 1_024
SCHEMA_BYTES_MAX = 16_384
DETAIL_CHARS_MAX = 300
# A server may change its tools, and some servers send no notice.
LIST_AGE_MAX_S = 60.0
STOP_WITHIN_S = 2.0
END_WITHIN_S = 1.0
ERRORS_BYTES_MAX = 4_096
# The older transport has another endpoint for messages; its URL takes none.
_NO_MESSAGES_HERE = (400, 404, 405)
_REFUSED_KEY = (401, 403)
_NO_SESSION = (400, 404)
_SESSION = "mcp-session-id"
_EVENT_END = re.compile(rb"\n\n|\r\n\r\n|\r\r")

# The package logs unreadable messages, which may hold secrets.
logging.getLogger("mcp").setLevel(logging.CRITICAL)
logging.getLogger("client").setLevel(logging.CRITICAL)
logging.getLogger("httpx2").setLevel(logging.WARNING)

MessageStreams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@dataclass(slots=True)
class _Wire:
    """The state of a connection, or of one use over HTTP, that the package does not report.

    `overflowed`: the server has sent more than `MESSAGE_BYTES_MAX` bytes at once. `status` is that of a response that
    refused a request, which belonged to a session where `in_session`. `ended` tells how a command ended.
    """

    overflowed: bool = False
    status: int = 0
    in_session: bool = False
    ended: str = ""

    @property
    def lost(self) -> bool:
        """Whether only a new connection helps, because the session or the key is not valid any more."""
        return self.status in _REFUSED_KEY or (self.in_session and self.status in _NO_SESSION)


_use: ContextVar[_Wire] = ContextVar("_use")


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of a response; of a stream of events each event has the bound."""

    def __init__(self, inner: httpx2.AsyncByteStream, wire: _Wire, *, events: bool) -> None:
        self._inner = inner
        self._wire = wire
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            size += len(chunk)
            if self._events and (ends := [found.end() for found in _EVENT_END.finditer(chunk)]):
                size = len(chunk) - ends[-1]
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
        wire = _use.get(self._wire)
        response = await super().handle_async_request(request)
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.ReadError("an encoded response, although none was asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        if request.method == "POST":
            wire.status = response.status_code if response.status_code >= 400 else 0
            wire.in_session = _SESSION in request.headers
        events = response.headers.get("Content-Type", "").lower().startswith("text/event-stream")
        response.stream = _BoundedStream(response.stream, wire, events=events)
        return response


@dataclass(slots=True)
class Connected:
    """A connection with its tools. Secrets of its headers and environment are replaced in results and errors.

    `ended` is set where the server ends the connection, and where its user gives it up.
    """

    name: str
    client: Client
    secrets: tuple[str, ...]
    wire: _Wire
    ended: asyncio.Event
    tools: Sequence[Tool] = ()
    _listed_s: float = field(default_factory=time.monotonic)
    # By the name that engines are offered.
    _names: dict[str, str] = field(default_factory=dict[str, str])

    async def list_tools(self) -> None:
        """Ask for the list of tools; raises ToolFailure and TimeoutError."""
        self._listed_s = time.monotonic()
        with _failures(self.secrets, self.wire):
            given = await _listed(self.client)
        found = {tool.name: (each.name, tool) for each in given if (tool := _tool(self.name, each)) is not None}
        self._names = {name: own for name, (own, _) in found.items()}
        self.tools = [tool for _, tool in found.values()]

    @property
    def outdated(self) -> bool:
        return time.monotonic() - self._listed_s >= LIST_AGE_MAX_S

    async def use(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """The result of a tool; raises ToolFailure. A cancellation is sent to the server."""
        with _failures(self.secrets, self.wire):
            result = await self.client.call_tool(self._names.get(name, name), dict(arguments))
        return ToolResult(without(_text(result), self.secrets), failed=bool(result.is_error))


@asynccontextmanager
async def connection(spec: McpServer, within_s: float) -> AsyncGenerator[Connected]:
    """A connection after its handshake and its list of tools; raises ToolFailure when they come too late."""
    wire, ended = _Wire(), asyncio.Event()
    failure: ToolFailure | None = None
    async with AsyncExitStack() as stack:
        given = await _values(spec)
        secrets = secrets_of(given)
        try:
            async with asyncio.timeout(within_s):
                with _failures(secrets, wire):
                    if spec.url is None:
                        process = _process(spec.command or (), given, wire, ended)
                        client = await stack.enter_async_context(Client(process, cache=None))
                    else:
                        client = await _over_http(spec.url, given, wire, within_s, stack)
                connected = Connected(spec.name, client, secrets, wire, ended)
                await connected.list_tools()
        except TimeoutError:
            failure = ToolFailure("server_away", f"no list of tools within {within_s:.3g} s")
        except ToolFailure as fault:
            failure = ToolFailure("server_away", without(wire.ended, secrets)[:DETAIL_CHARS_MAX] or fault.detail)
        else:
            yield connected
    # Not within the stack, whose task groups would put it into an ExceptionGroup.
    if failure is not None:
        raise failure


async def _over_http(
    url: str, headers: Mapping[str, str], wire: _Wire, within_s: float, stack: AsyncExitStack
) -> Client:
    def http(*_: object, **__: object) -> httpx2.AsyncClient:
        timeout = httpx2.Timeout(within_s, read=None)
        return httpx2.AsyncClient(headers=dict(headers), timeout=timeout, transport=_BoundedTransport(wire))

    client = await stack.enter_async_context(http())
    # A server that hangs would answer no end of the session either.
    transport = streamable_http_client(url, http_client=client, max_sse_event_size=None, terminate_on_close=False)
    try:
        return await stack.enter_async_context(Client(transport, cache=None))
    except (MCPError, ExceptionGroup):
        if _use.get().status not in _NO_MESSAGES_HERE:
            raise
    _use.get().status = 0
    return await stack.enter_async_context(
        Client(sse_client(url, httpx_client_factory=http), mode="legacy", cache=None)
    )


@contextmanager
def _failures(secrets: Sequence[str], connection: _Wire) -> Generator[None]:
    """Raise any error of a request as a ToolFailure, but for TimeoutError.

    The package raises many kinds of errors for bad messages, some of them groups, and names no base of them.
    """
    request = _Wire()
    _use.set(request)
    try:
        yield
    except TimeoutError:
        raise
    except Exception as error:
        # A named place for a broad except: the errors have no common base, and each ends one use alone.
        if request.overflowed or connection.overflowed:
            connection.overflowed = False
            detail = f"the server sent more than {MESSAGE_BYTES_MAX:,} bytes at once"
            raise ToolFailure("too_large", detail) from None
        failure = _failure(error, secrets)
        if request.status:
            detail = f"HTTP {request.status}: {failure.detail}"
            # Servers answer wrong arguments with 400 too. What is refused with 4xx was not carried out.
            lost = request.lost and _code(error) != mcp_types.INVALID_PARAMS
            failure = ToolFailure("server_away" if lost else "refused", detail, made=request.status >= 500)
        raise failure from None


async def _values(spec: McpServer) -> dict[str, str]:
    """The headers or the variables of a server."""
    try:
        if spec.headers_file is not None:
            return await asyncio.to_thread(read_headers, spec.headers_file)
        return {} if spec.env_file is None else await asyncio.to_thread(read_variables, spec.env_file)
    except SecretsUnreadable as unreadable:
        raise ToolFailure("server_away", str(unreadable)) from None


async def _listed(client: Client) -> list[mcp_types.Tool]:
    found: list[mcp_types.Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None or len(found) >= TOOLS_MAX or not page.tools:
            return found[:TOOLS_MAX]


def _tool(server: str, given: mcp_types.Tool) -> Tool | None:
    """A tool that engines can be offered; None for a name or a schema that they would refuse."""
    name, schema = engine_name(given.name), offered_schema(given.input_schema)
    if re.fullmatch(TOOL_PATTERN, name) is None or len(repr(schema)) > SCHEMA_BYTES_MAX:
        return None
    hints = given.annotations
    repeatable = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    return Tool(server, name, (given.description or "")[:DESCRIPTION_CHARS_MAX], schema, repeatable)


def offered_schema(given: Mapping[str, Any]) -> dict[str, Any]:
    """The schema as OpenAI demands it: an object with `properties`, and neither a reference nor alternatives for it.

    The properties are those of all alternatives; the server still checks the arguments by its own schema.
    """
    schema = dict(given)
    if isinstance(reference := schema.pop("$ref", None), str):
        target: Any = schema
        for key in reference.removeprefix("#/").split("/"):
            target = cast("dict[str, Any]", target).get(key) if isinstance(target, dict) else None
        schema = {**(cast("dict[str, Any]", target) if isinstance(target, dict) else {}), **schema}
    parts: list[Any] = [each for key in ("allOf", "anyOf", "oneOf") for each in schema.pop(key, None) or ()]
    properties: dict[str, Any] = {}
    for part in [*parts, schema]:
        if isinstance(part, dict) and isinstance(named := cast("dict[str, Any]", part).get("properties"), dict):
            properties |= cast("dict[str, Any]", named)
    kept = {key: value for key, value in schema.items() if key not in ("$schema", "enum", "not")}
    return {**kept, "type": "object", "properties": properties}


def _text(result: mcp_types.CallToolResult) -> str:
    """The texts of a result, else its structured content. Other content is named, and not carried."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(map(_part, result.content))


def _part(part: mcp_types.ContentBlock) -> str:
    match part:
        case mcp_types.TextContent(text=text):
            return text
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(uri=uri, text=text)):
            return f"[resource {uri}]\n{text}"
        case mcp_types.EmbeddedResource(resource=resource):
            return f"[resource {resource.uri}, {resource.mime_type or 'of no type'}: not carried]"
        case mcp_types.ResourceLink(uri=uri, description=description):
            return f"[link to {uri}: {description or part.title or part.name}]"
        case _:
            return f"[{part.type}, {part.mime_type or 'of no type'}: not carried]"


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _code(error: BaseException) -> int | None:
    found = _first(error)
    return found.code if isinstance(found, MCPError) else None


def _failure(error: BaseException, secrets: Sequence[str]) -> ToolFailure:
    error = _first(error)
    detail = without(str(error), secrets)[:DETAIL_CHARS_MAX] or type(error).__name__
    if isinstance(error, MCPError) and error.code not in (mcp_types.CONNECTION_CLOSED, mcp_types.PARSE_ERROR):
        return ToolFailure("refused", detail)
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        detail = f"the server's result is not of the protocol's form: {place}: {first['msg']}"
        return ToolFailure("refused", without(detail, secrets)[:DETAIL_CHARS_MAX])
    if isinstance(error, RuntimeError | ValueError):
        # A result that breaks the tool's own output schema.
        return ToolFailure("refused", detail)
    return ToolFailure("server_away", detail)


async def _write(sending: MemoryObjectReceiveStream[SessionMessage], stdin: asyncio.StreamWriter) -> None:
    """Write each message on a line, until the process closes its input."""
    async with sending:
        with suppress(OSError):
            async for each in sending:
                stdin.write(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await stdin.drain()


@asynccontextmanager
async def _process(
    command: Sequence[str], environment: Mapping[str, str], wire: _Wire, ended: asyncio.Event
) -> AsyncGenerator[MessageStreams]:
    """A server's process: a message on each line of its output. It ends with the connection, and its children too."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**get_default_environment(), **environment},
        limit=MESSAGE_BYTES_MAX,
        start_new_session=True,
    )
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    assert stdin is not None and stdout is not None and stderr is not None, "they are pipes"
    heard, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, sending = anyio.create_memory_object_stream[SessionMessage](0)
    errors, errors_ended = bytearray(), asyncio.Event()
    stopping = False

    async def read_errors() -> None:
        while chunk := await stderr.read(ERRORS_BYTES_MAX):
            errors.extend(chunk)
            del errors[:-ERRORS_BYTES_MAX]
        errors_ended.set()

    async def read() -> None:
        async with heard:
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while line := await _line(stdout, wire):
                    try:
                        message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        # Servers print other things too.
                        continue
                    await heard.send(SessionMessage(message))
            with suppress(TimeoutError):
                async with asyncio.timeout(END_WITHIN_S):
                    await process.wait()
                    await errors_ended.wait()
                    if not stopping:
                        wire.ended = _how_it_ended(process.returncode, bytes(errors))
            ended.set()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(read_errors)
            group.start_soon(_write, sending, stdin)
            try:
                yield received, sent
            finally:
                stopping = True
                with anyio.CancelScope(shield=True):
                    await _stop(process)
                group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            # `wait` would never return while some output is unread, as after a line that is too long.
            await process.communicate()


def _how_it_ended(status: int | None, errors: bytes) -> str:
    """The status of a process, and of its standard error the last line that reads like an error, else the last one."""
    lines = [line for each in errors.decode(errors="replace").splitlines() if (line := each.strip())]
    said = next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "")
    return f"the command ended with status {status}" + (f": {said}" if said else "")


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
