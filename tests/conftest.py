"""Fixtures of all tests: a real nats-server, journals over it and in memory; the schedule of workers."""

import asyncio
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# The pure tests need no journal: fixtures import it when a test asks for them.
if TYPE_CHECKING:
    from app.log.journal import JetStreamJournal
    from tests.fakes import InMemoryJournal
    from tests.vllm.server import Engine

# The default prints local variables too: 60,000 lines for an error in a route, while its server's loop waits.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

NATS_SERVER = Path(sys.executable).with_name("nats-server")


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class NatsServer:
    """A real nats-server with JetStream that can be killed and started again on the same port and store."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        command = [NATS_SERVER, "-js", "-sd", self.store, "-a", "127.0.0.1", "-p", str(self.port), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=10)


STARTS_RAY = ("tests/e2e/", "tests/integration/serve/", "tests/integration/cli/test_up_servers.py")


class ByResource(LoadScopeScheduling):
    """All tests that start Ray run on one worker, so that no two clusters compete; other files stay together."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "ray" if path.startswith(STARTS_RAY) else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByResource:
    """Schedule by resource whenever there are several workers."""
    return ByResource(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the tests that start Ray, which take longest."""
    items.sort(key=lambda item: not item.nodeid.startswith(STARTS_RAY))


def pytest_collection_finish() -> None:
    """Exempt modules and tests from garbage collection, which would scan them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def logging_of_its_own() -> Iterator[None]:
    """Restores the process's logging configuration after each test."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def patient_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer to start a tool server than a replica waits for it."""
    monkeypatch.setattr("serve_deployments.tools.servers.FIRST_WAIT_S", 30.0)


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One server for the whole run."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server of the test's own, to be killed."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
async def jetstream_journal(nats_server: NatsServer) -> "AsyncIterator[JetStreamJournal]":
    """A journal over the run's server, with all streams declared."""
    from app.log.journal import JetStreamJournal
    from app.log.stream_settings import PUBLICATIONS, StreamSettings
    from app.log.streams import apply

    journal = await JetStreamJournal.connect(nats_server.url, name=f"tests-{os.getpid()}")
    async with asyncio.timeout(10):
        await apply(journal, StreamSettings(publications=PUBLICATIONS))
    yield journal
    await journal.close()


@pytest.fixture(scope="session")
async def modelled_journal() -> "AsyncIterator[JetStreamJournal]":
    """The real journal over the in-memory server of the crash tests."""
    from tests.crash.client import journal_over
    from tests.crash.server import InMemoryServer

    journal = await journal_over(InMemoryServer(), "tests")
    yield journal
    await journal.close()


LOG_KEY = "the log key of the tests, which is long enough"


@pytest.fixture(scope="session")
async def signed_journal(
    jetstream_journal: "JetStreamJournal", nats_server: NatsServer
) -> "AsyncIterator[JetStreamJournal]":
    """A journal over the run's server that signs what it writes and accepts nothing else."""
    from app.log.journal import JetStreamJournal
    from app.log.signature import LogSigner

    journal = await JetStreamJournal.connect(nats_server.url, name=f"signed-{os.getpid()}", signer=LogSigner([LOG_KEY]))
    yield journal
    await journal.close()


@pytest.fixture(params=["memory", "jetstream", "modelled", "signed"])
def any_journal(request: pytest.FixtureRequest) -> "InMemoryJournal | JetStreamJournal":
    """Each journal in turn."""
    from tests.fakes import InMemoryJournal

    return InMemoryJournal() if request.param == "memory" else request.getfixturevalue(f"{request.param}_journal")


@pytest.fixture
def fresh_id() -> str:
    """A deliberation id that nothing else uses."""
    return uuid.uuid4().hex[:26]


@pytest.fixture(scope="session")
def vllm_engine(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Engine]":
    """One real vLLM for the whole run; it takes about half a minute to start."""
    from tests.vllm.server import vllm_server

    with vllm_server(tmp_path_factory.mktemp("vllm") / "vllm.log") as engine:
        yield engine
