"""`deliberate streams plan | apply`: declares the streams of the log; no service does so while serving."""

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated

import structlog
import typer
from rich.console import Console
from rich.text import Text

from app.cli.exits import EXIT_HELP, CommandError, Exit, FieldFault, print_json, run
from app.cli.options import DATA_DIR, JsonOption, checked_nats_url, default_nats_url
from app.deliberation.errors import InvalidRequest, JournalUnavailable, StreamsDiffer
from app.log import stream_settings as bounds
from app.log.journal import JetStreamJournal
from app.log.seal import LOG_KEY_NAME, LOG_KEY_VARIABLE, LogSeal
from app.log.stream_settings import StreamSettings
from app.log.streams import apply, plan

streams_cli = typer.Typer(no_args_is_help=True, help="Declare the streams of the log.", epilog=EXIT_HELP)


NatsOption = Annotated[
    str | None,
    typer.Option(
        "--nats-url",
        envvar="NATS_URL",
        metavar="URL",
        callback=checked_nats_url,
        show_default="the stack in .deliberate, else nats://127.0.0.1:4222",
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
WaitOption = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", min=0, help="Wait for the server up to this long.")
]


def _seal_of(nats_url: str) -> LogSeal:
    """The seal of LOG_KEY_FILE; without it, that of the stack in `.deliberate` if this is its server."""
    if not os.environ.get(LOG_KEY_VARIABLE):
        with suppress(OSError, ValueError):
            url = json.loads((DATA_DIR / "stack.json").read_bytes()).get("nats_url")
            if nats_url == url or nats_url.startswith(DATA_DIR.resolve().as_uri()):
                return LogSeal.of_file(DATA_DIR / LOG_KEY_NAME)
    try:
        return LogSeal.of_environment()
    except InvalidRequest as exc:
        remedy = "give the file that the gateway has"
        raise CommandError(Exit.USAGE, "invalid_setting", str(exc), remedy=remedy) from exc


async def connected(
    nats_url: str | None, wait_s: float, work: Callable[[JetStreamJournal], Awaitable[Exit]], *, user: str = "streams"
) -> Exit:
    """Run `work` with a connection to the log; raises CommandError when no server answers within `wait_s` seconds.

    Without a URL it connects as `user` to the stack that runs here.
    """
    # Otherwise every attempt to connect would be logged; a failure is reported once, at the end.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    url = nats_url or default_nats_url(user)
    journal = JetStreamJournal(url, name=f"deliberate {user}", seal=_seal_of(url))
    remedy = "give it by --nats-url or NATS_URL; `deliberate up` starts one, `deliberate streams apply` prepares it"
    try:
        async with asyncio.timeout(wait_s):
            await journal.open()
        return await work(journal)
    except (TimeoutError, JournalUnavailable) as exc:
        detail = str(exc) or journal.refusal or f"no NATS server with JetStream answered within {wait_s:g} s"
        raise CommandError(Exit.UNREACHABLE, "journal_unavailable", detail, remedy=remedy) from exc
    finally:
        await journal.close()


def _print_lines(lines: list[str], style: str) -> None:
    console = Console(highlight=False)
    for line in lines:
        console.print(Text(line, style), soft_wrap=True)


@streams_cli.command("plan", epilog=EXIT_HELP)
def plan_streams(
    nats_url: NatsOption = None,
    as_json: JsonOption = False,
    retention_s: RetentionOption = bounds.DAY_S,
    replicas: ReplicasOption = 1,
    ack_wait_s: AckWaitOption = bounds.ACK_WAIT_S_MIN,
    wait_s: WaitOption = 10.0,
) -> None:
    """List missing and different streams without a change; exits with 1 if there are any."""

    async def work(journal: JetStreamJournal) -> Exit:
        missing, different = await plan(journal, StreamSettings(retention_s, replicas, ack_wait_s))
        if as_json:
            print_json({"missing": missing, "different": different})
        else:
            _print_lines([f"missing: {name}" for name in missing], "yellow")
            _print_lines([f"differs: {line}" for line in different], "red")
            _print_lines([] if missing or different else ["all streams are as declared"], "green")
        return Exit.FAILED if missing or different else Exit.SUCCESS

    run(lambda: connected(nats_url, wait_s, work), as_json=as_json)


@streams_cli.command("apply", epilog=EXIT_HELP)
def apply_streams(
    nats_url: NatsOption = None,
    as_json: JsonOption = False,
    retention_s: RetentionOption = bounds.DAY_S,
    replicas: ReplicasOption = 1,
    ack_wait_s: AckWaitOption = bounds.ACK_WAIT_S_MIN,
    wait_s: WaitOption = 10.0,
) -> None:
    """Create missing streams. If a stream differs, change nothing, list the differences and exit with 1."""

    async def work(journal: JetStreamJournal) -> Exit:
        try:
            created = await apply(journal, StreamSettings(retention_s, replicas, ack_wait_s))
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

    run(lambda: connected(nats_url, wait_s, work), as_json=as_json)
