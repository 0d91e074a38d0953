"""`deliberate worker`, or `python -m serve_deployments.agent`: a worker, which runs until it receives a signal."""

from typing import Annotated

import typer

from app.log.signature import LogSigner
from app.observability.process import run_process
from serve_deployments.agent.worker import roles_of, serve
from serve_deployments.arguments import WorkerArgs


def worker(
    *,
    role: Annotated[
        list[str] | None, typer.Option(help="A role to serve; repeatable.", show_default="all over NATS")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Calls of each role in flight to engines.", show_default="the role's")
    ] = None,
) -> None:
    """Make the calls that come over NATS, until SIGTERM or SIGINT."""
    options = {"worker_roles": role, "worker_concurrency": concurrency}

    def args() -> WorkerArgs:
        checked = WorkerArgs.model_validate({name: value for name, value in options.items() if value is not None})
        LogSigner.of_environment()
        roles_of(checked)
        return checked

    run_process(args, serve)


if __name__ == "__main__":
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(worker)
    program(prog_name="deliberate worker")
