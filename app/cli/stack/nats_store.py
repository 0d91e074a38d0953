"""The JetStream store of nats-server: its size bound and its health check.

Two observations on nats-server 2.15.1 explain both. After a write fails for lack of space, the stream accepts no write
until the server restarts, even once there is room: publishers get no answer, reads go on, /healthz returns 503 with the
reason. A server without an explicit bound takes three quarters of the space that is free at its start: started on a
full disk, it refuses every write while /healthz returns 200.
"""

import json
import shutil
from pathlib import Path

from app.cli.stack.health_checks import response_of
from app.cli.stack.restart_policy import HealthStatus, Healthy, Unhealthy, Unresponsive
from app.cli.stack.supervisor import HealthCheck

FREE_BYTES_MIN = 16 * 1024 * 1024


def store_bytes_max(store: Path) -> int:
    """The bound of JetStream's store: three quarters of the file system, independent of the space in use."""
    return shutil.disk_usage(store).total // 4 * 3


def jetstream_works(health_url: str, store: Path) -> HealthCheck:
    """Checks JetStream through nats-server's /healthz; a restart helps while the disk has free space."""

    async def check() -> HealthStatus:
        found = await response_of(health_url)
        if found is None:
            return Unresponsive()
        status, body = found
        return Healthy() if status == 200 else unhealthy_store(body, shutil.disk_usage(store).free)

    return check


def unhealthy_store(body: bytes, free_bytes: int) -> Unhealthy:
    """The status that the body of a failed /healthz reports, with this much free disk space."""
    try:
        reason = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        reason = "JetStream is not healthy"
    restart_helps = free_bytes >= FREE_BYTES_MIN
    return Unhealthy(reason if restart_helps else f"{reason}; it is restarted once the disk has room", restart_helps)
