"""The commands of `deliberate`: the module and the line of help of each."""

import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import typer
import typer.core
import typer.exceptions

from app.cli.exits import EXIT_HELP, CommandError, Exit, print_error

_GATEWAY_OPTIONS = ("--url", "--data-dir", "--api-key", "--json")


class CommandEntry(NamedTuple):
    place: str
    help: str


# The help is the first sentence of the command's docstring, or that of a group's commands.
COMMANDS: Mapping[str, CommandEntry] = {
    "up": CommandEntry(
        "app.cli.stack.up:up",
        "Start NATS, the engine simulator, Ray Serve and the gateway; keep them running until Ctrl-C, then stop them.",
    ),
    "demo": CommandEntry("app.cli.demo:demo", "Start the whole stack, show one council live, and stop everything."),
    "ask": CommandEntry("app.cli.ask:ask", "Submit a task and wait for the verdict."),
    "watch": CommandEntry("app.cli.watch:watch", "Watch a deliberation live until it ends."),
    "open": CommandEntry(
        "app.cli.browse:open_page", "Open the page of a deliberation in the browser, and print its address."
    ),
    "list": CommandEntry("app.cli.lists:list_deliberations", "List deliberations, newest first."),
    "stats": CommandEntry(
        "app.cli.lists:stats", "Show counts, durations, tokens, cost, agreement, and how often each role or model won."
    ),
    "show": CommandEntry(
        "app.cli.show:show",
        "Show one deliberation: what was asked, ranking, scores, confidence, cost, and the winning text.",
    ),
    "cancel": CommandEntry("app.cli.show:cancel", "Cancel a deliberation. A repeated or late request changes nothing."),
    "delete": CommandEntry(
        "app.cli.show:delete", "Delete a deliberation that has ended: its facts are removed for good."
    ),
    "deliveries": CommandEntry(
        "app.cli.show:deliveries", "List the deliveries of a deliberation's webhook with their attempts."
    ),
    "redeliver": CommandEntry(
        "app.cli.show:redeliver", "Request one more attempt of a delivery now, besides its schedule."
    ),
    "status": CommandEntry(
        "app.cli.status:status",
        "Show the stack on one screen: gateway, faults, work, roles, engines, queue and versions.",
    ),
    "doctor": CommandEntry(
        "app.cli.doctor.command:doctor",
        "Show the faults of a stack or of the set-up here, with their effects and remedies.",
    ),
    "roles": CommandEntry("app.cli.status:roles", "List the roles of agents, or show one."),
    "strategies": CommandEntry(
        "app.cli.strategies:strategies",
        "List the strategies with their cost, or show one with steps, source and parameters.",
    ),
    "openapi": CommandEntry(
        "app.cli.admin.openapi:openapi",
        "Write openapi.json, openapi-3.2.json, events.schema.json and asyncapi.yaml, or check that they are current.",
    ),
    "mcp": CommandEntry(
        "app.cli.mcp:mcp",
        "Serve MCP on stdin and stdout: councils as tools of an assistant (docs/mcp.md). The command ends with stdin.",
    ),
    "export": CommandEntry(
        "app.cli.admin.transfer:export_command",
        "Write the archive's ended deliberations and tombstones as lines of JSON, as they are at one moment.",
    ),
    "import": CommandEntry(
        "app.cli.admin.transfer:import_command",
        "Write an export into an empty archive. A repetition changes nothing, and resumes what was interrupted.",
    ),
    "files": CommandEntry("app.cli.files:files_cli", "Upload, list and delete files that deliberations read."),
    "plan": CommandEntry("app.cli.plan:plan_cli", "Approve plans and see what became of them."),
    "context": CommandEntry("app.cli.admin.context:context_cli", "Choose the gateway that commands speak to."),
    "streams": CommandEntry("app.cli.admin.streams:streams_cli", "Declare the streams of the log."),
    "keys": CommandEntry("app.cli.admin.keys:keys_cli", "Make, list and revoke API keys."),
    "archive": CommandEntry("app.cli.admin.archive:archive_cli", "Prepare the archive's database."),
    "webhooks": CommandEntry("app.cli.admin.webhooks:webhooks_cli", "Secrets for receivers of webhooks."),
    "bench": CommandEntry("app.cli.bench.quality:bench_cli", "Measure the benefit of deliberation."),
}


PANELS: Mapping[str, Sequence[str]] = {
    "Run a stack": ("up", "demo", "status", "doctor", "simulator", "worker"),
    "Ask": ("ask", "watch", "open", "show", "list", "stats", "cancel", "delete"),
    "Look up": ("roles", "strategies", "files", "deliveries", "redeliver"),
    "Connect": ("context", "keys", "mcp", "plan"),
    "Operate": ("streams", "archive", "export", "import", "webhooks", "bench", "openapi"),
}
"""The commands of each panel of `deliberate --help`."""


def panel_of(name: str) -> str:
    return next(panel for panel, names in PANELS.items() if name in names)


def command_of(name: str) -> Any:  # noqa: ANN401 -- typer's class is private
    """A command of the table with its parameters, or a group with its commands; imports the module."""
    place, help = COMMANDS[name]
    module, _, attribute = place.partition(":")
    target, alone = getattr(import_module(module), attribute), typer.Typer()
    if isinstance(target, typer.Typer):
        alone.add_typer(target, name=name, help=help, no_args_is_help=True, epilog=EXIT_HELP)
    else:
        alone.command(name, epilog=EXIT_HELP)(target)
    command = typer.main.get_group(alone).commands[name]
    _unwrap_help([command])
    return command


class CommandLine(typer.core.TyperGroup):
    """The group of all commands. It imports the module of a command once a line names the command."""

    def __init__(self, *, commands: Mapping[str, Any], **options: Any) -> None:  # noqa: ANN401 -- typer's own
        listed = {
            name: typer.core.TyperCommand(name, help=entry.help, rich_help_panel=panel_of(name))
            for name, entry in COMMANDS.items()
        }
        super().__init__(commands={**listed, **commands}, **options)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 -- typer's class is private
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and name in COMMANDS:
            command = self.commands[name] = command_of(name)
        return name, command, rest

    def main(self, *, standalone_mode: bool = True, **options: Any) -> Any:  # noqa: ANN401  # pyright: ignore[reportIncompatibleMethodOverride] -- typer passes keywords
        if not standalone_mode:
            return super().main(standalone_mode=False, **options)
        args = options.pop("args", None)
        words = self._options_behind(sys.argv[1:] if args is None else args)
        try:
            code = super().main(args=words, standalone_mode=False, **options)
        except (typer.exceptions.TyperException, CommandError) as raised:
            command = " ".join(["deliberate", *self._path(words)])
            error = raised if isinstance(raised, CommandError) else _usage_error(raised, command)
            # Without a sentence, the help has been printed in its place.
            if error.detail:
                print_error(error, as_json="--json" in words)
            code = error.exit_code
        sys.exit(code)

    def _path(self, words: Sequence[str]) -> Sequence[str]:
        """The words of the command that a line begins with, such as `context use`."""
        path: list[str] = []
        commands = self.commands
        for word in words:
            if word not in commands:
                break
            path.append(word)
            group = command_of(word) if word in COMMANDS and len(path) == 1 else commands[word]
            commands = getattr(group, "commands", {})
        return path

    def _options_behind(self, words: Sequence[str]) -> list[str]:
        """The words of a line, in which options that name a gateway may also stand before the command."""
        before: list[str] = []
        rest = list(words)
        while rest and rest[0].partition("=")[0] in _GATEWAY_OPTIONS:
            with_value = rest[0] != "--json" and "=" not in rest[0]
            before += rest[: 1 + with_value]
            del rest[: 1 + with_value]
        if not before or not (path := self._path(rest)):
            return list(words)
        return [*path, *before, *rest[len(path) :]]


def _unwrap_help(commands: Iterable[Any]) -> None:
    """Make each paragraph of the commands' help one line, which the terminal wraps: typer keeps the source's lines."""
    for command in commands:
        paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)
        _unwrap_help(getattr(command, "commands", {}).values())


def _usage_error(error: typer.exceptions.TyperException, command: str) -> CommandError:
    """An error of usage, with the closest option, and `command`, which lists the options, as its remedy."""
    close: Sequence[str] = getattr(error, "possibilities", None) or ()
    detail = f"{error.message}. Did you mean {close[0]}?" if close else error.format_message()
    # The words of typer's validator, which no user knows.
    detail = detail.replace("Value error, ", "").replace("Input should be ", "it must be ")
    detail = re.sub(r"a valid (\w+), unable to parse string as (an? \w+)", r"\2", detail)
    remedy = f"`{command} --help` shows what it takes"
    return CommandError(Exit.USAGE, "usage", detail, remedy=remedy)
