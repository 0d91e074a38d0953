import asyncio
import uuid

import httpx
import pytest

from app.deliberation.facts import CallFinished, decode
from app.log.journal import JetStreamJournal
from app.log.stream_settings import PUBLICATIONS, StreamSettings
from app.log.streams import apply
from serve_deployments.agent.worker import serve
from serve_deployments.arguments import WorkerArgs
from serve_deployments.coordinator.task_queue import WorkerAgents
from serve_deployments.engine.client import Engines
from tests.conftest import NatsServer
from tests.integration.agent.stage_runs import call, request
from tests.integration.simulator.server_process import running


async def test_a_worker_that_breaks_records_what_its_calls_are_answered_meanwhile(
    own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, watched, deliberation_id = asyncio.Event(), list[Engines](), uuid.uuid4().hex[:26]

    async def watch(engines: Engines) -> None:
        watched.append(engines)
        await broken.wait()
        raise ZeroDivisionError

    monkeypatch.setattr(Engines, "watch", watch)
    journal = await JetStreamJournal.connect(own_nats_server.url)
    await apply(journal, StreamSettings(worker_roles=("DEV",), publications=PUBLICATIONS))
    asked = request((call().model_copy(update={"max_tokens": 4_096}),), deliberation_id=deliberation_id)
    with running("--seed", "7", "--duration-ms", "1000") as simulator:
        args = WorkerArgs(
            nats_url=own_nats_server.url, engine_urls=(simulator.url,), worker_roles=("DEV",), worker_port=0
        )
        serving = asyncio.create_task(serve(args))
        assigning = asyncio.create_task(WorkerAgents(journal, "DEV").run(asked))
        async with asyncio.timeout(30), httpx.AsyncClient(base_url=simulator.url) as engine:
            while not (await engine.get("/simulator/calls")).json()["requests"]:
                await asyncio.sleep(0.02)
            broken.set()
            await asyncio.wait({serving})
    assert isinstance(serving.exception(), ExceptionGroup)
    (record,) = await journal.last([f"deliberations.default.{deliberation_id}.call.*.finished"])
    outcome = decode(record.data)
    assert isinstance(outcome, CallFinished) and outcome.problem is None
    assigning.cancel()
    for engines in watched:
        await engines.close()
    await journal.close()
