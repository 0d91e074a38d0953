import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.conftest import free_port
from tests.e2e.conftest import Stack

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[3] / "examples"
TASK = 'Name "three" colours.\nOne line each.'


async def run(*command: str | Path) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    async with asyncio.timeout(60):
        printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()
    return printed.decode()


@asynccontextmanager
async def proxied(url: str) -> AsyncGenerator[str]:
    port = free_port()
    command = (sys.executable, EXAMPLES / "browser.py", "--url", url, "--port", str(port))
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def test_the_shell_script_shows_a_council_and_its_verdict(stack: Stack) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    printed = await run(EXAMPLES / "curl.sh", TASK, stack.url)
    assert f"accepted: {stack.url}/deliberations/" in printed
    assert printed.index("deliberation.accepted") < printed.index("deliberation.completed")
    assert "call.delta" not in printed
    assert re.search('"status": ?"completed"', printed) and "colours" in printed


async def test_the_python_client_prints_the_ranking_and_the_winning_text(stack: Stack) -> None:
    printed = await run(sys.executable, EXAMPLES / "python_client.py", TASK, "--url", stack.url)
    assert "propose: 3 calls" in printed and "\ncompleted\n" in printed
    assert re.search(r"^1\. dev-00\d  \d", printed, re.MULTILINE)


async def test_the_page_and_the_stream_come_from_one_origin(stack: Stack) -> None:
    async with proxied(stack.url) as origin, httpx.AsyncClient(base_url=origin, timeout=60) as browser:
        async with asyncio.timeout(20):
            while True:
                try:
                    page = await browser.get("/")
                    break
                except httpx.ConnectError:
                    await asyncio.sleep(0.05)
        assert "EventSource" in page.text
        accepted = await browser.post("/deliberations", json={"task": TASK, "strategy": "independent"})
        events = await browser.get(
            f"{accepted.headers['Location']}/events?after=0", headers={"Accept": "text/event-stream"}
        )
        assert "event: deliberation.completed" in events.text
