from collections.abc import AsyncIterator, Iterator

import pytest
from _pytest.terminal import TerminalReporter

from app.log.journal import JetStreamJournal
from benchmarks import reconnects
from tests.attack.gateways import Gateway, gateway
from tests.components.webhooks.sending import declared
from tests.conftest import NatsServer


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        for name, figure in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {name} {figure}")


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One server for each module: what one accepts and no coordinator begins would be the backlog of the next."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
async def jetstream_journal(nats_server: NatsServer) -> AsyncIterator[JetStreamJournal]:
    async with declared(nats_server) as journal:
        yield journal


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
