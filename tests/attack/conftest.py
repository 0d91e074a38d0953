from collections.abc import AsyncIterator

import pytest
from _pytest.terminal import TerminalReporter

from app.log.journal import JetStreamJournal
from benchmarks import reconnects
from tests.attack.gateways import Gateway, gateway
from tests.conftest import NatsServer


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        for name, figure in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {name} {figure}")


@pytest.fixture
async def gateway_port(nats_server: NatsServer, jetstream_journal: JetStreamJournal) -> AsyncIterator[int]:
    async with reconnects.gateway(nats_server.url, LOG_LEVEL="error") as (_, port):
        yield port


@pytest.fixture(scope="module")
async def attacked(
    request: pytest.FixtureRequest,
    nats_server: NatsServer,
    jetstream_journal: JetStreamJournal,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Gateway]:
    """A gateway with the variables that the module names in SETTINGS."""
    settings: dict[str, str] = getattr(request.module, "SETTINGS", {})
    async with gateway(nats_server.url, tmp_path_factory.mktemp("gateway"), **settings) as opened:
        yield opened
