import os
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import free_port
from tests.containers.docker import Project, docker_daemon
from tests.environments import ROOT

LOGS = ROOT / "build/containers.log"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.containers)


@pytest.fixture(scope="session")
def secret_values() -> dict[str, str]:
    return {name: secrets.token_hex(32) for name in ("KEY_PEPPER", "WEBHOOK_SECRETS", "LOG_KEY")}


@pytest.fixture(scope="session")
def project(secret_values: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project of which nothing runs yet; what it has at the end is removed, and its logs are kept in build/."""
    log_key = tmp_path_factory.mktemp("secrets") / "log_key"
    log_key.write_text(secret_values["LOG_KEY"])
    with docker_daemon() as environment:
        settings = {
            "KEY_PEPPER": secret_values["KEY_PEPPER"],
            "WEBHOOK_SECRETS": secret_values["WEBHOOK_SECRETS"],
            "LOG_KEY_FILE": str(log_key),
            "GATEWAY_PORT": str(free_port()),
        }
        made = Project(f"containers-{os.getpid()}", environment | settings)
        try:
            yield made
        finally:
            LOGS.parent.mkdir(exist_ok=True)
            LOGS.write_text(made.compose("logs", "--no-color", "--timestamps"))
            made.compose("down", "--volumes", "--timeout", "10")


@pytest.fixture(scope="session")
def stack(project: Project) -> Project:
    project.up()
    return project


@pytest.fixture(scope="session")
def key(stack: Project) -> str:
    """A key of the tenant `mine`, made as docs/operations.md says."""
    return stack.exec("gateway", "deliberate", "keys", "create", "me", "--tenant", "mine").strip()


@pytest.fixture
async def client(stack: Project, key: str) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://127.0.0.1:{stack.environment['GATEWAY_PORT']}"
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=40) as opened:
        yield opened
