"""Who a replica is, as it tells whoever asks: its process, its place in Serve, and its versions."""

import os
import platform
from importlib.metadata import version
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import RayServeException

REPLICA = f"{os.uname().nodename}-{os.getpid()}"


def identity() -> dict[str, Any]:
    """The beginning of every replica's description.

    Application, deployment and `wanted`, the number of replicas that Serve wants of it, are None outside of Serve.
    """
    place: dict[str, Any] = {"application": None, "deployment": None, "wanted": None}
    try:
        context = serve.get_replica_context()
        place = {
            "application": context.app_name,
            "deployment": context.deployment,
            "wanted": context.world_size,
        }
    except RayServeException:
        # Run by itself, as tests do.
        pass
    return {
        "replica": REPLICA,
        "node": os.uname().nodename,
        **place,
        "versions": {
            "product": version("deliberation-gateway"),
            "ray": ray.__version__,
            "python": platform.python_version(),
        },
    }
