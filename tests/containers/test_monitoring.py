"""Prometheus of monitoring.yaml beside the stack. Grafana has no package here that its image could be made of."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.containers.build import NOBODY
from tests.containers.docker import Project, until
from tests.containers.services import STATUS
from tests.deploy.monitoring import rules

SAMPLES = "query?query=sum(count_over_time(up[1h]))"


@pytest.fixture(scope="module")
def monitored(stack: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    key = tmp_path_factory.mktemp("metrics") / "key"
    create = ("deliberate", "keys", "create", "prometheus", "--tenant", "mine", "--scope", "admin")
    key.write_text(stack.exec("gateway", *create).strip())
    asked = {"METRICS_KEY_FILE": str(key), "GRAFANA_PASSWORD": "unused"}
    made = replace(stack, environment=stack.environment | asked, files=(*stack.files, "monitoring.yaml"))
    try:
        made.up("prometheus")
        yield made
    finally:
        made.compose("rm", "--stop", "--force", "prometheus")
        made.docker("volume", "rm", f"{made.name}_prometheus-data")


def ask(monitored: Project, path: str) -> Any:
    wget = ("wget", "-q", "-O", "-", f"http://127.0.0.1:9090/api/v1/{path}")
    return json.loads(monitored.exec("prometheus", *wget))["data"]


def has_more_samples_than(monitored: Project, number: int) -> Callable[[], bool]:
    def holds() -> bool:
        return any(int(each["value"][1]) > number for each in ask(monitored, SAMPLES)["result"])

    return holds


async def test_prometheus_reads_the_gateway_with_its_key_and_has_the_rules(monitored: Project) -> None:
    await until(has_more_samples_than(monitored, 0))
    (target,) = ask(monitored, "targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    alerts = [
        rule["name"]
        for group in ask(monitored, "rules")["groups"]
        for rule in group["rules"]
        if rule["type"] == "alerting"
    ]
    assert alerts == list(rules("alert"))
    assert [each["value"][1] for each in ask(monitored, "query?query=coordinators")["result"]] == ["1"]


def test_prometheus_has_no_rights_and_a_read_only_root(monitored: Project) -> None:
    assert monitored.status("prometheus").items() >= {**STATUS, "Uid": str(NOBODY)}.items()
    assert monitored.inspect("prometheus")["HostConfig"]["ReadonlyRootfs"]


async def test_a_killed_prometheus_starts_again_with_its_samples(monitored: Project) -> None:
    await until(has_more_samples_than(monitored, 1))
    restarts = monitored.kill("prometheus")
    await until(lambda: monitored.is_restarted("prometheus", restarts))
    assert has_more_samples_than(monitored, 1)()
