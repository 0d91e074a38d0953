"""`deliberate simulator`: replaces this process by the engine without weights."""

import os
import sys
from typing import NoReturn

import typer


def simulator(context: typer.Context) -> NoReturn:
    """Run the simulator, an OpenAI-compatible engine without weights; --help shows its arguments."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "serve_deployments.simulator", *context.args])
