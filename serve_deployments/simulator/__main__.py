"""Entry point of `python -m serve_deployments.simulator`."""

import typer

from serve_deployments.simulator.cli import simulator

if __name__ == "__main__":
    typer.run(simulator)
