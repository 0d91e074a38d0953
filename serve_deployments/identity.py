"""The identity of a replica: its process and its versions."""

import os
from typing import Any

from app.observability.process import STARTED_AT, VERSIONS

REPLICA = f"{os.uname().nodename}-{os.getpid()}"


def identity() -> dict[str, Any]:
    """The first fields of every replica's description; the place in Serve is None outside of it."""
    return {
        "replica": REPLICA,
        "node": os.uname().nodename,
        "started_at": STARTED_AT,
        "application": None,
        "deployment": None,
        "wanted": None,
        "versions": dict(VERSIONS),
    }
