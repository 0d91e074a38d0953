"""Whether the commands that containers run exist and take the options that they are given."""

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from app.cli import cli
from serve_deployments.simulator.cli import simulator

# Those without options of their own: all they read is the environment.
MODULES = {"app.main", "app.webhooks", "serve_deployments.application"}
# Images of others, whose entry point is their own.
FOREIGN_PROGRAMS = {"nats", "vllm"}


def _parse(program: typer.Typer, words: list[str]) -> str | None:
    """What is wrong with the words that follow a program's name."""
    name, command = "program", get_command(program)
    while isinstance(command, TyperGroup):
        name, *words = words or [""]
        if name not in command.commands:
            return f"there is no command {name!r}"
        command = command.commands[name]
    try:
        command.make_context(name, list(words))
    except TyperException as error:
        return str(error)
    return None


def command_faults(owner: str, part: str, words: list[str]) -> list[str]:
    """What is wrong with a container's command; nothing is run."""
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
            fault = f"nothing is known of {' '.join(words)!r}"
    return [] if fault is None else [f"{owner}: {fault}"]
