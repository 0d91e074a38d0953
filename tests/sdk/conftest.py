import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import httpx
import pytest

from sdk import build
from tests.e2e.conftest import start_up, stop_up
from tests.sdk.recorder import Recorder


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


class Page(NamedTuple):
    """Pages in `folder`, with OpenAI's client: their URL at the origin that the gateway lists, and at another one."""

    listed: str
    unlisted: str
    folder: Path


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="session")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    for name in ("index.html", "openai_client.mjs"):
        shutil.copy(Path(__file__).parent / "clients" / name, folder)
    (folder / "openai").symlink_to(build.work() / "node_modules" / "openai")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port
        yield Page(f"http://localhost:{port}/", f"http://127.0.0.1:{port}/", folder)
        server.shutdown()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, page_server: Page) -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CORS_ORIGINS", page_server.listed.removesuffix("/"))
        process, ready = start_up(tmp_path_factory.mktemp("up"), "--agents", "nats")
    yield ready
    if process.poll() is None:
        stop_up(process)


@pytest.fixture(scope="session")
async def recorder(stack: dict[str, Any]) -> AsyncGenerator[Recorder]:
    made = Recorder(stack["url"])
    async with made.serving():
        yield made


async def pace(stack: dict[str, Any], duration_ms: int) -> None:
    script: dict[str, Any] = {"duration_ms": duration_ms, "faults": [], "behaviour": "normal"}
    async with httpx.AsyncClient(base_url=stack["engine_urls"][0]) as engine:
        (await engine.post("/simulator/script", json=script)).raise_for_status()


@pytest.fixture
async def quick_url(stack: dict[str, Any], recorder: Recorder) -> str:
    """The gateway behind the recorder; its engine answers at once."""
    await pace(stack, 0)
    return recorder.url


@pytest.fixture
async def url(stack: dict[str, Any], recorder: Recorder) -> str:
    """The gateway behind the recorder; its engine takes a second."""
    await pace(stack, 1_000)
    return recorder.url


PYRIGHT = Path(sys.executable).with_name("pyright")
