"""`deliberate up`: runs the whole stack in the foreground until Ctrl-C; reports a checklist, plain lines or JSON."""

import asyncio
import json
import logging
import os
import shlex
import shutil
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import structlog
import typer
from rich.console import Console

from app.access.loopback import is_loopback
from app.api.findings import Finding, ordered
from app.cli.exits import CommandError, Exit, cause, print_json, run
from app.cli.machine import check_machine, check_room
from app.cli.options import DATA_DIR, JsonOption, checked_nats_url, checked_url
from app.cli.render.progress import Checklist, FaultFound, Noticed, PartGiven, ProgressReport, StackReady, as_document
from app.cli.stack.checks import status_of
from app.cli.stack.children import declare_on_given, stack_children
from app.cli.stack.layout import (
    LOOPBACK,
    MODEL_PACE,
    AgentsOption,
    Layout,
    RolesOption,
    StackOptions,
    exclusive,
    make_data_dir,
    mask_credentials,
    plan_stack,
)
from app.cli.stack.supervisor import marked, supervised, sweep
from app.deliberation.roles import engine_base, engine_endpoint, placed
from app.log.signature import LogSigner


def _engines(values: list[str] | None) -> list[str]:
    return [engine_base(checked_url(value.strip(), ("http", "https"))) for value in values or []]


EngineOption = Annotated[
    list[str] | None,
    typer.Option("--engine-url", metavar="URL", callback=_engines, help="An OpenAI-compatible engine; repeatable."),
]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model", metavar="FILE.gguf", dir_okay=False, help="Serve this model by llama.cpp, not the simulator."
    ),
]
ExternalNatsOption = Annotated[
    str | None,
    typer.Option("--nats-url", metavar="URL", callback=checked_nats_url, help="Use this NATS server and start none."),
]


# A start beyond it says what it waits for.
_SLOW_S = 10.0
_SETTLED_S = 5.0


@asynccontextmanager
async def running_stack(options: StackOptions, report: ProgressReport = lambda _: None) -> AsyncGenerator[Layout]:
    """Run the whole stack around the body, which begins when the gateway serves; a cancelled body stops it in order.

    Raises CommandError when the data directory is in use or unusable, and when the stack cannot start. State stays in
    the data directory: the next stack there continues the same log.
    """
    began_s = time.monotonic()
    check_machine()
    make_data_dir(options.data_dir)
    with exclusive(options.data_dir):
        await _end_leftovers(options.data_dir, report)
        layout = plan_stack(options, report)
        for log in layout.stack_run.logs_dir.glob("*.log"):
            log.replace(log.with_suffix(".previous"))
        if options.nats_url is not None:
            await declare_on_given(layout, report)
        with _ray_directory(layout, report) if layout.uses_ray else nullcontext():
            explain = partial(_explain, layout, report)
            async with supervised(stack_children(layout), layout.stack_run, report, explain):
                await _until_serving(layout, report)
                # Only for information: an engine may take minutes to load, and may restart at any time.
                for url in options.engine_urls:
                    answers = await status_of(engine_endpoint(url, "/models")) is not None
                    report(PartGiven("engine", mask_credentials(url), answers=answers))
                ready = StackReady(
                    url=layout.url,
                    nats_url=layout.nats_url,
                    engine_urls=tuple(map(mask_credentials, layout.engine_urls)),
                    ray_address=layout.ray_address,
                    roles=layout.roles,
                    simulated=layout.simulates,
                    data_dir=str(layout.data_dir),
                    seconds=time.monotonic() - began_s,
                    keys=options.key_pepper is not None,
                    host=options.host,
                )
                report(ready)
                yield layout


@contextmanager
def _ray_directory(layout: Layout, report: ProgressReport) -> Generator[None]:
    """Make Ray's directory and remove it afterwards; `logs/ray` links to Ray's logs, and has them in the end."""
    kept, logs = layout.stack_run.logs_dir / "ray", layout.ray_dir / "session_latest" / "logs"
    try:
        check_room(layout.ray_dir.parent)
        layout.ray_dir.mkdir(mode=0o700)
    except OSError as error:
        detail = f"{layout.ray_dir.parent} cannot hold Ray's files: {cause(error)}"
        remedy = "run without Ray by --agents local"
        raise CommandError(Exit.USAGE, "ray_dir_unusable", detail, remedy=remedy) from error
    shutil.rmtree(kept, ignore_errors=True)
    kept.unlink(missing_ok=True)
    kept.symlink_to(logs)
    try:
        yield
    finally:
        kept.unlink()
        try:
            if logs.is_dir():
                shutil.move(logs.resolve(), kept)
        except OSError:
            report(Noticed(f"not all of Ray's logs could be kept in {kept}"))
        shutil.rmtree(layout.ray_dir, ignore_errors=True)


async def _until_serving(layout: Layout, report: ProgressReport) -> None:
    shown, slow_at_s = list[Finding](), time.monotonic() + _SLOW_S
    while await status_of(f"{layout.url}/readyz") != 200:
        await asyncio.sleep(0.05)
        if time.monotonic() > slow_at_s:
            slow_at_s = time.monotonic() + _SLOW_S
            findings = await _ready_findings(layout)
            for finding in findings if findings != shown else ():
                report(FaultFound(**finding.model_dump()))
            shown = findings


async def _ready_findings(layout: Layout) -> list[Finding]:
    # Imported here: a start that is not slow has no use for an HTTP client.
    from app.cli.client import GatewayClient, GatewayUnreachable
    from app.cli.doctor.command import ready_findings

    async with GatewayClient(layout.url) as gateway:
        with suppress(GatewayUnreachable):
            return ready_findings(await gateway.answer("GET", "/readyz"))
    return []


async def _explain(layout: Layout, report: ProgressReport) -> None:
    """Report what is wrong with the set-up, for a part that did not become ready."""
    from app.cli.doctor.setup import Setup, machine_findings, setup_findings
    from app.process_settings import load_roles

    setup = Setup(
        nats_url=layout.nats_url_of("gateway"),
        # The stack's own database is made by the stack.
        database_url=layout.database_url if os.environ.get("DATABASE_URL") else None,
        engine_variables=None if layout.simulates else layout.engine_variables,
        port=layout.ports["gateway"],
        declared=layout.streams,
        signer=LogSigner.of_file(layout.log_key_file),
        roles=placed(load_roles(layout.options.roles_file), layout.options.agents),
    )
    for finding in ordered([*machine_findings(layout.data_dir), *await setup_findings(setup)]):
        if finding.severity != "info":
            report(FaultFound(**finding.model_dump()))


async def _end_leftovers(data_dir: Path, report: ProgressReport) -> None:
    """End the processes that a killed supervisor left running, and remove Ray's directory, by its state file."""
    try:
        state = json.loads((data_dir / "stack.json").read_text(encoding="utf-8"))
        mark, ray_dir = str(state["mark"]), str(state.get("ray_dir", ""))
    except (FileNotFoundError, ValueError, KeyError):
        return
    if left := marked(mark):
        report(Noticed(f"an earlier run was cut short: ending {len(left)} processes of it"))
        # The kernel has sent SIGTERM to the children when the supervisor was killed.
        await sweep(mark, grace_s=3.0)
    shutil.rmtree(ray_dir, ignore_errors=True)


async def _up(options: StackOptions, report: ProgressReport) -> Exit:
    """Run the stack until a signal cancels the wait; a second one cancels the stop, which kills what is left."""
    async with running_stack(options, report) as layout:
        with suppress(asyncio.CancelledError):
            # By then every part that starts well has answered.
            await asyncio.sleep(_SETTLED_S)
            for finding in await _ready_findings(layout):
                report(FaultFound(**finding.model_dump()))
            await asyncio.Event().wait()
    return Exit.SUCCESS


def up(
    port: Annotated[int, typer.Option(min=0, max=65535, help="The gateway's port, or the next free one.")] = 8080,
    host: Annotated[str, typer.Option(help="The gateway's listen address.")] = LOOPBACK,
    engine_url: EngineOption = None,
    model: ModelOption = None,
    nats_url: ExternalNatsOption = None,
    data_dir: Annotated[Path, typer.Option(help="Directory of the log; it survives a restart.")] = DATA_DIR,
    roles: RolesOption = None,
    agents: AgentsOption = "ray",
    simulate: Annotated[
        str | None,
        typer.Option(metavar="ARGS", help=f"Arguments of the simulator, by default `{MODEL_PACE}`; '' is its fastest."),
    ] = None,
    as_json: JsonOption = False,
) -> NoReturn:
    """Start NATS, the engine simulator, Ray Serve and the gateway; keep them running until Ctrl-C, then stop them.

    `--model` serves a real model in place of the simulator, `--engine-url` names an engine that runs.
    With `--agents nats` a coordinator and a worker run without Ray Serve, with `--agents local` one process for both.
    After Ctrl-C or SIGTERM the exit code is 0 if everything was ready and has stopped. A second signal kills the rest.
    """
    try:
        simulator_arguments = tuple(shlex.split(simulate or ""))
    except ValueError as error:
        raise typer.BadParameter(f"--simulate: {error}") from error
    if model is not None and (engine_url or simulator_arguments):
        raise typer.BadParameter("--model starts an engine of its own: omit --engine-url and --simulate, or --model")
    if simulator_arguments and engine_url:
        raise typer.BadParameter("--engine-url starts no simulator, so that --simulate has no use: omit one of them")
    if simulate is None and not engine_url and model is None:
        simulator_arguments = tuple(MODEL_PACE.split())
    pepper = os.environ.get("KEY_PEPPER") or None
    # The gateway would refuse such an address too.
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
        model_file=model,
        key_pepper=pepper,
    )
    # Otherwise the log's client would write every attempt to connect to stdout; a failure is reported once.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    checklist = Checklist(Console(highlight=False, soft_wrap=True))
    report: ProgressReport = (lambda event: print_json(as_document(event))) if as_json else checklist
    run(lambda: _up(options, report), as_json=as_json, cancels_again=True)
