from collections.abc import AsyncIterator

import pytest
from _pytest.terminal import TerminalReporter

from app.log.journal import JetStreamJournal
from benchmarks.reconnects import gateway
from tests.conftest import NatsServer


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, figure in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {name} {figure}")


@pytest.fixture
async def gateway_port(nats_server: NatsServer, jetstream_journal: JetStreamJournal) -> AsyncIterator[int]:
    async with gateway(nats_server.url, LOG_LEVEL="error") as (_, port):
        yield port
