"""A log of the test's own, and gateways that take plans."""

import asyncio
import base64
import json
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from app.deliberation.facts import Accepted, decode
from app.deliberation.specification import ContextStatus
from app.log.journal import JetStreamJournal
from app.main import lifespan_of
from app.planning.consumer import APPROVED
from app.routes.dependencies import Gateway, SystemClock
from app.settings import Settings
from tests.components.routes.served import APP
from tests.conditions import until_empty

TRANSITIONED = "planning.story.transitioned"


def moved(story_id: str = "story-1", **more: str) -> dict[str, str]:
    event = {"story_id": story_id, "from_phase": "DESIGN", "to_phase": "BUILD", "timestamp": "2026-01-01T00:00:00Z"}
    return {**event, **more}


def plan_event(number: int = 1, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "story_id": "story-1",
        "plan_id": f"plan-{number:03d}",
        "approved_by": "po@example.com",
        "timestamp": "2026-01-01T00:00:00Z",
        "title": "A login",
        "description": "Users log in by a link that is sent to them.",
        "roles": ["DEV", "QA"],
    }
    return {name: value for name, value in {**given, **more}.items() if value is not None}


async def announce(journal: JetStreamJournal, event: object, subject: str = APPROVED) -> int:
    data = event if isinstance(event, bytes) else json.dumps(event).encode()
    return (await journal.request(subject, data))["seq"]


@dataclass(frozen=True)
class TakingGateway:
    """A gateway that takes plans. `counts` has the events that it took, by outcome; a stop signal calls `drain`."""

    gateway: Gateway
    drain: Callable[[], None]

    @property
    def counts(self) -> Mapping[str, int]:
        metrics = self.gateway["metrics"].registry.collect()
        samples = (sample for metric in metrics if metric.name == "planning_events" for sample in metric.samples)
        return Counter({sample.labels["outcome"]: int(sample.value) for sample in samples if sample.value})

    @property
    def contexts(self) -> Mapping[ContextStatus, int]:
        hydrator = self.gateway["deliberations"].context
        return {} if hydrator is None else hydrator.counts


@asynccontextmanager
async def taking(url: str, *, startup_wait_s: float = 5.0, **settings: Any) -> AsyncGenerator[TakingGateway]:
    chosen, app = Settings(nats_url=url, planning=True, **settings), FastAPI()
    app.state.connections = APP.state.connections
    async with lifespan_of(chosen, None, SystemClock(), startup_wait_s=startup_wait_s)(app) as gateway:
        yield TakingGateway(gateway, app.state.drain)


async def gateway_process(url: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app.main",
        env={"NATS_URL": url, "PORT": "0", "PATH": "", "PLANNING": "true", **environment},
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip


async def until_taken(journal: JetStreamJournal, timeout_s: float = 30) -> None:
    await until_empty(journal, "PLANNING_EVENTS", "planning", timeout_s)


async def acceptances(journal: JetStreamJournal) -> list[Accepted]:
    facts = [decode(record.data) async for record in journal.read("deliberations.*.*.accepted", 0)]
    return [fact for fact in facts if isinstance(fact, Accepted)]


async def rejections(journal: JetStreamJournal, sequences: Sequence[int]) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    position = 0
    async with asyncio.timeout(20):
        while len(found) < len(sequences):
            query = json.dumps({"seq": position + 1, "next_by_subj": "planning.plan.rejected"}).encode()
            reply = await journal.request("$JS.API.STREAM.MSG.GET.PLANNING_EVENTS", query)
            if "error" in reply:
                await asyncio.sleep(0.02)
                continue
            position = reply["message"]["seq"]
            rejected = json.loads(base64.b64decode(reply["message"]["data"]))
            found.setdefault(rejected["sequence"], rejected)
    return [found[sequence] for sequence in sequences]
