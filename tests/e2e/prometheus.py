"""A real Prometheus with the shipped rules, whose times and thresholds are short enough for a test."""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.conftest import free_port
from tests.deploy.monitoring import MONITORING, RULES, program

SCRAPE_S = 2
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
    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=10)

    def answers(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def _data(self, path: str, **parameters: str) -> Any:
        return self._client.get(f"/api/v1/{path}", params=parameters).raise_for_status().json()["data"]

    def firing(self) -> set[str]:
        alerts = self._data("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def values(self, expression: str) -> list[float]:
        """The values of an expression now, without those that are no number."""
        found = [float(each["value"][1]) for each in self._data("query", query=expression)["result"]]
        return [value for value in found if value == value]

    def close(self) -> None:
        self._client.close()


@contextmanager
def prometheus(place: Path, targets: list[str]) -> Iterator[Prometheus]:
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {
        "scrape_interval": f"{SCRAPE_S}s",
        "scrape_timeout": f"{SCRAPE_S}s",
        "evaluation_interval": "1s",
    }
    (job,) = config["scrape_configs"]
    # `up` runs without keys here.
    del job["authorization"]
    job["static_configs"] = [{"targets": targets}]
    place.mkdir()
    (place / "prometheus.yml").write_text(yaml.safe_dump(config))
    (place / "rules.yml").write_text(short_rules())
    address = f"127.0.0.1:{free_port()}"
    command = [program("prometheus"), f"--config.file={place}/prometheus.yml", f"--storage.tsdb.path={place}/data"]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stderr=log)
    server = Prometheus(f"http://{address}")
    try:
        while not server.answers():
            assert process.poll() is None, (place / "log").read_text()
            time.sleep(0.05)
        yield server
    finally:
        server.close()
        process.terminate()
        process.wait(timeout=20)
