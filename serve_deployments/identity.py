"""The identity of a replica: its process and its versions."""

import os
import platform
from importlib.metadata import version
from typing import Any

from app.observability.process import STARTED_AT

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
        "versions": {
            "product": version("deliberation-gateway"),
            "ray": None,
            "python": platform.python_version(),
        },
    }
