import contextlib
import sys
from collections.abc import Generator
from pathlib import Path

import yaml

from tests.conftest import free_port
from tests.engines import build
from tests.vllm import build as vllm_build
from tests.vllm.server import Engine, EngineFailed, serving

START_S = 240.0
KEY = "sk-tests-only"


@contextlib.contextmanager
def llama_server(log: Path) -> Generator[Engine]:
    """llama-cpp-python's server with the tiny model.

    By default it breaks a stream off when another request comes, so it is started without that.
    """
    port = free_port()
    options = {
        "--model": str(build.model()),
        "--model_alias": "tiny",
        "--host": "127.0.0.1",
        "--port": str(port),
        "--n_ctx": "16384",
        "--n_threads": "1",
        "--interrupt_requests": "false",
        "--api_key": KEY,
    }
    command = [_executable("python"), "-m", "llama_cpp.server", *_words(options)]
    with serving(command, {}, port, log, START_S, ready="/v1/models", key=KEY) as engine:
        yield engine


@contextlib.contextmanager
def gguf_server(log: Path) -> Generator[Engine]:
    """llama.cpp's own server with the tiny model, as `deliberate up --model` starts it."""
    port = free_port()
    options = {"--model": str(vllm_build.gguf()), "--port": str(port), "--slots": "2"}
    command = [sys.executable, "-m", "serve_deployments.gguf", *_words(options)]
    with serving(command, {"VLLM_API_KEY": KEY}, port, log, START_S, key=KEY) as engine:
        yield engine


@contextlib.contextmanager
def litellm_server(log: Path, upstream: Engine) -> Generator[Engine]:
    port = free_port()
    configuration = log.with_suffix(".yaml")
    behind = {"model": f"openai/{upstream.model}", "api_base": f"{upstream.url}/v1", "api_key": KEY}
    configuration.write_text(
        yaml.safe_dump(
            {
                "model_list": [{"model_name": "tiny", "litellm_params": behind}],
                "litellm_settings": {"telemetry": False, "num_retries": 0},
                "general_settings": {"master_key": KEY},
            }
        )
    )
    command = [_executable("litellm"), *_words({"--config": str(configuration), "--host": "127.0.0.1"})]
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_DOCS": "True"}
    with serving([*command, "--port", str(port)], environment, port, log, START_S, ready="/v1/models", key=KEY) as it:
        yield it


def _executable(name: str) -> str:
    found = build.ENVIRONMENT.path / "bin" / name
    if not found.is_file():
        raise EngineFailed(f"{found} is missing: run `make test-engines`, which builds it")
    return str(found)


def _words(options: dict[str, str]) -> list[str]:
    return [word for option in options.items() for word in option]
