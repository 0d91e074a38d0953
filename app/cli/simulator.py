"""`deliberate simulator`: the engine without weights, in this process's place."""

import os
import sys
from typing import NoReturn

import typer


def simulator(context: typer.Context) -> NoReturn:
    """Run the simulator, an OpenAI-compatible engine without weights. All arguments are passed on: see --help."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "serve_deployments.simulator", *context.args])
