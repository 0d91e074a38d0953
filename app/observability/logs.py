"""Logging: one JSON object per event on standard output, with a static name and fields."""

import io
import logging
import sys
import traceback
from contextlib import suppress
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, WrappedLogger

from app.observability.trace_context import active_span


class _Unfailing(io.TextIOBase):
    """Writes to an output and drops what fails: a full disk must not fail the code that logs."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._output.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._output.flush()


def unfailing(output: TextIO) -> TextIO:
    return cast("TextIO", _Unfailing(output))


class _ServerFilter(logging.Filter):
    """Drops uvicorn's reports of crashed requests, logged without content, and of malformed ones, which are counted."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(("Exception in ASGI application", "Invalid HTTP request"))


def _frames(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replace an exception by its type and frames; its text may quote a task or an answer."""
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exception()
    if isinstance(error, tuple):
        error = error[1]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(error, BaseException):
        event["error"] = type(error).__name__
        event["frames"] = [
            f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
        ]
    return event


def _trace_ids(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Add the ids of the recorded span that the event belongs to, under OpenTelemetry's names for log records."""
    if (span := active_span.get()) is not None:
        event["trace_id"], event["span_id"] = f"{span.trace_id:032x}", f"{span.span_id:016x}"
    return event


_SHARED: list[structlog.typing.Processor] = [
    structlog.processors.add_log_level,
    _trace_ids,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    _frames,
]
# Escapes every character that could end a line or control a terminal.
_RENDERED: list[structlog.typing.Processor] = [*_SHARED, structlog.processors.JSONRenderer()]


def outlast_output() -> None:
    factory = structlog.PrintLoggerFactory(unfailing(sys.stdout))
    structlog.configure(processors=_RENDERED, logger_factory=factory)


def configure(level: str, output: TextIO | None = None) -> None:
    threshold = logging.getLevelNamesMapping()[level.upper()]
    written = unfailing(output or sys.stdout)
    structlog.configure(
        processors=_RENDERED,
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(written),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(written)
    rendered = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_SHARED, processors=rendered))
    handler.addFilter(_ServerFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(threshold, logging.WARNING))
