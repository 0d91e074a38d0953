"""Entry point of `python -m serve_deployments.simulator`."""

from serve_deployments.simulator.cli import main

if __name__ == "__main__":
    main()
