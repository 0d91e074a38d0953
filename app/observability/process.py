"""The frame of a process without routes: settings at the start, a port that answers, signals at the end."""

import asyncio
import gc
import platform
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Protocol, TypeVar, cast

import structlog
import uvloop
from pydantic import ValidationError

from app.deliberation.errors import InvalidRequest, JournalUnavailable, fault_of
from app.observability import logs


class _LoggingSettings(Protocol):
    @property
    def log_level(self) -> str: ...


_Settings = TypeVar("_Settings", bound=_LoggingSettings)

log = structlog.get_logger(__name__)

STARTED_AT = datetime.now(UTC).isoformat(timespec="seconds")
VERSIONS = {"product": version("deliberation-gateway"), "ray": None, "python": platform.python_version()}

_REQUEST_BYTES_MAX = 4_096
_ALIVE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"


@asynccontextmanager
async def health_server(host: str, port: int) -> AsyncGenerator[int]:
    """Answer every request on a port with 200 while the event loop runs; yields the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(2):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(_ALIVE)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, port, limit=_REQUEST_BYTES_MAX)
    async with server:
        yield server.sockets[0].getsockname()[1]


def stop_signal() -> asyncio.Event:
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def settle_heap() -> None:
    """Leave what was loaded at start out of garbage collection, and collect the rest less often.

    Ray, pydantic and grpc are some 500,000 objects; full collections would take a third of a projector's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def run_until_stopped(
    host: str,
    port: int,
    event: str,
    main: Coroutine[Any, Any, None],
    drain: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Work, and answer health checks, until SIGTERM or SIGINT; then `main` works on until `drain` has returned.

    Logs `event` once the port answers.
    """
    stopping = stop_signal()
    async with health_server(host, port) as listening, asyncio.TaskGroup() as group:
        log.info(event, host=host, port=listening)
        working = group.create_task(main)
        await stopping.wait()
        if drain is not None:
            await drain()
        working.cancel()


def print_faults(exc: ValidationError | InvalidRequest) -> None:
    if isinstance(exc, InvalidRequest):
        print(exc, file=sys.stderr)
        return
    for fault in exc.errors(include_url=False, include_input=False):
        detail, remedy = fault_of(fault)
        print(f"{'.'.join(map(str, fault['loc']))}: {detail}{f'. {remedy}' if remedy else ''}", file=sys.stderr)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
        yield from _leaves(inner)


def run_process(read_settings: Callable[[], _Settings], serve: Callable[[_Settings], Awaitable[None]]) -> None:
    """Read and check the settings, then serve. Exits with 2 for invalid settings, with 1 when the log refuses."""
    try:
        settings = read_settings()
    except (ValidationError, InvalidRequest) as exc:
        print_faults(exc)
        raise SystemExit(2) from exc
    logs.configure(settings.log_level)

    async def main() -> None:
        settle_heap()
        await serve(settings)

    try:
        # The loop of gateways and of Ray's replicas.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    except* JournalUnavailable as refused:
        print(*_leaves(refused), sep="\n", file=sys.stderr)
        raise SystemExit(1) from refused
