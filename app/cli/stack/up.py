"""`deliberate up`: runs the whole stack in the foreground until Ctrl-C; reports a checklist, plain lines or JSON."""

import asyncio
import json
import logging
import os
import shlex
import shutil
import signal
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NoReturn

import structlog
import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from app.access.origins import is_loopback
from app.cli.exits import Exit, print_json, run
from app.cli.options import (
    DATA_DIR,
    AgentsOption,
    JsonOption,
    RolesOption,
    checked_nats_url,
    checked_url,
    program,
)
from app.cli.render import progress
from app.cli.render.progress import ProgressEvent, ProgressReport, as_document
from app.cli.render.prose import printable
from app.cli.stack.checks import status_of
from app.cli.stack.children import declare_on_given, stack_children
from app.cli.stack.layout import (
    LOOPBACK,
    Layout,
    StackOptions,
    exclusive,
    make_data_dir,
    make_ray_dir,
    mask_credentials,
    plan_stack,
)
from app.cli.stack.supervisor import marked, supervised, sweep
from app.cli.target import options_for
from app.deliberation.roles import engine_base

TITLES = {
    "nats": "NATS",
    "engine": "Engine",
    "simulator": "Engine simulator",
    "ray": "Ray",
    "deployer": "Ray Serve",
    "coordinator": "Coordinator",
    "worker": "Worker",
    "gateway": "Gateway",
    "webhooks": "Webhooks",
    "archive": "Archive",
    "planning": "Plans",
}
_LEFTOVERS_GRACE_S = 3.0
_SLOW_AFTER_S = 60.0
_SLOWEST = {"ray", "deployer"}
_EXAMPLE = {"task": "Reverse a linked list", "num_agents": 3}


def _checked_engines(values: list[str] | None) -> list[str]:
    return [engine_base(checked_url(value.strip(), ("http", "https"))) for value in values or []]


EngineOption = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-url", metavar="URL", callback=_checked_engines, help="An OpenAI-compatible engine; repeatable."
    ),
]
ExternalNatsOption = Annotated[
    str | None,
    typer.Option("--nats-url", metavar="URL", callback=checked_nats_url, help="Use this NATS server and start none."),
]
PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="The gateway's port; the next free one if it is taken.")
]
HostOption = Annotated[str, typer.Option(help="The gateway's listen address.")]
DataOption = Annotated[Path, typer.Option("--data-dir", help="Directory of the log; it survives a restart.")]
SimulateOption = Annotated[str, typer.Option("--simulate", metavar="ARGS", help="Arguments of the simulator.")]


@dataclass(slots=True)
class Checklist:
    """Reports progress on a terminal: a line for each ready child, and a moving last line for those that start.

    Without a terminal it prints a line when only Ray is missing, which takes longest.
    """

    console: Console
    starting: dict[str, str] = field(default_factory=dict[str, str])
    status: Status | None = None

    def __call__(self, event: ProgressEvent) -> None:
        """Report one event."""
        match event:
            case progress.ChildStarted(name=name):
                self.starting[name] = TITLES[name]
            case progress.ChildReady():
                self.starting.pop(event.name, None)
                again = " again" if event.attempt > 1 else ""
                self._line("✔", "green", TITLES[event.name], f"{event.detail}  ({event.seconds:.1f} s{again})")
                if not self.console.is_terminal and self.starting and self.starting.keys() <= _SLOWEST:
                    self._line("…", "dim", "Waiting for", ", ".join(self.starting.values()))
            case progress.ChildDied():
                self._tail(event.log_tail)
                when = f"starting it again {f'in {event.restart_in_s:g} s' if event.restart_in_s else 'after that one'}"
                self._line("!", "yellow", TITLES[event.name], f"{event.reason}; {when}")
            case progress.ChildFailed():
                self._tail(event.log_tail)
                self._line("✘", "red", TITLES[event.name], f"{event.reason}; its log: {event.log}")
            case progress.PortShifted():
                self._line("!", "yellow", TITLES[event.name], f"port {event.wanted} is taken, using {event.port}")
            case progress.PartGiven(url=url, answers=True):
                self._line("✔", "green", TITLES[event.name], f"{url}  given")
            case progress.PartGiven(url=url):
                self._line("!", "yellow", TITLES[event.name], f"{url}  given, but it does not answer now")
            case progress.Noticed(text=text):
                self._line("!", "yellow", "", text)
            case progress.StackReady():
                self.starting.clear()
                self._ready(event)
            case progress.StackStopping(name=name):
                self.starting = {name: f"stopping {TITLES[name]}"}
            case progress.StackStopped():
                self.starting.clear()
                self._line("✔", "green", "Stopped", f"({event.seconds:.1f} s)")
                self._tail(event.left)
        self._move()

    def _line(self, sign: str, style: str, title: str, text: str) -> None:
        self.console.print(Text.assemble((f" {sign} ", style), f"{title:<17}" if title else "", printable(text)))

    def _tail(self, lines: tuple[str, ...]) -> None:
        for line in lines:
            self.console.print(Text(f"   │ {printable(line)}", "dim"))

    def _ready(self, event: progress.StackReady) -> None:
        open_to = "loopback only" if is_loopback(event.host) else "open to all that reach this host"
        mode = f"Keys are required, {open_to}" if event.keys else "Development mode: no keys, loopback only"
        command, at = program(), options_for(Path(event.data_dir))
        self._hint("Data:", event.data_dir)
        if event.keys:
            self._hint("A key:", f"export DELIBERATE_API_KEY=$({command} keys create me --tenant mine{at})")
        self._hint("Ask:", f'{command} ask "{_EXAMPLE["task"]}"{at}')
        self._hint("Or:", f"curl -sS {event.url}/deliberations \\")
        self._hint("", "-H 'content-type: application/json' \\")
        if event.keys:
            self._hint("", '-H "authorization: Bearer $DELIBERATE_API_KEY" \\')
        self._hint("", f"-d '{json.dumps(_EXAMPLE)}'")
        self._hint(f"{mode}.")
        self._hint(f"Up in {event.seconds:.1f} s; Ctrl-C stops it.")

    def _hint(self, title: str, command: str = "") -> None:
        self.console.print(Text(f"   {title:<7} {command}".rstrip()))

    def _move(self) -> None:
        if not self.console.is_terminal:
            return
        if self.status is None:
            self.status = self.console.status("")
        if self.starting:
            self.status.update(", ".join(self.starting.values()) + " …")
            self.status.start()
        else:
            self.status.stop()


@dataclass(frozen=True, slots=True)
class RunningStack:
    """A stack that is ready to serve. `nats_url` is for the gateway's rights; `layout.nats_url_of` has other users'."""

    layout: Layout
    url: str
    nats_url: str
    engine_urls: tuple[str, ...]
    log_key_file: Path


@asynccontextmanager
async def running_stack(options: StackOptions, report: ProgressReport = lambda _: None) -> AsyncGenerator[RunningStack]:
    """Run the whole stack around the body, which begins when the gateway is ready to serve.

    Raises CommandError when the data directory is in use or unusable, and when the stack cannot start. State stays in
    the data directory: the next stack there continues the same log. Cancelling the body stops the stack in order.
    """
    began_s = time.monotonic()
    make_data_dir(options.data_dir)
    with exclusive(options.data_dir):
        await _end_leftovers(options.data_dir, report)
        layout = plan_stack(options, report)
        for log in layout.stack_run.logs_dir.glob("*.log"):
            log.replace(log.with_suffix(".previous"))
        if options.nats_url is not None:
            await declare_on_given(layout, report)
        with _ray_directory(layout, report) if layout.uses_ray else nullcontext():
            async with supervised(stack_children(layout), layout.stack_run, report):
                await _until_serving(layout, report)
                # Only for information: an engine may take minutes to load, and may restart at any time.
                for url in options.engine_urls:
                    answers = await status_of(f"{url}/v1/models") is not None
                    report(progress.PartGiven("engine", mask_credentials(url), answers=answers))
                report(_ready(layout, time.monotonic() - began_s))
                nats_url = layout.nats_url_of("gateway")
                yield RunningStack(layout, layout.url, nats_url, layout.engine_urls, layout.log_key_file)


@contextmanager
def _ray_directory(layout: Layout, report: ProgressReport) -> Generator[None]:
    """Make Ray's directory and remove it afterwards; `logs/ray` links into it, and ends as a copy of Ray's logs."""

    def remove_kept() -> None:
        if kept.is_symlink():
            kept.unlink()
        shutil.rmtree(kept, ignore_errors=True)

    kept, logs = layout.stack_run.logs_dir / "ray", layout.ray_dir / "session_latest" / "logs"
    make_ray_dir(layout.ray_dir)
    remove_kept()
    kept.symlink_to(logs)
    try:
        yield
    finally:
        remove_kept()
        try:
            if logs.is_dir():
                shutil.copytree(logs, kept, symlinks=True)
        except OSError:
            # A full disk fails many copies; one notice is enough.
            report(progress.Noticed(f"not all of Ray's logs could be kept in {kept}"))
        shutil.rmtree(layout.ray_dir, ignore_errors=True)


def _ready(layout: Layout, seconds: float) -> progress.StackReady:
    return progress.StackReady(
        url=layout.url,
        nats_url=layout.nats_url,
        engine_urls=tuple(mask_credentials(url) for url in layout.engine_urls),
        ray_address=layout.ray_address,
        roles=layout.roles,
        simulated=not layout.options.engine_urls,
        data_dir=str(layout.data_dir),
        seconds=seconds,
        keys=layout.options.key_pepper is not None,
        host=layout.options.host,
    )


async def _until_serving(layout: Layout, report: ProgressReport) -> None:
    slow_at_s = time.monotonic() + _SLOW_AFTER_S
    while (status := await status_of(f"{layout.url}/readyz")) != 200:
        await asyncio.sleep(0.05)
        if time.monotonic() > slow_at_s:
            slow_at_s = float("inf")
            report(
                progress.Noticed(
                    f"{layout.url}/readyz still answers {status} and says why; logs: {layout.stack_run.logs_dir}"
                )
            )


async def _end_leftovers(data_dir: Path, report: ProgressReport) -> None:
    """End the processes that a killed supervisor left running; its state file has the mark."""
    try:
        mark = str(json.loads((data_dir / "stack.json").read_text(encoding="utf-8"))["mark"])
    except (FileNotFoundError, ValueError, KeyError):
        return
    if left := marked(mark):
        report(progress.Noticed(f"an earlier run was cut short: ending {len(left)} processes of it"))
        await sweep(mark, grace_s=_LEFTOVERS_GRACE_S)


async def _up(options: StackOptions, report: ProgressReport) -> Exit:
    task = asyncio.current_task()
    assert task is not None, "asyncio.run gives every coroutine a task"

    def report_and_listen(event: ProgressEvent) -> None:
        report(event)
        if isinstance(event, progress.StackStopping):
            # `run` ignores a second signal; here it means that the stop takes too long.
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)

    async with running_stack(options, report_and_listen):
        await asyncio.Event().wait()
    return Exit.SUCCESS


def up(
    port: PortOption = 8080,
    host: HostOption = LOOPBACK,
    engine_url: EngineOption = None,
    nats_url: ExternalNatsOption = None,
    data_dir: DataOption = DATA_DIR,
    roles: RolesOption = None,
    agents: AgentsOption = "ray",
    simulate: SimulateOption = "",
    as_json: JsonOption = False,
) -> NoReturn:
    """Start NATS, the engine simulator, Ray Serve and the gateway; keep them running until Ctrl-C, then stop them.

    With `--agents nats` a coordinator and a worker run without Ray Serve.

    After Ctrl-C or SIGTERM the exit code is 0 if everything was ready and has stopped. A second signal kills the rest.
    """
    try:
        simulator_arguments = tuple(shlex.split(simulate))
    except ValueError as error:
        raise typer.BadParameter(f"--simulate: {error}") from error
    if simulator_arguments and engine_url:
        raise typer.BadParameter("--engine-url starts no simulator, so that --simulate has no use: omit one of them")
    pepper = os.environ.get("KEY_PEPPER") or None
    # The gateway would refuse it too, at its start.
    if pepper is None and not is_loopback(host):
        detail = f"without keys nothing but loopback is listened on, and not {host}"
        raise typer.BadParameter(f"{detail}; set KEY_PEPPER, for example to what `openssl rand -hex 32` writes")
    options = StackOptions(
        host=host,
        port=port,
        data_dir=data_dir,
        nats_url=nats_url,
        engine_urls=tuple(engine_url or ()),
        roles_file=roles,
        agents=agents,
        simulate=simulator_arguments,
        key_pepper=pepper,
    )
    # Otherwise the log's client would write every attempt to connect to stdout; a failure is reported once.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    checklist = Checklist(Console(highlight=False, soft_wrap=True))
    reported = set[type[ProgressEvent]]()

    def remember(event: ProgressEvent) -> None:
        reported.add(type(event))
        if as_json:
            print_json(as_document(event))
        else:
            checklist(event)

    try:
        run(lambda: _up(options, remember), as_json=as_json)
    except typer.Exit as exit_:
        if exit_.exit_code > 128 and {progress.StackReady, progress.StackStopped} <= reported:
            raise typer.Exit(0) from None
        raise
