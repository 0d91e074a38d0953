"""`deliberate worker`, or `python -m serve_deployments.agent`: a worker, which runs until it receives a signal."""

import argparse

from app.log.signature import LogSigner
from app.observability.process import run_process
from serve_deployments.agent.worker import roles_of, serve
from serve_deployments.arguments import WorkerArgs


def _args() -> WorkerArgs:
    parser = argparse.ArgumentParser(prog="deliberate worker", description="Make the calls that come over NATS.")
    parser.add_argument(
        "--role", action="append", dest="worker_roles", help="a role to serve; repeatable; default: all over NATS"
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        dest="worker_concurrency",
        help="calls of each role in flight to engines; default: the role's",
    )
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    args = WorkerArgs.model_validate(given)
    LogSigner.of_environment()
    roles_of(args)
    return args


if __name__ == "__main__":
    run_process(_args, serve)
