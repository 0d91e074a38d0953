"""`deliberate worker`, or `python -m serve_deployments.agent`: a worker, which runs until it receives a signal."""

import argparse

from app.log.signature import LogSigner
from app.observability.process import run_process
from serve_deployments.agent.worker import roles_of, serve
from serve_deployments.arguments import WorkerArgs


def _args() -> WorkerArgs:
    parser = argparse.ArgumentParser(prog="deliberate worker", description="Make the calls that come over NATS.")
    parser.add_argument(
        "--role", action="append", default=[], dest="roles", help="a role to serve; repeatable; default: all over NATS"
    )
    parser.add_argument("--concurrency", type=int, help="calls of each role in flight to engines; default: the role's")
    args = WorkerArgs.model_validate(vars(parser.parse_args()))
    LogSigner.of_environment()
    roles_of(args)
    return args


if __name__ == "__main__":
    run_process(_args, serve)
