"""The store of the log's server: how much it may take of its disk, and whether it still writes.

Seen on nats-server 2.15.1: after a write that failed for lack of space, a stream takes no further write until the
server is restarted, whatever room there is by then; its publishers get no answer, reads go on, and /healthz says 503
with the reason. And a server without an explicit bound takes three quarters of what is free when it starts: one that
starts on a full disk refuses every write from then on, and its /healthz says that all is well.
"""

import json
import shutil
from pathlib import Path

from app.cli.stack.probes import LifeProbe, answer_of
from app.cli.stack.restarts import Broken, Sign, Silent, Well
from app.cli.stack.supervisor import Life

ROOM_BYTES_MIN = 16 * 1024 * 1024


def bound_bytes(store: Path) -> int:
    """What JetStream may take: three quarters of the file system, however full that is now."""
    return shutil.disk_usage(store).total // 4 * 3


def stores(health_url: str, store: Path) -> LifeProbe:
    """Asks nats-server's monitoring whether JetStream works; what is broken is curable while the disk has room."""

    async def probe(life: Life) -> Sign:
        found = await answer_of(health_url)
        if found is None:
            return Silent()
        status, body = found
        return Well() if status == 200 else complaint_of(body, shutil.disk_usage(store).free)

    return probe


def complaint_of(body: bytes, free_bytes: int) -> Broken:
    """What /healthz said beside a status that is not 200, and whether a restart helps with so much room."""
    try:
        said = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        said = "JetStream is not healthy"
    curable = free_bytes >= ROOM_BYTES_MIN
    return Broken(said if curable else f"{said}; it is restarted once the disk has room", curable)
