"""Make the environment of the engine tests: llama.cpp's server and LiteLLM's proxy, and a tiny model to serve.

    python -m tests.engines.build

It stands in `.venv-engines` at the root of the checkout, or where ENGINES_VENV says. llama.cpp is compiled, which needs
a C++ compiler, and takes minutes on two cores. A build is stamped, and a second run only compares.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.environments import ROOT, Environment

HERE = Path(__file__).resolve().parent
LOCK, SOURCE_LOCK = HERE / "requirements.lock", HERE / "source.lock"
ENVIRONMENT = Environment(Path(os.environ.get("ENGINES_VENV") or ROOT / ".venv-engines").absolute())
# Not for this CPU alone, so that a cached build runs elsewhere; without what the server does not need.
CMAKE_ARGS = "-DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DLLAVA_BUILD=OFF -DLLAMA_CURL=OFF"


def model() -> Path:
    return ENVIRONMENT.path / "tiny.gguf"


def make_environment() -> None:
    ENVIRONMENT.create()
    ENVIRONMENT.pip("install", "--no-deps", "--only-binary=:all:", "--require-hashes", "-r", LOCK)
    os.environ |= {"CMAKE_ARGS": CMAKE_ARGS, "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1)}
    os.environ["PATH"] = f"{ENVIRONMENT.path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    ENVIRONMENT.pip("install", "--no-deps", "--no-build-isolation", "--require-hashes", "-r", SOURCE_LOCK)


def make_model() -> None:
    ENVIRONMENT.write("tests.engines.make_gguf", model())


def main() -> None:
    if shutil.which("c++") is None:
        sys.exit("build.py: a C++ compiler is missing; as root: apt-get install --no-install-recommends g++")
    made_of = f"{CMAKE_ARGS} {sys.version} {LOCK.read_text()} {SOURCE_LOCK.read_text()}".encode()
    ENVIRONMENT.once("environment", made_of, make_environment)
    sources = (HERE / "make_gguf.py").read_bytes() + (ROOT / "tests/vllm/vocabulary.py").read_bytes()
    ENVIRONMENT.once("model", ENVIRONMENT.stamp("environment").read_bytes() + sources, make_model)
    print(f"llama.cpp's server, LiteLLM's proxy and their model are ready in {ENVIRONMENT.path}")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as exc:
        sys.exit(f"build.py: {exc}")
