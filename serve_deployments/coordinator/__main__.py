"""`python -m serve_deployments.coordinator`: reads the environment and coordinates until it receives a signal."""

from app.log.signature import LogSigner
from app.observability.process import run_process
from serve_deployments.arguments import CoordinatorArgs
from serve_deployments.coordinator.service import roles_of, serve


def _args() -> CoordinatorArgs:
    args = CoordinatorArgs()
    LogSigner.of_environment()
    roles_of(args)
    return args


if __name__ == "__main__":
    run_process(_args, serve)
