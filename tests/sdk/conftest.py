import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from sdk import build
from tests.e2e.conftest import start_up, stop_up


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    if not (build.work() / ".clients.stamp").is_file():
        pytest.fail("run `python sdk/build.py` first, or `make test-sdk`", pytrace=False)


async def output_of(command: Sequence[str | Path], cwd: Path | None = None, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd or build.work(),
        env={**os.environ, "NO_COLOR": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(400):
        printed, errors = (output.decode() for output in await process.communicate())
    assert process.returncode == 0, f"{command}\n{printed}\n{errors}"
    return printed


async def json_of(command: Sequence[str | Path], cwd: Path | None = None) -> Any:
    return json.loads((await output_of(command, cwd)).strip().rpartition("\n")[2])


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    process, ready = start_up(tmp_path_factory.mktemp("up"))
    yield ready
    if process.poll() is None:
        stop_up(process)


async def pace(stack: dict[str, Any], duration_ms: int) -> str:
    script: dict[str, Any] = {"duration_ms": duration_ms, "faults": [], "behaviour": "normal"}
    async with httpx.AsyncClient(base_url=stack["engine_urls"][0]) as engine:
        (await engine.post("/simulator/script", json=script)).raise_for_status()
    return stack["url"]


@pytest.fixture
async def quick_url(stack: dict[str, Any]) -> str:
    return await pace(stack, 0)


@pytest.fixture
async def url(stack: dict[str, Any]) -> str:
    return await pace(stack, 1_000)


PYRIGHT = Path(sys.executable).with_name("pyright")
