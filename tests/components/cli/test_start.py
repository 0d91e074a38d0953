"""The command line starts at once: help imports the table of commands, and not the commands."""

import json
import subprocess
import sys

import pytest
import typer

from app.cli import cli
from app.cli.commands import COMMANDS, PANELS, command_of

# Each takes a tenth of a second or more to import; `pydantic_settings` and `ray` much more.
HEAVY = {"fastapi", "httpx", "mcp", "nats", "pydantic_settings", "ray", "sqlalchemy", "starlette"}
OWN = {"app.api.schemas", "app.deliberation.strategies", "app.deliberation.facts"}
# The processor's time of a start in seconds: three times what it takes, for a machine that does other work beside it.
CPU_S_MAX = 1.0
STARTED = """
import json, sys, time
from app.cli import main
sys.argv = ["deliberate", *sys.argv[1:]]
try:
    main()
finally:
    print(json.dumps([time.process_time(), sorted(sys.modules)]), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("line", "exit_code", "shown"),
    [
        ("--help", 0, "Submit a task and wait for the verdict."),
        ("--version", 0, "deliberate "),
        ("lsit", 2, "Did you mean 'list'"),
        ("list --help", 0, "--created-after"),
        ("stats --help", 0, "--by"),
    ],
)
def test_help_starts_without_what_a_command_needs(line: str, exit_code: int, shown: str) -> None:
    command = [sys.executable, "-c", STARTED, *line.split()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    *errors, figures = ended.stderr.splitlines()
    cpu_s, modules = json.loads(figures)
    assert (ended.returncode, shown in ended.stdout + "\n".join(errors)) == (exit_code, True)
    assert (HEAVY | OWN) & set(modules) == set()
    assert cpu_s <= CPU_S_MAX


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_of_each_command_what_the_command_says(name: str) -> None:
    command = command_of(name)
    assert (command.name, command.help.split("\n\n")[0]) == (name, COMMANDS[name].help)
    assert command.epilog.startswith("Exit codes")


def test_the_list_of_commands_is_whole() -> None:
    assert set(typer.main.get_command(cli).commands) == {*COMMANDS, "simulator", "worker"}  # type: ignore[attr-defined]


def test_every_command_stands_in_one_panel_of_the_help() -> None:
    listed = [name for names in PANELS.values() for name in names]
    assert sorted(listed) == sorted({*COMMANDS, "simulator", "worker"})
