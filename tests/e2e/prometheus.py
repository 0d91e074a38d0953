"""A real Prometheus with the shipped rules, whose times and thresholds are short enough for a test."""

import asyncio
import re
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from math import isnan
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.conftest import free_port
from tests.deploy.monitoring import MONITORING, RULES, program

# What a test reaches in seconds.
THRESHOLDS = {
    "max(queue_head_wait_seconds) > 60": "max(queue_head_wait_seconds) > 1",
    '"webhooks|attempts"}) > 1000': '"webhooks|attempts"}) > 0',
    '"archive"}) > 10000': '"archive"}) > 0',
}


def short_rules() -> str:
    text = re.sub(r"^ +for: .*\n", "", RULES.read_text(), flags=re.MULTILINE)
    for shipped, short in THRESHOLDS.items():
        assert shipped in text
        text = text.replace(shipped, short)
    return text.replace("[5m]", "[12s]").replace("offset 5m", "offset 12s")


class Prometheus:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def answers(self) -> bool:
        with suppress(httpx.TransportError):
            return (await self._client.get("/-/ready")).status_code == 200
        return False

    async def _data(self, path: str, **parameters: str) -> Any:
        return (await self._client.get(f"/api/v1/{path}", params=parameters)).raise_for_status().json()["data"]

    async def firing(self) -> set[str]:
        alerts = (await self._data("alerts"))["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    async def values(self, expression: str) -> list[float]:
        """The values of an expression now, without those that are no number."""
        found = [float(each["value"][1]) for each in (await self._data("query", query=expression))["result"]]
        return [value for value in found if not isnan(value)]


async def holds(condition: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
    """Return once a condition that asks a server holds; fail after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.2)


def start(place: Path, targets: list[str], address: str) -> subprocess.Popen[bytes]:
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    # `up` runs without keys here.
    del job["authorization"]
    job["static_configs"] = [{"targets": targets}]
    place.mkdir()
    (place / "prometheus.yml").write_text(yaml.safe_dump(config))
    (place / "rules.yml").write_text(short_rules())
    command = [program("prometheus"), f"--config.file={place}/prometheus.yml", f"--storage.tsdb.path={place}/data"]
    with (place / "log").open("wb") as log:
        return subprocess.Popen([*command, f"--web.listen-address={address}"], stderr=log)


@asynccontextmanager
async def prometheus(place: Path, targets: list[str]) -> AsyncGenerator[Prometheus]:
    address = f"127.0.0.1:{free_port()}"
    process = start(place, targets, address)
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=10) as client:
            server = Prometheus(client)
            while not await server.answers():
                assert process.poll() is None, f"Prometheus ended; its log is {place}/log"
                await asyncio.sleep(0.05)
            yield server
    finally:
        process.terminate()
        process.wait(timeout=20)
