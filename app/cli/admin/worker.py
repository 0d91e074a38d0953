"""`deliberate worker`: replaces this process by a worker, which makes the calls that come over NATS."""

import os
import sys
from typing import NoReturn

import typer


def worker(context: typer.Context) -> NoReturn:
    """Run a worker without Ray: `--role DEV --concurrency 16`; --help shows its arguments."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "serve_deployments.agent", *context.args])
