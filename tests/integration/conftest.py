"""A log of the test's own, and fixtures for tests of the supervisor: its events, its files, and running children."""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.cli.stack.supervisor import Child, StackRun, marked, supervised
from app.log.journal import JetStreamJournal
from app.log.stream_settings import PUBLICATIONS, StreamSettings
from app.log.streams import apply
from tests.conftest import NatsServer
from tests.integration.cli.children import Events, Run, RunningChildren


@pytest.fixture
def stream_settings() -> StreamSettings:
    return StreamSettings(publications=PUBLICATIONS)


@pytest.fixture
async def journal(own_nats_server: NatsServer, stream_settings: StreamSettings) -> AsyncIterator[JetStreamJournal]:
    journal = await JetStreamJournal.connect(own_nats_server.url, name="tests", timeout_s=20)
    await apply(journal, stream_settings)
    yield journal
    await journal.close()


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def stack_run(tmp_path: Path) -> StackRun:
    logs_dir = tmp_path / "logs"
    logs_dir.mkdir()
    return StackRun(
        mark=os.urandom(8).hex(), logs_dir=logs_dir, state_file=tmp_path / "stack.json", facts={"url": "here"}
    )


@pytest.fixture
async def run(stack_run: StackRun, events: Events) -> AsyncGenerator[Run]:
    @asynccontextmanager
    async def running(*children: Child) -> AsyncGenerator[RunningChildren]:
        async with supervised(children, stack_run, events) as supervisor:
            yield RunningChildren(supervisor, events, stack_run)

    yield running
    assert marked(stack_run.mark) == [], "a supervisor leaves no process behind"
