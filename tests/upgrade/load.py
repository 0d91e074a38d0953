"""Councils that are asked for, streamed and repeated through whichever gateways run, without a pause."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count

import httpx

from app.client import EventStream
from app.client.stream import Retry, Waits
from app.streaming.frames import VIEW_TYPES
from tests.e2e.conftest import TASK
from tests.upgrade.two_versions import Installation

IN_FLIGHT = 4
WAITS = Waits(first_s=0.05, most_s=0.5)
AGAIN_S = 0.05
# A fact of a type that neither version knows, on a subject that each reads.
NOTED = "deliberation.noted"


@dataclass
class Load:
    """`ended` has the statuses of councils, and `unlike` those with another stream than the log.

    `resumed` counts the streams that went on at another connection, at the cursor of the one before. `strategies` has
    the strategy and its version of each.
    """

    parts: Installation
    webhook: str
    accepted: list[str] = field(default_factory=list[str])
    ended: dict[str, str] = field(default_factory=dict[str, str])
    strategies: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    unlike: list[str] = field(default_factory=list[str])
    resumed: int = 0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: "count[int]" = field(default_factory=count)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(self._one_after_another())

    async def _one_after_another(self) -> None:
        while not self.stopping.is_set():
            await self._council(next(self._numbers))

    async def _council(self, number: int) -> None:
        strategy = "vote" if number % 3 == 0 else "council"
        webhook = {"url": self.webhook, "events": ["deliberation.completed"]}
        body = {"task": TASK, "strategy": strategy, "seed": number, "webhook": webhook}
        id = await self._accepted(body, f"upgrade-{number}")
        self.accepted.append(id)
        if number % 5 == 0:
            await self._note(id)
        repeated = await self._accepted(body, f"upgrade-{number}")
        assert repeated == id, "another gateway answers a repeated key with the same deliberation"
        await self._follow(id)

    async def _accepted(self, body: object, key: str) -> str:
        """Ask until a gateway answers: one that stops is away for a moment."""
        while True:
            try:
                response = await self.parts.client.post("/deliberations", json=body, headers={"Idempotency-Key": key})
            except httpx.TransportError:
                response = None
            if response is not None and response.status_code != 503:
                assert response.status_code in (200, 202), response.text
                return response.json()["id"]
            await asyncio.sleep(AGAIN_S)

    async def _note(self, id: str) -> None:
        fact = {"type": NOTED, "deliberation_id": id, "ts": datetime.now(UTC).isoformat(), "note": "later"}
        await self.parts.journal.write(
            f"deliberations.default.{id}.noted", json.dumps(fact, separators=(",", ":")).encode()
        )

    async def _follow(self, id: str) -> None:
        def resumed(_: Retry) -> None:
            self.resumed += stream.cursor != "0"

        streamed = dict[int, str]()
        stream = EventStream(self.parts.client, id, after="0", waits=WAITS, on_retry=resumed)
        async with stream:
            async for frame in stream.frames():
                if frame.id is not None and frame.event not in VIEW_TYPES:
                    streamed[int(frame.id.rpartition("-")[2])] = frame.event
        stored = await self.parts.journal.facts("default", id)
        end = max(streamed)
        if list(streamed) != [record.sequence for record in stored if record.sequence <= end]:
            self.unlike.append(id)
        accepted = json.loads(stored[0].data)["specification"]
        self.strategies[id] = accepted["strategy"], accepted["strategy_version"]
        self.ended[id] = streamed[end].removeprefix("deliberation.")


@asynccontextmanager
async def loaded(parts: Installation, webhook: str) -> AsyncGenerator[Load]:
    """The load around the body; leaving it waits for the ends of all accepted work."""
    load = Load(parts, webhook)
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run())
        yield load
        load.stopping.set()
