"""The identity of a replica: its process, its deployment in Serve, and its versions."""

import os
import platform
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import RayServeException

REPLICA = f"{os.uname().nodename}-{os.getpid()}"


def identity() -> dict[str, Any]:
    """The first fields of every replica's description.

    Application, deployment and `wanted`, the number of replicas that Serve wants of it, are None outside of Serve.
    """
    application = deployment = wanted = None
    # Tests run replicas outside of Serve.
    with suppress(RayServeException):
        context = serve.get_replica_context()
        application, deployment, wanted = context.app_name, context.deployment, context.world_size
    return {
        "replica": REPLICA,
        "node": os.uname().nodename,
        "application": application,
        "deployment": deployment,
        "wanted": wanted,
        "versions": {
            "product": version("deliberation-gateway"),
            "ray": ray.__version__,
            "python": platform.python_version(),
        },
    }
