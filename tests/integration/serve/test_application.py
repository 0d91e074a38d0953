import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ray.serve.schema import ApplicationStatus

from app.deliberation.errors import InvalidRequest
from app.deliberation.facts import Accepted, Completed, decode
from app.deliberation.specification import AgentSpec
from app.deliberation.strategies import STRATEGIES
from app.log.journal import JetStreamJournal
from serve_deployments import application
from serve_deployments.application import build
from serve_deployments.arguments import ApplicationArgs
from tests.conditions import until
from tests.conftest import NatsServer
from tests.integration.simulator.server_process import running
from tests.story import Story

AGENTS = tuple(AgentSpec(agent_id=id, role=id[:-4].upper()) for id in ("dev-001", "dev-002", "qa-001"))
ROLES = {"roles": {"DEV": {"persona": "You develop."}, "QA": {"persona": "You test."}}}


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    with running() as simulator:
        yield simulator.url


@pytest.fixture
def roles_file(tmp_path: Path) -> str:
    path = tmp_path / "roles.yaml"
    path.write_text(json.dumps(ROLES))
    return str(path)


def accepted(deliberation_id: str) -> Accepted:
    return Story(deliberation_id).accepted(
        datetime.now(UTC),
        timeout_s=60,
        task="Name three properties of a good name.",
        agents=AGENTS,
        strategy="council",
        strategy_version=STRATEGIES["council"].version,
        rounds=1,
        quorum=2,
    )


async def test_an_accepted_deliberation_ends_in_a_verdict(
    journal: JetStreamJournal, own_nats_server: NatsServer, engine_url: str, roles_file: str, fresh_id: str
) -> None:
    module = "tests.integration.serve.local_application"
    command = [sys.executable, "-m", module, own_nats_server.url, engine_url, roles_file]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert any(line == "ready\n" for line in process.stdout)
        ended = asyncio.Event()
        await journal.subscribe([f"deliberations.default.{fresh_id}.end"], lambda _: ended.set())
        await journal.append("default", accepted(fresh_id))
        async with asyncio.timeout(30):
            await ended.wait()
        process.stdin.close()
    (record,) = await journal.last([f"deliberations.default.{fresh_id}.end"])
    end = decode(record.data)
    assert isinstance(end, Completed) and end.verdict is not None
    assert len(end.verdict.ranking) == 3 and end.degraded is None


def test_invalid_roles_are_refused_with_their_path(tmp_path: Path) -> None:
    path = tmp_path / "roles.yaml"
    path.write_text("roles: {DEV: {persona: x, concurency: 3}}")
    with pytest.raises(InvalidRequest, match=r"roles\.DEV\.concurency"):
        build(ApplicationArgs(roles_file=path))


def test_a_role_in_a_coordinators_process_is_refused_in_ray(tmp_path: Path) -> None:
    path = tmp_path / "roles.yaml"
    path.write_text("roles: {DEV: {persona: x}, QA: {persona: x, agents: nats}}")
    with pytest.raises(InvalidRequest, match="role DEV runs in the process of a coordinator without Ray"):
        build(ApplicationArgs(roles_file=path, agents="local"))


@pytest.mark.parametrize("address", ["auto", "local", "ray://127.0.0.1:1", "127.0.0.1", ":1", "127.0.0.1:one"])
def test_does_not_wait_for_an_address_without_host_and_port(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "RAY_STARTS_WITHIN_S", float("inf"))
    application.until_listening(address)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "[::1]")])
def test_waits_for_a_starting_ray(family: socket.AddressFamily, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(family) as ray:
        ray.bind((host.strip("[]"), 0))
        looks: list[float] = []

        def sleep(seconds: float) -> None:
            looks.append(seconds)
            if len(looks) == 3:
                ray.listen()

        monkeypatch.setattr(application, "sleep", sleep)
        monkeypatch.setattr(application, "RAY_STARTS_WITHIN_S", float("inf"))
        application.until_listening(f"{host}:{ray.getsockname()[1]}")
    assert len(looks) == 3


def test_stops_waiting_for_ray_at_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "RAY_STARTS_WITHIN_S", 0.0)
    application.until_listening("127.0.0.1:1")


@pytest.mark.parametrize("call", ["_status", "redeploy"])
async def test_a_controller_that_keeps_an_answer_for_ever_is_started_again(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    asked, revived, statuses = threading.Event(), threading.Event(), list[int]()

    def held() -> ApplicationStatus:
        asked.set()
        revived.wait()
        return ApplicationStatus.RUNNING

    def status() -> ApplicationStatus:
        statuses.append(1)
        return ApplicationStatus.RUNNING

    monkeypatch.setattr(application, "WATCH_INTERVAL_S", 0.01)
    monkeypatch.setattr(application, "_status", status)
    monkeypatch.setattr(application, call, held)
    monkeypatch.setattr(application, "_revive_controller", revived.set)
    watch = asyncio.create_task(application._stay())
    if call == "redeploy":
        await until(lambda: bool(statuses))
        os.kill(os.getpid(), signal.SIGHUP)
    await until(asked.is_set)
    await until(revived.is_set)
    assert not watch.done()
    watch.cancel()
