import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import TASK, start_up, stop_up

pytestmark = pytest.mark.e2e

CALLS_MIN = 200
ROLES = """\
engines:
  by-file: {{url: "{file_url}", api_key_file: {key_file}}}
  by-variable: {{url: "{variable_url}/v1", api_key_env: ENGINE_KEY_OF_THE_TEST}}
roles:
  DEV: {{persona: You write code., engines: [by-file]}}
  QA: {{persona: You test., engines: [by-variable]}}
"""
FAULTS = ["error:0.1", "broken-stream:0.1", "bad-json:0.1", "rate-limit:0.05", "bad-request:0.05"]
PATHS = ("/status", "/metrics", "/roles", "/readyz", "/stats", "/deliberations?limit=100")


@dataclass
class Keys:
    old: str = field(default_factory=lambda: f"sk-old-{secrets.token_hex(16)}")
    new: str = field(default_factory=lambda: f"sk-new-{secrets.token_hex(16)}")
    variable: str = field(default_factory=lambda: f"sk-var-{secrets.token_hex(16)}")

    @property
    def all(self) -> tuple[bytes, ...]:
        return self.old.encode(), self.new.encode(), self.variable.encode()


@pytest.fixture
def keys() -> Keys:
    return Keys()


def simulator(key: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "serve_deployments.simulator", "--port", "0"]
    environment = {**os.environ, "VLLM_API_KEY": key}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    return process, process.stdout.readline().split()[2]


@pytest.fixture
def engines(keys: Keys) -> Iterator[tuple[str, str]]:
    (first, first_url), (second, second_url) = simulator(keys.old), simulator(keys.variable)
    yield first_url, second_url
    for process in (first, second):
        process.terminate()
        process.wait(10)


def files_with(directory: Path, secret: tuple[bytes, ...]) -> list[str]:
    found: list[str] = []
    for folder, _, names in os.walk(directory, followlinks=True):
        for path in (Path(folder, name) for name in names):
            if path.is_file() and any(each in path.read_bytes() for each in secret):
                found.append(str(path))
    return found


def command_lines() -> bytes:
    found: list[bytes] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        # A process may end meanwhile.
        with suppress(OSError):
            found.append(path.read_bytes())
    return b"\n".join(found)


async def run(client: httpx.AsyncClient, role: str, agents: int) -> dict[str, Any]:
    body = {"task": TASK, "role": role, "num_agents": agents, "strategy": "vote"}
    response = await client.post("/deliberations", json=body, headers={"Prefer": "wait=60"})
    outcome = response.raise_for_status().json()
    async with asyncio.timeout(120):
        while outcome["ended_at"] is None:
            await asyncio.sleep(0.1)
            outcome = (await client.get(f"/deliberations/{outcome['id']}")).raise_for_status().json()
    return outcome


async def test_a_key_is_refused_replaced_and_appears_nowhere(
    keys: Keys, engines: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY_OF_THE_TEST", keys.variable)
    key_file, roles, data = tmp_path / "key", tmp_path / "roles.yaml", tmp_path / "data"
    await asyncio.to_thread(key_file.write_text, keys.old)
    declared = ROLES.format(file_url=engines[0], variable_url=engines[1], key_file=key_file)
    await asyncio.to_thread(roles.write_text, declared)
    process, ready = await asyncio.to_thread(start_up, data, "--roles", str(roles), "--engine-url", engines[0])
    try:
        async with httpx.AsyncClient(base_url=ready["url"], timeout=70) as client:
            seen = await refused_and_replaced(client, keys, engines, key_file)
        assert not [key for key in keys.all if key in await asyncio.to_thread(command_lines)]
    finally:
        await asyncio.to_thread(stop_up, process)
    assert not [key for key in keys.all if key in seen.encode()]
    assert await asyncio.to_thread(files_with, data, keys.all) == []
    facts = await asyncio.to_thread(files_with, data / "nats", (str(key_file).encode(),))
    assert facts, "the facts of refused calls are read"


async def unusable_engines(client: httpx.AsyncClient, count: int) -> list[dict[str, str]]:
    """The unusable engines of `/readyz`, once it lists `count`: a replica reports after its deliberation has ended."""
    async with asyncio.timeout(30):
        while True:
            degraded = (await client.get("/readyz")).json()["degraded"]
            found = [each for each in degraded if each["pointer"] == "engines"]
            if len(found) == count:
                return found
            await asyncio.sleep(0.1)


async def refused_and_replaced(client: httpx.AsyncClient, keys: Keys, engines: tuple[str, str], key_file: Path) -> str:
    outcomes = [await run(client, role, 3) for role in ("DEV", "QA")]
    assert [outcome["status"] for outcome in outcomes] == ["completed", "completed"], outcomes
    async with httpx.AsyncClient(base_url=engines[0]) as engine:
        (await engine.post("/simulator/script", json={"api_keys": [keys.new]})).raise_for_status()
    refused = await run(client, "DEV", 3)
    assert refused["status"] == "failed"
    assert "by-file" in refused["problem"]["detail"] and str(key_file) in refused["problem"]["detail"]
    assert refused["usage"]["calls"] == 3, "a refused key is not tried again"
    (problem,) = await unusable_engines(client, 1)
    assert engines[0] in problem["detail"]
    assert "refuses its key" in (await client.get("/status")).text
    await asyncio.to_thread(key_file.write_text, keys.new)
    outcomes.append(await run(client, "DEV", 3))
    assert outcomes[-1]["status"] == "completed", outcomes[-1]
    assert await unusable_engines(client, 0) == []
    for url in engines:
        async with httpx.AsyncClient(base_url=url) as engine:
            (await engine.post("/simulator/script", json={"faults": FAULTS})).raise_for_status()
    outcomes += await asyncio.gather(*(run(client, role, 10) for role in ("DEV", "QA") * 10))
    assert sum(outcome["usage"]["calls"] for outcome in outcomes) >= CALLS_MIN
    texts = [(await client.get(path)).text for path in PATHS]
    for outcome in (*outcomes, refused):
        texts.append((await client.get(f"/deliberations/{outcome['id']}/events?after=0")).text)
    return "\n".join((*texts, str(outcomes), str(refused)))
