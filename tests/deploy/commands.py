from typing import Any

import typer
from typer import Context
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from app.cli import cli
from serve_deployments.simulator.__main__ import simulator

# Modules without options, configured by environment variables.
MODULES = {
    "app.main",
    "app.webhooks",
    "app.archive",
    "serve_deployments.application",
    "serve_deployments.coordinator",
}
# Third-party images with their own entry points.
FOREIGN_PROGRAMS = {"nats", "vllm"}


def _parse(program: typer.Typer, words: list[str]) -> str | None:
    command: Any = get_command(program)
    context = None
    try:
        while isinstance(command, TyperGroup):
            context = Context(command, context, command.name)
            _, command, words = command.resolve_command(context, words)
        command.make_context(command.name, list(words), context)
    except TyperException as error:
        return str(error)
    return None


def command_faults(owner: str, part: str, words: list[str]) -> list[str]:
    match words:
        case _ if part in FOREIGN_PROGRAMS:
            fault = None
        case ["python", "-m", "serve_deployments.simulator", *options]:
            program = typer.Typer()
            program.command()(simulator)
            fault = _parse(program, options)
        case ["python", "-m", module] if module in MODULES:
            fault = None
        case ["deliberate", *options]:
            fault = _parse(cli, options)
        case _:
            fault = f"unknown command {' '.join(words)!r}"
    return [] if fault is None else [f"{owner}: {fault}"]
