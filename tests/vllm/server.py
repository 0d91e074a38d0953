import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.conftest import free_port
from tests.vllm import build, real_model, seeing_model

VLLM_START_S = 240.0
# Prompts share whole blocks, and a block on the CPU has 128 tokens by default.
BLOCK_TOKENS = 32
SIMULATOR_START_S = 30.0
STOP_S = 20.0
REAL_OPTIONS = {
    # A base model writes white space without end where the grammar lets it.
    "--structured-outputs-config": '{"backend": "guidance", "disable_any_whitespace": true}',
    # vLLM 0.32 on the CPU ends with "CPU Generator does not use offset" when it reads a prompt with a seed in chunks.
    "--max-num-batched-tokens": "16384",
}
_LOG_TAIL_CHARS = 4_000


class EngineFailed(Exception):
    """An engine could not be started; the text ends with its log."""


@dataclass(frozen=True, slots=True)
class Engine:
    url: str
    model: str
    log: Path
    start_s: float


@contextlib.contextmanager
def vllm_server(log: Path, *, real: bool = False, seeing: bool = False, parser: str = "") -> Generator[Engine]:
    """A vLLM that serves the tiny model, the real one, or the one that sees; all of its processes are gone afterwards.

    VLLM_TEST_URL names one that already runs: then none is started or stopped. With a `parser` it reads tool calls.
    """
    if url := os.environ.get("VLLM_TEST_URL"):
        yield Engine(url=url, model=_served_model(url), log=log, start_s=0.0)
        return
    command = build.venv() / "bin" / "vllm"
    if not command.is_file():
        raise EngineFailed(f"{command} is missing: run `make test-vllm`, which builds it")
    if real and not real_model.model().is_dir():
        raise EngineFailed(f"{real_model.model()} is missing: run `python -m tests.vllm.real_model`, which builds it")
    if seeing and not seeing_model.model().is_dir():
        raise EngineFailed(f"{seeing_model.model()} is missing: run `make test-sight`, which builds it")
    port = free_port()
    options = {
        "--served-model-name": "gemma" if real else "seeing" if seeing else "tiny",
        "--host": "127.0.0.1",
        "--port": str(port),
        "--dtype": "bfloat16" if real else "float32",
        "--max-model-len": "16384",
        "--block-size": str(BLOCK_TOKENS),
    }
    if real:
        options |= REAL_OPTIONS
    flags = ["--enforce-eager", "--enable-prompt-tokens-details", "--enable-server-load-tracking"]
    if real:
        # Of layers with a window vLLM keeps the last window alone: a prompt that parts earlier would find nothing.
        flags += ["--no-enable-chunked-prefill", "--disable-hybrid-kv-cache-manager"]
    if parser:
        flags += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "8" if real else "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else its worker has one core to itself, whatever else runs there
        "OMP_NUM_THREADS": "1",
    }
    arguments = [word for option in options.items() for word in option] + flags
    if seeing:
        environment["PYTHONPATH"] = str(seeing_model.packages())
    model = str(real_model.model() if real else seeing_model.model() if seeing else build.model())
    with serving([str(command), "serve", model, *arguments], environment, port, log, VLLM_START_S) as it:
        yield it


@contextlib.contextmanager
def simulator_server(log: Path, *options: str) -> Generator[Engine]:
    port = free_port()
    command = [sys.executable, "-m", "serve_deployments.simulator", "--port", str(port), *options]
    with serving(command, {}, port, log, SIMULATOR_START_S) as it:
        yield it


@contextlib.contextmanager
def serving(
    command: Sequence[str],
    environment: Mapping[str, str],
    port: int,
    log: Path,
    within_s: float,
    ready: str = "/health",
    key: str = "",
) -> Generator[Engine]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"http://127.0.0.1:{port}"
    started = time.monotonic()
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _await_ready(process, url + ready, log, started + within_s, headers)
        yield Engine(url=url, model=_served_model(url, headers), log=log, start_s=time.monotonic() - started)
    finally:
        _stop(process)


def _await_ready(
    process: subprocess.Popen[bytes], url: str, log: Path, until: float, headers: Mapping[str, str]
) -> None:
    while True:
        if process.poll() is not None:
            raise EngineFailed(f"{url} ended with status {process.returncode}:\n{_tail(log)}")
        if time.monotonic() > until:
            raise EngineFailed(f"{url} was not ready in time:\n{_tail(log)}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, headers=headers, timeout=2).status_code == 200:
                return
        time.sleep(0.1)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _served_model(url: str, headers: Mapping[str, str] | None = None) -> str:
    listed = httpx.get(f"{url}/v1/models", headers=headers, timeout=10).raise_for_status().json()
    return str(listed["data"][0]["id"])


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-_LOG_TAIL_CHARS:]
