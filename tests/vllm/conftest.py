"""Engines for the tests that hold the simulator and a real vLLM to one contract.

What needs a real vLLM is marked `vllm`: `-m "not vllm"` deselects it, and pytest says how many tests that were.
"""

from collections.abc import Iterator

import httpx
import pytest

from tests.vllm.protocol import Chat
from tests.vllm.server import Engine, simulator_server


@pytest.fixture(scope="session")
def simulator_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with simulator_server(tmp_path_factory.mktemp("simulator") / "simulator.log", "--per-token-ms", "3") as engine:
        yield engine


@pytest.fixture(scope="session", params=["simulator", pytest.param("vllm", marks=pytest.mark.vllm)])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(f"{request.param}_engine")
    return found


@pytest.fixture
def chat(engine: Engine) -> Iterator[Chat]:
    with httpx.Client(base_url=engine.url, timeout=60) as client:
        yield Chat(client, engine.model)
