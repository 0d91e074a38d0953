"""nats-server: its configuration with users, the health check of its store, and the declaration of the streams.

It has no monitoring port, because that would answer any process. The user `monitor` asks for its health over its own
protocol. Two observations on nats-server 2.15.1 explain the store's bound and check. After a write fails for lack of
space, the stream refuses writes until the server restarts, even once there is room. Reads go on, and the health check
reports the reason. Without an explicit bound a server takes three quarters of the space that is free at its start.
Started on a full disk, it refuses every write while it reports health.
"""

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from app.cli.exits import CommandError, Exit
from app.cli.render.progress import PartGiven, ProgressReport
from app.cli.stack.health_checks import nats_reply
from app.cli.stack.layout import LOOPBACK, Layout
from app.cli.stack.processes import write_private
from app.cli.stack.restart_policy import HealthStatus, Healthy, Unhealthy, Unresponsive
from app.cli.stack.supervisor import HealthCheck
from app.deliberation.errors import JournalUnavailable, StreamsDiffer
from app.log.stream_settings import KEYS_STREAM, StreamSettings

_STREAMS_WITHIN_S = 10.0
_NATS_SLOW_AFTER_S = 2.0
FREE_BYTES_MIN = 16 * 1024 * 1024
_HEALTH_SUBJECT = "$SYS.REQ.SERVER.PING.HEALTHZ"
_MONITOR = (
    "{user: monitor, password: $MONITOR_PASSWORD, permissions: "
    f'{{publish: ["{_HEALTH_SUBJECT}"], subscribe: ["_INBOX.>"]}}}}'
)


def store_bytes_max(store: Path) -> int:
    """The bound of JetStream's store: three quarters of the file system, independent of the space in use."""
    return shutil.disk_usage(store).total // 4 * 3


def write_config(layout: Layout, store: Path) -> Path:
    """Write the server's configuration, which holds the users' passwords; returns its path."""
    users = Path(__file__).with_name("users.conf").read_text(encoding="utf-8")
    if (test_user := layout.options.nats_test_user) is not None:
        users = users.replace(
            "users: [", f"users: [\n    {{user: {test_user}, password: ${test_user.upper()}_PASSWORD}}", 1
        )
    lines = [
        *(f'{user.upper()}_PASSWORD: "{password}"' for user, password in layout.nats_passwords.items()),
        f"listen: {LOOPBACK}:{layout.ports['nats']}",
        "max_payload: 4MB",
        f"jetstream {{ store_dir: {json.dumps(str(store))}, max_file_store: {store_bytes_max(store)} }}",
        f"accounts {{ $SYS {{ users: [{_MONITOR}] }} }}",
        users,
    ]
    config = layout.data_dir / "nats.conf"
    write_private(config, "\n".join(lines))
    return config


def jetstream_works(monitor_url: str, store: Path) -> HealthCheck:
    """Checks JetStream through nats-server's own health check; a restart helps while the disk has free space."""

    async def check() -> HealthStatus:
        reply = await nats_reply(monitor_url, _HEALTH_SUBJECT)
        return Unresponsive() if reply is None else store_status(reply, shutil.disk_usage(store).free)

    return check


def store_status(reply: bytes, free_bytes: int) -> Healthy | Unhealthy:
    """The status that the server's reply reports, with this much free disk space."""
    try:
        found = json.loads(reply)["data"]
        if found["status"] == "ok":
            return Healthy()
        reason = str(found["error"])
    except (ValueError, KeyError, TypeError):
        reason = "JetStream is not healthy"
    restart_helps = free_bytes >= FREE_BYTES_MIN
    return Unhealthy(reason if restart_helps else f"{reason}; it is restarted once the disk has room", restart_helps)


async def declare_streams(nats_url: str, settings: StreamSettings, *, on_wait: Callable[[], None] | None = None) -> str:
    """Declare the streams, idempotently; raises JournalUnavailable or StreamsDiffer. Returns the id of the log.

    With `on_wait` it waits for the server without a bound, and calls `on_wait` when the server is slow.
    """
    # Imported here, while the other children are starting.
    from app.log.journal import JetStreamJournal
    from app.log.streams import apply

    journal = JetStreamJournal(nats_url, name="deliberate up")
    opening = asyncio.create_task(journal.open())
    try:
        await asyncio.wait({opening}, timeout=_NATS_SLOW_AFTER_S if on_wait else _STREAMS_WITHIN_S)
        if not opening.done():
            if on_wait is None:
                raise JournalUnavailable(journal.refusal or f"no NATS server answered at {journal.server}")
            on_wait()
        await opening
        deadline_s = time.monotonic() + _STREAMS_WITHIN_S
        while True:
            try:
                await apply(journal, settings)
                return (await journal.state_of(KEYS_STREAM)).epoch
            except JournalUnavailable:
                # JetStream is ready later than the server when its store is large or it elects a leader.
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(0.1)
    finally:
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await journal.close()


async def declare_on_own(layout: Layout) -> None:
    """Declare the streams on the stack's own server; raises JournalUnavailable or StreamsDiffer."""
    layout.log["id"] = await declare_streams(layout.nats_url_of("streams"), layout.streams)


async def declare_on_external(layout: Layout, report: ProgressReport) -> None:
    """Wait for the given server and declare the streams there; raises CommandError."""
    url = layout.nats_url
    try:
        layout.log["id"] = await declare_streams(
            layout.nats_url_of("streams"),
            layout.streams,
            on_wait=lambda: report(PartGiven("nats", url, answers=False)),
        )
    except JournalUnavailable as error:
        remedy = "check that it has JetStream and accepts the credentials; without --nats-url one is started"
        raise CommandError(Exit.UNREACHABLE, error.code, str(error), remedy=remedy) from error
    except StreamsDiffer as error:
        remedy = "`deliberate streams plan` lists each difference; nothing was changed"
        raise CommandError(Exit.FAILED, error.code, str(error), remedy=remedy) from error
    report(PartGiven("nats", url, answers=True))
