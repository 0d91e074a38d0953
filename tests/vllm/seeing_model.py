"""Add a model that sees to the environment of ``build.py``: random weights, a minute, 60 MB of disk.

    python -m tests.vllm.seeing_model

vLLM's models that see import torchvision. PyPI's has operators for CUDA, which nothing here calls and no CPU build of
PyTorch loads; what describes them is left out, and stands in a folder that this model's servers alone import.
"""

import shutil
from pathlib import Path

from tests.vllm import build

TORCHVISION = "torchvision==0.28.0"
SOURCES = ("vocabulary.py", "make_model.py", "make_seeing_model.py")


def model() -> Path:
    return build.venv() / "seeing-model"


def packages() -> Path:
    return build.venv() / "seeing-packages"


def make() -> None:
    for made in (model(), packages()):
        shutil.rmtree(made, ignore_errors=True)
    build.ENVIRONMENT.pip("install", "--target", packages(), "--no-deps", "--only-binary=:all:", TORCHVISION)
    (packages() / "torchvision" / "_meta_registrations.py").write_text("")
    build.ENVIRONMENT.write("tests.vllm.make_seeing_model", model(), str(packages()))


def main() -> None:
    made_of = b"".join((build.HERE / name).read_bytes() for name in SOURCES) + TORCHVISION.encode()
    build.add("seeing-model", made_of, make)
    print(f"the model that sees is ready in {model()}")


if __name__ == "__main__":
    build.run(main)
