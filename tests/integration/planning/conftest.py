"""A log of the test's own, the process that takes plans, and a gateway's view of both."""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from app.deliberation.facts import Accepted, decode
from app.log.journal import JetStreamJournal
from app.planning.consumer import APPROVED, PlanConsumer
from app.planning.consumer_process import PlanningSettings, consumer_of, run
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


@asynccontextmanager
async def taking(url: str, **settings: Any) -> AsyncGenerator[PlanConsumer]:
    async with consumer_of(PlanningSettings(nats_url=url, **settings)) as (journal, consumer):
        task = asyncio.create_task(run(journal, consumer))
        try:
            yield consumer
        finally:
            task.cancel()
            await asyncio.wait([task])


async def planning_process(url: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app.planning",
        env={"NATS_URL": url, "PLANNING_PORT": "0", "PATH": "", **environment},
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
