"""Exit codes, which docs/command-line.md explains, and the conversion of a command's errors to text and a code.

An error is one line on stderr: code, sentence and remedy; several faulty fields have a line each. With `--json`,
stdout carries JSON only, one document per line, and an error is one JSON document on stderr.
"""

import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from typing import Any, NamedTuple, NoReturn

import typer
from pydantic_core import ValidationError
from rich.console import Console, RenderableType
from rich.text import Text

from app.cli.render.text import json_line, line_of
from app.deliberation.errors import InvalidRequest, fault_of

EXIT_HELP = (
    "Exit codes: 0 success · 1 failed, timed out, or differs · 2 usage · 3 gateway unreachable · 4 refused · "
    "5 cancelled · 6 works with warnings · 130 interrupted"
)


class Exit(IntEnum):
    SUCCESS = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    CANCELLED = 5
    WARNED = 6
    INTERRUPTED = 130


def exit_of(status: str) -> Exit:
    return {"failed": Exit.FAILED, "timeout": Exit.FAILED, "cancelled": Exit.CANCELLED}.get(status, Exit.SUCCESS)


class FieldFault(NamedTuple):
    field: str
    detail: str
    remedy: str = ""


@dataclass(eq=False)
class CommandError(Exception):
    exit_code: Exit
    code: str
    detail: str
    _: KW_ONLY
    fields: Sequence[FieldFault] = ()
    remedy: str | None = None
    request_id: str | None = None

    def __str__(self) -> str:
        return self.detail

    def document(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "detail": self.detail,
            "errors": [fault._asdict() for fault in self.fields],
            "remedy": self.remedy,
            "request_id": self.request_id,
            "exit_code": int(self.exit_code),
        }


def sentence(remedy: str | None) -> str:
    """Returns the remedy of an error as the sentence that a finding has."""
    text = (remedy or "correct it").rstrip(".")
    return f"{text[0].upper()}{text[1:]}."


def cause(error: OSError | UnicodeDecodeError) -> str:
    """The reason why a file cannot be used, without its path."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8"


@contextmanager
def usage_errors(remedy: str) -> Generator[None]:
    """Translate refused settings and files to an error of usage; `remedy` is for an error that brings none."""
    try:
        yield
    except InvalidRequest as exc:
        raise CommandError(Exit.USAGE, "invalid_setting", str(exc), remedy=exc.remedy or remedy) from exc
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_input=False)
        # A setting that was given by its name has the variable of that name.
        faults = [FieldFault(str(error["loc"][0]).upper(), *fault_of(error)) for error in errors]
        detail = "; ".join(fault.detail for fault in faults)
        remedy = f"correct {', '.join(fault.field for fault in faults)} in the environment"
        # Without `from`: the error quotes the values, and some are secrets.
        raise CommandError(Exit.USAGE, "invalid_setting", detail, fields=faults, remedy=remedy) from None


def print_error(error: CommandError, *, as_json: bool) -> None:
    if as_json:
        print(json_line(error.document()), file=sys.stderr)
        return
    lines = [line_of(f"{fault.field}: {fault.detail.rstrip('.')}. {fault.remedy}") for fault in error.fields]
    # The fields say what the detail does.
    repeated = bool(error.fields) and error.fields[0].detail.rstrip(".") in error.detail
    if not repeated:
        detail = line_of(error.detail)
    else:
        detail = lines.pop() if len(lines) == 1 else f"{len(lines)} faults"
    text = Text.assemble(("error ", "bold red"), (error.code, "red"), f": {detail}")
    text.append("".join(f"\n  {line}" for line in lines))
    before = "\n  " if lines else " "
    if error.remedy is not None and not any(fault.remedy == error.remedy for fault in error.fields):
        text.append(f"{before}→ {line_of(error.remedy)}", "dim")
    if error.request_id is not None:
        text.append(f"{before if lines else ' · '}request {line_of(error.request_id)}", "dim")
    Console(stderr=True, soft_wrap=True, highlight=False).print(text)


@contextmanager
def naming_options(options: Mapping[str, str]) -> Generator[None]:
    """Name a command's options in place of the request's fields that an error of the gateway names.

    `options` maps the beginning of a JSON pointer, or a parameter's name, to an option; `{}` in it is the pointer's
    rest. A field that no option sets keeps its name. A refusal of options alone is an error of usage.
    """
    try:
        yield
    except CommandError as error:
        named = {fault.field: _option_of(fault.field, options) for fault in error.fields}
        if error.exit_code is Exit.REFUSED and named and all(option != field for field, option in named.items()):
            error.exit_code = Exit.USAGE
        error.fields = [
            fault._replace(field=named[fault.field], remedy=_naming_parameters(fault.remedy, options))
            for fault in error.fields
        ]
        raise


def _naming_parameters(remedy: str, options: Mapping[str, str]) -> str:
    return re.sub(r"`(\w+)`", lambda quoted: f"`{options.get(quoted[1], quoted[1])}`", remedy)


def _option_of(pointer: str, options: Mapping[str, str]) -> str:
    matching = [begin for begin in options if pointer == begin or pointer.startswith((f"{begin}/", f"{begin}."))]
    if not matching:
        return pointer
    begin = max(matching, key=len)
    return options[begin].format(pointer[len(begin) + 1 :]).strip()


def run(main: Callable[[], Coroutine[Any, Any, Exit]], *, as_json: bool, cancels_again: bool = False) -> NoReturn:
    """Run a command's coroutine and exit with its code; Ctrl-C, SIGTERM and SIGHUP cancel it first.

    Later signals are ignored, so that the cleanup completes, or cancel that too.
    """
    # Imported here: help runs nothing.
    import asyncio

    received: list[int] = []

    async def cancellable() -> Exit:
        task = asyncio.current_task()
        assert task is not None, "asyncio.run gives every coroutine a task"

        def cancel(number: int) -> None:
            received.append(number)
            if cancels_again or len(received) == 1:
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, cancel, number)
        return await main()

    try:
        code: int = asyncio.run(cancellable())
    except CommandError as error:
        print_error(error, as_json=as_json)
        code = error.exit_code
    except BrokenPipeError:
        # The reader has what it wanted, as `head` does. What is left in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    except KeyboardInterrupt:  # before the signal handlers were set
        code = Exit.INTERRUPTED
    except asyncio.CancelledError:
        if not received:
            raise
        code = 128 + received[0]
    raise typer.Exit(code)


def print_json(document: object) -> None:
    """Print a JSON document on one line of stdout, unbuffered."""
    print(json_line(document), flush=True)


def output(document: object, rendered: Callable[[], RenderableType], *, as_json: bool) -> Exit:
    """Print a document as JSON, or `rendered`; returns success."""
    if as_json:
        print_json(document)
    else:
        Console(highlight=False).print(rendered())
    return Exit.SUCCESS
