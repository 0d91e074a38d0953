"""A real Redis or ValKey server of the tests' own, in memory, and the example service over it."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import redis.asyncio as redis
from redis.exceptions import ConnectionError as NotYet

from app.deliberation.announcements import Announcement, announcement
from app.deliberation.facts import Completed, StrategyRef, Verdict
from tests.conftest import free_port

MISSING = "Redis is missing; as root: apt-get install --no-install-recommends redis-server"
SERVICE = Path(__file__).parents[3] / "examples" / "context_service" / "service.py"


def decided(
    id: str, *, tenant: str = "default", story_id: str = "story-1", content: str = "A link.", minute: int = 0
) -> Announcement:
    verdict = Verdict(
        winner="dev-001", content=content, ranking=(), margin=None, tie=False, dissent=(), agreement=None,
        strategy=StrategyRef(name="council", version=1), calls=1,
    )  # fmt: skip
    end = Completed(deliberation_id=id, ts=datetime(2026, 1, 1, 0, minute, tzinfo=UTC), verdict=verdict)
    about = {"task": f"Task {id}", "metadata": {"story_id": story_id}, "roles": ("DEV",)}
    return announcement(tenant, end, None).model_copy(update=about)


@asynccontextmanager
async def redis_server(directory: Path, password: str = "") -> AsyncGenerator[str]:
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    assert program is not None, MISSING
    port = free_port()
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory))
    options += ("--requirepass", password)
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    url = f"redis://127.0.0.1:{port}/0"
    client = redis.from_url(url, password=password or None)
    try:
        async with asyncio.timeout(20):
            while True:
                try:
                    await client.ping()
                    break
                except NotYet:
                    await asyncio.sleep(0.02)
        yield url
    finally:
        await client.aclose()
        process.terminate()
        process.wait(timeout=10)


@asynccontextmanager
async def context_service(nats_url: str, redis_url: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, SERVICE,
        env={**os.environ, "NATS_URL": nats_url, "REDIS_URL": redis_url},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
