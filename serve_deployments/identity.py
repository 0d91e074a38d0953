"""The identity of a replica: its process and its versions."""

import os
import platform
from importlib.metadata import version
from typing import Any

REPLICA = f"{os.uname().nodename}-{os.getpid()}"


def identity() -> dict[str, Any]:
    """The first fields of every replica's description; the place in Serve is None outside of it."""
    return {
        "replica": REPLICA,
        "node": os.uname().nodename,
        "application": None,
        "deployment": None,
        "wanted": None,
        "versions": {
            "product": version("deliberation-gateway"),
            "ray": None,
            "python": platform.python_version(),
        },
    }
