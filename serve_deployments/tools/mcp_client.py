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
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import httpx2
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp import Client
from mcp.client._transport import TransportStreams
from mcp.client.sse import sse_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from app.bounded_child import ChildExceeded, ChildLimits, module_command, reap, run_child, yield_cpu_time
from app.deliberation.tools import TOOL_PATTERN, McpServer, engine_name
from app.secret_files import SecretsUnreadable, read_headers, read_variables, secrets_of, without
from serve_deployments.tools.bounded_transport import (
    MESSAGE_BYTES_MAX,
    TOO_LONG,
    BoundedTransport,
    SentBound,
    Wire,
    current_use,
)
from serve_deployments.tools.tolerance import tolerated
from serve_deployments.tools.toolbox import Tool, ToolFailure, ToolResult

CHECKED_WITHIN_S = 5.0
_CHECK = module_command("serve_deployments.tools.result_check", packages=True)
_CHECK_LIMITS = ChildLimits(memory_bytes=512 << 20, file_bytes=1 << 20, processes=1, cpu_s=int(CHECKED_WITHIN_S) + 1)
TOOLS_MAX = 256
# OpenAI takes no longer ones.
DESCRIPTION_CHARS_MAX = 1_024
SCHEMA_BYTES_MAX = 16_384
DETAIL_CHARS_MAX = 300
# npm ends each failure with a line about its log, and names the cause before.
ERROR_LINES_MAX = 5
# A server may change its tools, and some servers send no notice.
LIST_AGE_MAX_S = 60.0
STOP_WITHIN_S = 2.0
END_WITHIN_S = 1.0
ERRORS_BYTES_MAX = 4_096
# A use that has ended says so to its server; this takes no time where the server reads nothing.
UNSENT_MESSAGES_MAX = 32
# The older transport has another endpoint for messages; its URL takes none.
_NO_MESSAGES_HERE = (400, 404, 405)

# The package logs unreadable messages, which may hold secrets.
logging.getLogger("mcp").setLevel(logging.CRITICAL)
logging.getLogger("client").setLevel(logging.CRITICAL)
logging.getLogger("httpx2").setLevel(logging.WARNING)


@dataclass(slots=True)
class Connected:
    """A connection with its tools. Secrets of its headers and environment are replaced in results and errors.

    `ended` is set where the server ends the connection, and where its user gives it up.
    """

    name: str
    client: Client
    secrets: tuple[str, ...]
    wire: Wire
    ended: asyncio.Event
    tools: Sequence[Tool] = ()
    _listed_s: float = field(default_factory=time.monotonic)
    # By the name that engines are offered.
    _declared: dict[str, mcp_types.Tool] = field(default_factory=dict[str, mcp_types.Tool])

    async def list_tools(self) -> None:
        """Ask for the list of tools; raises ToolFailure and TimeoutError."""
        self._listed_s = time.monotonic()
        with _failures(self.secrets, self.wire):
            listed = await _listed(self.client)
            offered = {
                tool.name: (declared, tool) for declared in listed if (tool := _tool(self.name, declared)) is not None
            }
        self._declared = {name: declared for name, (declared, _) in offered.items()}
        self.tools = [tool for _, tool in offered.values()]

    @property
    def outdated(self) -> bool:
        return time.monotonic() - self._listed_s >= LIST_AGE_MAX_S

    async def use(
        self, name: str, arguments: Mapping[str, Any], check_turn: AbstractAsyncContextManager[None]
    ) -> ToolResult:
        """The result of a tool; raises ToolFailure. A cancellation is sent to the server.

        A result is checked against its tool's schema within `check_turn`.
        """
        declared = self._declared.get(name)
        with _failures(self.secrets, self.wire):
            result = await self.client.call_tool(declared.name if declared else name, dict(arguments))
            text = without(_text(result), self.secrets)
        if declared is not None and declared.output_schema is not None and not result.is_error:
            await self._check(declared.output_schema, result, check_turn)
        return ToolResult(text, failed=bool(result.is_error))

    async def _check(
        self, schema: Mapping[str, Any], result: mcp_types.CallToolResult, turn: AbstractAsyncContextManager[None]
    ) -> None:
        """Raise ToolFailure unless the structured content fits the tool's schema; a child evaluates both."""
        if "structured_content" not in result.model_fields_set:
            raise ToolFailure("refused", "the tool has an outputSchema, and its result no structured content")
        sent = json.dumps({"schema": schema, "value": result.structured_content}).encode()
        try:
            async with turn:
                output = await run_child(_CHECK, limits=_CHECK_LIMITS, within_s=CHECKED_WITHIN_S, sent=sent)
        except (ChildExceeded, OSError) as failure:
            detail = f"the check of the result against the tool's outputSchema {failure}"
            raise ToolFailure("refused", detail) from failure
        if output.status != 0 or output.cut:
            raise ToolFailure("refused", "the result cannot be checked against the tool's outputSchema")
        if fault := json.loads(output.data):
            raise ToolFailure("refused", without(fault, self.secrets)[:DETAIL_CHARS_MAX])


@asynccontextmanager
async def connection(spec: McpServer, within_s: float, sent: SentBound) -> AsyncGenerator[Connected]:
    """A connection after its handshake and its list of tools; raises ToolFailure when they come too late."""
    ended = asyncio.Event()
    wire = Wire(sent=sent, end=ended.set)
    failure: ToolFailure | None = None
    async with AsyncExitStack() as stack:
        values = await _values(spec)
        secrets = secrets_of(values)
        try:
            async with asyncio.timeout(within_s):
                with _failures(secrets, wire):
                    if spec.url is None:
                        process = _process(spec.command or (), values, wire, ended)
                        client = await stack.enter_async_context(Client(process, cache=None))
                    else:
                        client = await _over_http(spec.url, values, wire, within_s, stack)
                # The package would evaluate the server's schemas in this process; `Connected.use` has a child do it.
                client.session.validate_tool_result = _unchecked
                connected = Connected(spec.name, tolerated(client), secrets, wire, ended)
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


async def _unchecked(name: str, result: mcp_types.CallToolResult) -> None:
    pass


async def _over_http(
    url: str, headers: Mapping[str, str], wire: Wire, within_s: float, stack: AsyncExitStack
) -> Client:
    def http(*_: object, **__: object) -> httpx2.AsyncClient:
        timeout = httpx2.Timeout(within_s, read=None)
        return httpx2.AsyncClient(headers=dict(headers), timeout=timeout, transport=BoundedTransport(wire))

    client = await stack.enter_async_context(http())
    # A server that hangs would answer no end of the session either.
    transport = streamable_http_client(url, http_client=client, max_sse_event_size=None, terminate_on_close=False)
    try:
        return await stack.enter_async_context(Client(transport, cache=None))
    except (MCPError, ExceptionGroup):
        if current_use.get().status not in _NO_MESSAGES_HERE:
            raise
    current_use.get().status = 0
    return await stack.enter_async_context(
        Client(sse_client(url, httpx_client_factory=http), mode="legacy", cache=None)
    )


@contextmanager
def _failures(secrets: Sequence[str], connection: Wire) -> Generator[None]:
    """Raise any error of a request as a ToolFailure, but for TimeoutError.

    The package raises many kinds of errors for bad messages, some of them groups, and names no base of them.
    """
    request, answered = Wire(), False
    current_use.set(request)
    try:
        yield
        answered = True
    except TimeoutError:
        raise
    except Exception as error:
        # A named place for a broad except: the errors have no common base, and each ends one use alone.
        if exceeded := request.exceeded or connection.exceeded:
            connection.exceeded = ""
            raise ToolFailure("too_large", exceeded) from None
        failure = _failure(error, secrets)
        if request.status:
            detail = f"HTTP {request.status}: {failure.detail}"
            # Servers answer wrong arguments with 400 too. What is refused with 4xx was not carried out.
            lost = request.lost and _code(error) != mcp_types.INVALID_PARAMS
            failure = ToolFailure("server_away" if lost else "refused", detail, made=request.status >= 500)
        raise failure from None
    finally:
        if not answered:
            request.give_up()


async def _values(spec: McpServer) -> dict[str, str]:
    """The headers or the variables of a server."""
    try:
        if spec.headers_file is not None:
            return await asyncio.to_thread(read_headers, spec.headers_file)
        return {} if spec.env_file is None else await asyncio.to_thread(read_variables, spec.env_file)
    except SecretsUnreadable as unreadable:
        raise ToolFailure("server_away", str(unreadable)) from None


async def _listed(client: Client) -> list[mcp_types.Tool]:
    tools: list[mcp_types.Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None or len(tools) >= TOOLS_MAX or not page.tools:
            return tools[:TOOLS_MAX]


def _tool(server: str, listing: mcp_types.Tool) -> Tool | None:
    """A tool that engines can be offered; None for a name or a schema that they would refuse."""
    name, schema = engine_name(listing.name), offered_schema(listing.input_schema)
    if re.fullmatch(TOOL_PATTERN, name) is None or len(repr(schema)) > SCHEMA_BYTES_MAX:
        return None
    hints = listing.annotations
    repeatable = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    return Tool(server, name, (listing.description or "")[:DESCRIPTION_CHARS_MAX], schema, repeatable)


def offered_schema(original: Mapping[str, Any]) -> dict[str, Any]:
    """The schema as OpenAI demands it: an object with `properties`, and neither a reference nor alternatives for it.

    The properties are those of all alternatives; the server still checks the arguments by its own schema.
    """
    schema = dict(original)
    if isinstance(reference := schema.pop("$ref", None), str):
        target: Any = schema
        for key in reference.removeprefix("#/").split("/"):
            target = cast("dict[str, Any]", target).get(key) if isinstance(target, dict) else None
        schema = {**(cast("dict[str, Any]", target) if isinstance(target, dict) else {}), **schema}
    alternatives = [schema.pop(key, None) for key in ("allOf", "anyOf", "oneOf")]
    parts = [part for listed in alternatives if isinstance(listed, list) for part in cast("list[Any]", listed)]
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
    failure = _first(error)
    return failure.code if isinstance(failure, MCPError) else None


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
            async for message in sending:
                stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await stdin.drain()


class _ProcessOutput:
    """Reads the output of a server's process within the bounds of its wire. Records its end, unless `stopping`."""

    def __init__(self, process: asyncio.subprocess.Process, wire: Wire) -> None:
        assert process.stdout is not None and process.stderr is not None, "they are pipes"
        self._process, self._stdout, self._stderr = process, process.stdout, process.stderr
        self._wire = wire
        self._errors = bytearray()
        self._errors_ended = asyncio.Event()
        self.stopping = False

    async def read_errors(self) -> None:
        while chunk := await self._stderr.read(ERRORS_BYTES_MAX):
            self._errors.extend(chunk)
            del self._errors[:-ERRORS_BYTES_MAX]
            if exceeded := self._wire.sent.exceeded_by(len(chunk), "bytes"):
                self._wire.exceed(exceeded)
                break
        self._errors_ended.set()

    async def read(self, incoming: WriteStream[SessionMessage | Exception]) -> None:
        """Pass the messages on, one a line, until the process closes its output or exceeds a bound."""
        async with incoming:
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                async for line in self._lines():
                    try:
                        message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        # Servers print other things too.
                        continue
                    await incoming.send(SessionMessage(message))
            with suppress(TimeoutError):
                async with asyncio.timeout(END_WITHIN_S):
                    await self._process.wait()
                    await self._errors_ended.wait()
                    if not self.stopping:
                        self._wire.ended = _how_it_ended(self._process.returncode, bytes(self._errors))

    async def _lines(self) -> AsyncGenerator[bytes]:
        sent, started = self._wire.sent, False
        while line := await _line(self._stdout, self._wire):
            if not started:
                # A server that starts keeps its full share: replicas wait for it.
                started = True
                yield_cpu_time(self._process.pid)
            if exceeded := sent.exceeded_by(len(line), "bytes") or sent.exceeded_by_message(line):
                self._wire.exceeded = exceeded
                return
            yield line


@asynccontextmanager
async def _process(
    command: Sequence[str], environment: Mapping[str, str], wire: Wire, ended: asyncio.Event
) -> AsyncGenerator[TransportStreams]:
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
    assert process.stdin is not None, "it is a pipe"
    output = _ProcessOutput(process, wire)
    incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, sending = anyio.create_memory_object_stream[SessionMessage](UNSENT_MESSAGES_MAX)

    async def read() -> None:
        await output.read(incoming)
        ended.set()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(output.read_errors)
            group.start_soon(_write, sending, process.stdin)
            try:
                yield received, sent
            finally:
                output.stopping = True
                with anyio.CancelScope(shield=True):
                    await _stop(process)
                group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await reap(process)


def _is_error(line: str) -> bool:
    return "rror" in line or "ERR!" in line


def _how_it_ended(status: int | None, errors: bytes) -> str:
    """The status of a process, and of its standard error the last lines that read like an error."""
    lines = [line for text in errors.decode(errors="replace").splitlines() if (line := text.strip())]
    last = next((place for place in reversed(range(len(lines))) if _is_error(lines[place])), len(lines) - 1)
    first = last
    while first > 0 and last - first < ERROR_LINES_MAX - 1 and _is_error(lines[first - 1]) and _is_error(lines[last]):
        first -= 1
    said = "; ".join(lines[first : last + 1])
    return f"the command ended with status {status}" + (f": {said}" if said else "")


async def _line(output: asyncio.StreamReader, wire: Wire) -> bytes:
    """The next line; nothing at the end, and after a line that is too long."""
    try:
        return await output.readline()
    except ValueError:
        wire.exceeded = TOO_LONG
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
