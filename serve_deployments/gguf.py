"""`python -m serve_deployments.gguf`: llama.cpp's server for one model, the engine of a stack on a laptop.

Its slots share the model's weights, and each keeps the prefix that it computed last. On few cores one slot is fastest:
calls after one another find the prefix, and calls at once compute it each.
"""

import os
import signal
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from app.deliberation.roles import DEFAULT_KEY_VARIABLE

CORES_PER_SLOT = 4
SLOTS_MAX = 4
CONTEXT_TOKENS = 16_384


def serve(model: Path, port: int, slots: int, context: int) -> None:
    """Serve the model on loopback until SIGTERM or SIGINT. The key, where there is one, is that of vLLM's variable."""
    stops = {signal.SIGTERM, signal.SIGINT}
    # Before the server's threads begin, which then leave the signals to this one.
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    llama_cpp: Any = import_module("xllamacpp")
    params = llama_cpp.CommonParams()
    params.model.path = str(model)
    # Clients see it in lists of models and in every answer.
    params.model_alias = {model.stem}
    params.hostnames, params.port, params.ui = ["127.0.0.1"], port, False
    # No page that a browser shows may ask it.
    params.cors_origins = ""
    params.api_keys = [key] if (key := os.environ.get(DEFAULT_KEY_VARIABLE)) else []
    params.n_parallel, params.n_ctx = slots, slots * context
    threads = max(1, len(os.sched_getaffinity(0)))
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = llama_cpp.Server(params)
    print(f"llama.cpp ready {server.listening_address} model={model.stem} slots={slots}", flush=True)
    signal.sigwait(stops)
    # Its threads would finish the answers that are under way.
    os._exit(0)


def main(
    model: Annotated[Path, typer.Option(help="A model in GGUF.", exists=True, dir_okay=False)],
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port on loopback.")],
    slots: Annotated[int | None, typer.Option(min=1, help="Calls at once; one for each four cores if unset.")] = None,
    context: Annotated[int, typer.Option(min=512, help="Tokens of context of each call.")] = CONTEXT_TOKENS,
) -> None:
    """Serve a model by llama.cpp, with OpenAI's API."""
    cores = len(os.sched_getaffinity(0))
    serve(model, port, slots or max(1, min(SLOTS_MAX, cores // CORES_PER_SLOT)), context)


if __name__ == "__main__":
    typer.run(main)
