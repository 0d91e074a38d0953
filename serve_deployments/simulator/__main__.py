"""`deliberate simulator`, or `python -m serve_deployments.simulator`."""

import asyncio
import logging
import signal
import socket
import sys
from typing import Annotated

import typer
import uvicorn
import uvloop
from pydantic import SecretStr, ValidationError

from serve_deployments.simulator.lacks import LACK_HELP, Lack
from serve_deployments.simulator.script import FAULT_HELP, Script
from serve_deployments.simulator.server.app import Simulator
from serve_deployments.simulator.server.completion import SchedulingPolicy, SimulatorSettings
from serve_deployments.simulator.writer.outputs import Behaviour

_FAULT_HELP = (
    "A fault, KIND[:rate|:every=N|:first=N][:match=REGEX]; repeatable. REGEX is searched in the X-Call-Id header and "
    f"the prompt. Kinds: {FAULT_HELP}"
)


def serve(settings: SimulatorSettings, listener: socket.socket) -> None:
    """Serve on a listening socket until SIGTERM or SIGINT; running requests get 3 s to end."""
    host, port = listener.getsockname()[:2]
    config = uvicorn.Config(
        Simulator(settings),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=False,
        # vLLM's own default, so that clients meet closed idle connections here too.
        timeout_keep_alive=5,
        timeout_graceful_shutdown=3,
    )
    # After a scripted broken stream uvicorn closes the connection, which is wanted, and logs an error, which is not.
    logging.getLogger("uvicorn.error").addFilter(lambda record: "without completing" not in record.getMessage())
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn drains first, and then raises the signal again.
        signal.signal(number, lambda _number, _frame: sys.exit(0))
    place = f"[{host}]" if ":" in host else host
    print(f"simulator ready http://{place}:{port} model={settings.model}", flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(uvicorn.Server(config).serve(sockets=[listener]))


# Long by its options: typer reads each from a parameter.
def simulator(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")] = 8000,
    model: Annotated[str, typer.Option(help="Model name, made to say “simulated”.")] = "simulated-council-8b",
    seed: Annotated[int, typer.Option(help="Seed of everything that is written.")] = 0,
    behaviour: Annotated[Behaviour, typer.Option(help="How the simulated agents work.")] = Behaviour.NORMAL,
    ttft_ms: Annotated[float, typer.Option(min=0, help="Milliseconds to the first token.")] = 0.0,
    per_token_ms: Annotated[float, typer.Option(min=0, help="Milliseconds for each further token.")] = 0.0,
    duration_ms: Annotated[
        float | None, typer.Option(min=0, help="Milliseconds of a whole completion; overrides both above.")
    ] = None,
    jitter: Annotated[float, typer.Option(min=0, max=1, help="Share by which a completion's times vary.")] = 0.0,
    tokens: Annotated[int | None, typer.Option(min=1, help="Fixed length; JSON is filled up with spaces.")] = None,
    chunk_tokens: Annotated[int, typer.Option(min=1, help="Least number of tokens per streamed chunk.")] = 1,
    max_running: Annotated[int | None, typer.Option(min=1, help="Sequences at once; unbounded by default.")] = None,
    scheduling_policy: Annotated[
        SchedulingPolicy, typer.Option(help="Whether requests are served by their priority; fcfs refuses priorities.")
    ] = "priority",
    max_model_len: Annotated[int, typer.Option(min=64, help="Context length in tokens.")] = 32_768,
    controls: Annotated[bool, typer.Option(help="Serve /simulator/calls, which shows prompts, and its script.")] = True,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="VLLM_API_KEY", help="A key that requests under /v1 need; repeatable, as in vLLM."),
    ] = None,
    lacks: Annotated[list[Lack] | None, typer.Option(help=f"What it lacks of vLLM; repeatable: {LACK_HELP}")] = None,
    fault: Annotated[list[str] | None, typer.Option(help=_FAULT_HELP, metavar="FAULT")] = None,
    reply: Annotated[
        str | None, typer.Option(help="Answer each completion with this reply of docs/engines.md, byte for byte.")
    ] = None,
) -> None:
    """An OpenAI-compatible stand-in for vLLM without weights: seeded text, valid JSON, scripted latency and faults.

    GET /simulator/calls reports what it served; POST /simulator/script changes behaviour, latency and faults.
    """
    try:
        script = Script(
            behaviour=behaviour,
            ttft_ms=ttft_ms,
            per_token_ms=per_token_ms,
            duration_ms=duration_ms,
            jitter=jitter,
            tokens=tokens,
            chunk_tokens=chunk_tokens,
            faults=tuple(fault or ()),
            lacks=tuple(lacks or ()),
            reply=reply,
            api_keys=tuple(map(SecretStr, api_key or ())),
        )
    except ValidationError as exc:
        raise typer.BadParameter(exc.errors()[0]["msg"]) from exc
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=2_048)
    except OSError as exc:
        typer.echo(f"cannot listen on {host}:{port}: {exc}", err=True)
        raise typer.Exit(1) from exc
    serve(
        SimulatorSettings(
            model=model if "simulated" in model else f"simulated-{model}",
            seed=seed,
            max_model_len=max_model_len,
            controls=controls,
            running_max=max_running,
            scheduling_policy=scheduling_policy,
            script=script,
        ),
        listener,
    )


if __name__ == "__main__":
    program = typer.Typer(add_completion=False)
    program.command()(simulator)
    program(prog_name="deliberate simulator")
