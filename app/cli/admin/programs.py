"""`deliberate simulator | worker`: replaces this process by one of `serve_deployments`, with the same arguments."""

import os
import sys
from typing import NoReturn

import typer


def simulator(context: typer.Context) -> NoReturn:
    """Run the simulator, an OpenAI-compatible engine without weights; --help shows its arguments."""
    _become("serve_deployments.simulator", context.args)


def worker(context: typer.Context) -> NoReturn:
    """Run a worker without Ray: `--role DEV --concurrency 16`; --help shows its arguments."""
    _become("serve_deployments.agent", context.args)


def _become(module: str, arguments: list[str]) -> NoReturn:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
