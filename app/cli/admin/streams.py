"""`deliberate streams plan | apply`: declares the streams of the log; no service does so while serving."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import structlog
import typer
from rich.console import Console
from rich.text import Text

from app.cli.exits import EXIT_HELP, CommandError, Exit, FieldFault, print_json, run, usage_errors
from app.cli.options import DATA_DIR, JsonOption, StackOption, checked_nats_url
from app.cli.stack.layout import AgentsOption, RolesOption
from app.cli.target import LocalStack, find_local
from app.deliberation.errors import JournalUnavailable, StreamsDiffer
from app.deliberation.roles import placed, run_by
from app.log import stream_settings as bounds
from app.log.journal import JetStreamJournal
from app.log.signature import LOG_KEY_NAME, LOG_KEY_VARIABLE, LogSigner
from app.log.stream_settings import KEYS_STREAM, StreamSettings
from app.log.streams import apply, plan

streams_cli = typer.Typer()


NatsOption = Annotated[
    str | None,
    typer.Option(
        "--nats-url",
        envvar="NATS_URL",
        metavar="URL",
        callback=checked_nats_url,
        show_default=f"that of the stack in {DATA_DIR}",
        help="NATS server of the log, or `file:///path` of a file with its URL.",
    ),
]
RetentionOption = Annotated[
    int,
    typer.Option(
        "--retention",
        envvar="DELIBERATION_CLEANUP",
        metavar="SECONDS",
        min=bounds.RETENTION_S_MIN,
        max=bounds.RETENTION_S_MAX,
        help="Retention of facts.",
    ),
]
ReplicasOption = Annotated[
    int, typer.Option(envvar="STREAM_REPLICAS", min=1, max=bounds.REPLICAS_MAX, help="Replicas of each stream: 1 or 3.")
]
AckWaitOption = Annotated[
    float,
    typer.Option(
        "--ack-wait",
        envvar="ACK_WAIT",
        metavar="SECONDS",
        min=bounds.ACK_WAIT_S_MIN,
        max=bounds.ACK_WAIT_S_MAX,
        help="Time without a sign of life until another coordinator takes over; 20 with three servers.",
    ),
]
PublishOption = Annotated[
    str | None,
    typer.Option(
        "--publish",
        envvar="PUBLISH",
        metavar="LIST",
        show_default=",".join(bounds.DEFAULT_PUBLICATIONS),
        help="Messages for other services, whose streams are declared too: announcements,responses,results,texts; "
        "nothing for none.",
    ),
]
ClustersOption = Annotated[
    str,
    typer.Option(
        "--clusters",
        envvar="CLUSTERS",
        metavar="LIST",
        help="Labels of clusters, whose queues are declared too, separated by commas.",
    ),
]
WaitOption = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", min=0, help="Wait for the server up to this long.")
]


@dataclass(frozen=True, slots=True)
class LogTarget:
    """A log, the file of its signature if known, and the running stack that it must belong to, if there is one."""

    url: str
    key_file: Path | None = None
    stack: LocalStack | None = None


def find_log(nats_url: str | None, data_dir: Path | None, *, user: str, of_stack: bool) -> LogTarget:
    """The log at `nats_url`, else of the stack in `data_dir`, else of the stack that runs in `.deliberate`.

    With `of_stack` a log at `nats_url` must be that of a stack that runs here. Raises CommandError when nothing names
    a log and no stack runs.
    """
    if nats_url is None:
        stack = find_local(data_dir, "name the log by --nats-url or NATS_URL")
        return LogTarget(stack.nats_url(user), stack.data_dir / LOG_KEY_NAME, stack)
    directory = data_dir or DATA_DIR
    named = find_local(data_dir, "leave out --data-dir") if data_dir is not None else LocalStack.running_in(DATA_DIR)
    own = named is not None and nats_url.startswith(directory.resolve().as_uri())
    return LogTarget(nats_url, directory / LOG_KEY_NAME if own else None, named if of_stack else None)


def _signer_of(log: LogTarget) -> LogSigner:
    with usage_errors("give the file that the gateway has"):
        if log.key_file is not None and not os.environ.get(LOG_KEY_VARIABLE):
            return LogSigner.of_file(log.key_file)
        return LogSigner.of_environment()


async def _check_identity(journal: JetStreamJournal, stack: LocalStack) -> None:
    if stack.log_id is None:
        detail = f"the stack in {stack.data_dir} is starting and has no log yet"
        raise CommandError(
            Exit.UNREACHABLE, "no_stack", detail, remedy="try again when `deliberate up` says it is ready"
        )
    log_id = (await journal.state_of(KEYS_STREAM)).epoch
    if log_id != stack.log_id:
        detail = f"the log at {journal.server} is not that of the stack in {stack.data_dir}; nothing was changed"
        remedy = f"leave out --nats-url and NATS_URL for the stack in {stack.data_dir}, or name the other by --data-dir"
        raise CommandError(Exit.USAGE, "another_stack", detail, remedy=remedy)


async def connected(log: LogTarget, wait_s: float, main: Callable[[JetStreamJournal], Awaitable[Exit]]) -> Exit:
    """Run `main` with a connection to the log.

    Raises CommandError when no server answers within `wait_s` seconds, or when it is not the stack's.
    """
    # Otherwise every attempt to connect would be logged; a failure is reported once, at the end.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    journal = JetStreamJournal(log.url, name="deliberate", signer=_signer_of(log))
    remedy = "give it by --nats-url or NATS_URL; `deliberate up` starts one, `deliberate streams apply` prepares it"
    try:
        async with asyncio.timeout(wait_s):
            await journal.open()
        if log.stack is not None:
            await _check_identity(journal, log.stack)
        return await main(journal)
    except (TimeoutError, JournalUnavailable) as exc:
        detail = str(exc) or journal.refusal or f"no NATS server with JetStream answered within {wait_s:g} s"
        raise CommandError(Exit.UNREACHABLE, "journal_unavailable", detail, remedy=remedy) from exc
    finally:
        await journal.close()


def _print_lines(lines: list[str], style: str) -> None:
    console = Console(highlight=False)
    for line in lines:
        console.print(Text(line, style), soft_wrap=True)


async def plan_streams(journal: JetStreamJournal, declared: StreamSettings, *, as_json: bool) -> Exit:
    """List missing and different streams without a change; exits with 1 if there are any."""
    missing, different = await plan(journal, declared)
    if as_json:
        print_json({"missing": missing, "different": different})
    else:
        _print_lines([f"missing: {name}" for name in missing], "yellow")
        _print_lines([f"differs: {line}" for line in different], "red")
        _print_lines([] if missing or different else ["all streams are as declared"], "green")
    return Exit.FAILED if missing or different else Exit.SUCCESS


async def apply_streams(journal: JetStreamJournal, declared: StreamSettings, *, as_json: bool) -> Exit:
    """Create missing streams. If a stream differs, change nothing, list the differences and exit with 1."""
    try:
        created = await apply(journal, declared)
    except StreamsDiffer as exc:
        faults = [FieldFault(*line.partition(": ")[::2]) for line in str(exc).split("; ")]
        detail = "existing streams differ from the declaration; nothing was changed"
        remedy = "declare them with their settings, or change or delete them on the server"
        raise CommandError(Exit.FAILED, exc.code, detail, fields=faults, remedy=remedy) from exc
    if as_json:
        print_json({"created": created})
    else:
        _print_lines([f"created: {name}" for name in created] or ["all streams are as declared"], "green")
    return Exit.SUCCESS


def _add_command(name: str, main: Callable[..., Awaitable[Exit]]) -> None:
    def command(
        nats_url: NatsOption = None,
        data_dir: StackOption = None,
        as_json: JsonOption = False,
        retention_s: RetentionOption = bounds.DAY_S,
        replicas: ReplicasOption = 1,
        ack_wait_s: AckWaitOption = bounds.ACK_WAIT_S_MIN,
        agents: AgentsOption = "ray",
        roles: RolesOption = None,
        publish: PublishOption = None,
        clusters: ClustersOption = "",
        wait_s: WaitOption = 10.0,
    ) -> None:
        async def declared(journal: JetStreamJournal) -> Exit:
            # Imported here, because pydantic-settings would slow every command.
            from app.process_settings import ClusterRules, PublicationRules, read_roles

            with usage_errors("correct the file"):
                worker_roles = run_by("nats", placed(read_roles(roles), agents))
                # Without the option the settings read the environment: typer treats an empty PUBLISH as absent.
                asked = {} if publish is None else {"PUBLISH": publish}
                publications = PublicationRules.model_validate(asked).publications
                labels = ClusterRules.model_validate({"CLUSTERS": clusters}).clusters
            settings = StreamSettings(retention_s, replicas, ack_wait_s, worker_roles, publications, labels)
            return await main(journal, settings, as_json=as_json)

        # A server at a URL may be one that is yet to get a stack.
        log = find_log(nats_url, data_dir, user="streams", of_stack=data_dir is not None)
        run(lambda: connected(log, wait_s, declared), as_json=as_json)

    command.__doc__ = main.__doc__
    streams_cli.command(name, epilog=EXIT_HELP)(command)


_add_command("plan", plan_streams)
_add_command("apply", apply_streams)
