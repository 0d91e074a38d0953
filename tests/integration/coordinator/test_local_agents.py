"""`python -m serve_deployments.coordinator` with agents of its own, over a real nats-server and the simulator."""

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.deliberation.facts import CallFinished, Completed, Fact, Resumed, StageOpened, decode
from app.deliberation.strategies import STRATEGIES
from app.log.journal import JetStreamJournal
from app.log.stream_settings import StreamSettings
from app.log.streams import apply
from tests.conftest import NatsServer
from tests.integration.simulator.server_process import running
from tests.story import Story

CALL_MS = 1_500
WITHIN_S = 60
# Two calls at a time: the second deliberation's calls wait until those of the first one have ended.
ROLES = "roles: {DEV: {persona: You develop., concurrency: 2, replicas: {min: 2, max: 2}}}"


@asynccontextmanager
async def coordinator(**variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {**os.environ, "AGENTS": "local", "COORDINATOR_PORT": "0", **variables}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "serve_deployments.coordinator", env=environment, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until_in_flight(journal: JetStreamJournal, calls: int) -> None:
    """Wait until the replica answers and has so many calls."""
    async with asyncio.timeout(WITHIN_S):
        while not any(
            reply["in_flight"] == calls for reply in await journal.inquire("control.role.DEV", timeout_s=0.3)
        ):
            await asyncio.sleep(0.02)


async def facts_of(journal: JetStreamJournal, deliberation_id: str) -> list[Fact]:
    events = [decode(record.data) for record in await journal.facts("default", deliberation_id)]
    return [event for event in events if isinstance(event, Fact)]


@pytest.fixture
async def journal(own_nats_server: NatsServer) -> AsyncIterator[JetStreamJournal]:
    journal = await JetStreamJournal.connect(own_nats_server.url)
    async with asyncio.timeout(10):
        await apply(journal, StreamSettings())
    yield journal
    await journal.close()


async def test_a_stop_lets_calls_finish_and_begins_nothing_more(
    journal: JetStreamJournal, own_nats_server: NatsServer, tmp_path: Path
) -> None:
    roles, ids = tmp_path / "roles.yaml", [uuid.uuid4().hex[:26] for _ in range(2)]
    roles.write_text(ROLES)
    version = STRATEGIES["council"].version
    with running("--duration-ms", str(CALL_MS)) as simulator:
        variables = {"NATS_URL": own_nats_server.url, "VLLM_URL": simulator.url, "ROLES_FILE": str(roles)}
        async with coordinator(**variables) as process:
            await until_in_flight(journal, 0)
            for deliberation_id in ids:
                council = Story(deliberation_id).accepted(
                    datetime.now(UTC), strategy="council", strategy_version=version
                )
                await journal.append("default", council)
            await until_in_flight(journal, 4)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(WITHIN_S):
                assert await process.wait() == 0
        for deliberation_id in ids:
            facts = await facts_of(journal, deliberation_id)
            finished = [fact for fact in facts if isinstance(fact, CallFinished)]
            assert [fact.problem for fact in finished] == [None, None], "both calls of the first stage were answered"
            assert [fact.stage for fact in facts if isinstance(fact, StageOpened)] == [1]
            assert [fact.given_back for fact in facts if isinstance(fact, Resumed)] == [True]
        ended = asyncio.Event()
        await journal.subscribe([f"deliberations.default.{ids[0]}.end"], lambda _: ended.set())
        async with coordinator(**variables), asyncio.timeout(WITHIN_S):
            await ended.wait()
    facts = await facts_of(journal, ids[0])
    assert isinstance(facts[-1], Completed) and facts[-1].degraded is None
    first = [fact.attempt for fact in facts if isinstance(fact, CallFinished) and fact.stage == 1]
    assert first == [1, 1], "the successor asked for neither again"
