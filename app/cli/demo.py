"""`deliberate demo`: starts the whole stack, shows one council live, and removes everything."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer
from rich.console import Console
from rich.text import Text

from app.api.schemas import Deliberation
from app.cli.client import GatewayClient, JsonObject, parsed
from app.cli.exits import CommandError, Exit, exit_of, print_json, run
from app.cli.options import JsonOption, KeepOption, program
from app.cli.render.lines import print_to_stderr
from app.cli.render.progress import Checklist, StackReady
from app.cli.render.text import seconds
from app.cli.stack.layout import StackOptions
from app.cli.stack.up import ModelOption, running_stack
from app.cli.watch import until_ended, watch_deliberation
from app.deliberation.roles import ROLES_BY_COMPLEXITY, Complexity

TASK = (
    "Design a rate limiter for a public HTTP API: 100 requests a minute for each client, counted right across several "
    "gateway processes, and still serving when its store is down."
)
QUESTION = "When does an index make a query slower?"
DEFAULT_PORT = 8080
_REAL_WITHIN_S = 1_800
# Each completion takes about three seconds, so that a viewer can follow the four stages.
_SIMULATE = ("--duration-ms", "3200", "--jitter", "0.35", "--seed", "7")


def demo_body(case: Complexity | None, task: str, *, real: bool = False) -> JsonObject:
    council: JsonObject = (
        {"role": "DEV", "num_agents": 3}
        if case is None
        else {"agents": [{"role": role, "count": 1} for role in ROLES_BY_COMPLEXITY[case]]}
    )
    # Two cores write some five tokens a second.
    constraints = {"constraints": {"timeout_seconds": _REAL_WITHIN_S}} if real else {}
    return {"task": task, **council, "strategy": "council", "rounds": 1, "seed": 7, **constraints}


class _Start(Checklist):
    def _ready(self, event: StackReady) -> None:
        self.console.print(Text(f"   ready in {seconds(event.seconds)} at {event.url}\n", "dim"))


def next_steps(port: int) -> Text:
    command, at = program(), "" if port == DEFAULT_PORT else f" --port {port}"
    text = Text("\nTry it: start the stack, and submit a task from another terminal in this directory.\n\n")
    commands = (
        f"{command} up{at}",
        f'{command} ask "{QUESTION}"',
        f"curl -s http://127.0.0.1:{port}/deliberations -H 'Content-Type: application/json' \\",
        f"  -d '{json.dumps({'task': QUESTION, 'num_agents': 3})}'",
    )
    return text.append("".join(f"  {line}\n" for line in commands), "bold cyan")


@contextmanager
def _directory(chosen: Path | None, console: Console) -> Generator[Path]:
    """The data directory: the chosen one, or a temporary one that is kept only when the stack fails."""
    if chosen is not None:
        yield chosen
        return
    made = Path(tempfile.mkdtemp(prefix="deliberate-demo-"))
    try:
        yield made
    except CommandError:
        console.print(Text(f"The logs are in {made / 'logs'}", "yellow"), soft_wrap=True)
        raise
    except (KeyboardInterrupt, asyncio.CancelledError):
        shutil.rmtree(made, ignore_errors=True)
        raise
    shutil.rmtree(made, ignore_errors=True)


async def _demo(options: StackOptions, body: JsonObject, *, as_json: bool) -> Exit:
    console = Console(stderr=as_json, highlight=False)
    async with running_stack(options, _Start(console)) as stack, GatewayClient(stack.url) as gateway:
        accepted = await gateway.submit(body, uuid4().hex)
        if as_json:
            resource = await until_ended(gateway, str(accepted["id"]), print_to_stderr)
            print_json(resource)
        else:
            console.print(Text.assemble(("Task: ", "bold"), str(body["task"]), "\n"))
            resource = await watch_deliberation(gateway, str(accepted["id"]), console)
    if not as_json:
        console.print(next_steps(options.port or DEFAULT_PORT), soft_wrap=True)
    return exit_of(parsed(Deliberation, resource).status)


def demo(
    case: Annotated[Complexity | None, typer.Option(help="A council of 2, 3 or 4 roles, not three developers.")] = None,
    task: Annotated[str, typer.Option(help="The task.", show_default=False)] = TASK,
    model: ModelOption = None,
    data_dir: KeepOption = None,
    port: Annotated[int, typer.Option(help="The gateway's port, or the next free one.")] = DEFAULT_PORT,
    as_json: JsonOption = False,
) -> None:
    """Start the whole stack, show one council live, and stop everything.

    Without `--model` the engine is a simulator without weights: its texts are invented; everything else is real.
    """

    async def main() -> Exit:
        with _directory(data_dir, Console(stderr=True, highlight=False)) as directory:
            simulate = _SIMULATE if model is None else ()
            options = StackOptions(data_dir=directory, port=port, simulate=simulate, model_file=model)
            return await _demo(options, demo_body(case, task, real=model is not None), as_json=as_json)

    run(main, as_json=as_json)
