"""The load: each client keeps one deliberation in flight and retries with the same key until it is accepted."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

STRATEGIES: tuple[dict[str, Any], ...] = (
    {"strategy": "council", "num_agents": 3, "rounds": 1},
    {"strategy": "best_of_n", "num_agents": 3},
    {"strategy": "independent", "num_agents": 3},
)
ROLE_NAMES = ("DEV", "QA")
CANCELLED_SHARE = 0.05
# Success; ended before its cancellation; overload; the log is unavailable.
EXPECTED = frozenset({200, 202, 409, 429, 503})
PAUSE_S = 0.3
PAUSE_MAX_S = 2.0
WAIT_S = 20


@dataclass
class Load:
    """`clients` closed loops against the gateway at `url`, until `enough` is set.

    `promised` are the ids that were accepted, `pending` those of them without an end that a client has seen.
    """

    url: str
    clients: int
    seed: int
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    promised: set[str] = field(default_factory=set[str])
    pending: set[str] = field(default_factory=set[str])

    async def run(self) -> None:
        """Submit and wait; returns when `enough` is set and all accepted deliberations have ended."""
        # httpx's pool scans all connections for each request: with 200 of them it took half a core from the stack.
        transport = AiohttpTransport(limits=httpx.Limits(max_connections=self.clients * 2, keepalive_expiry=4))
        async with (
            httpx.AsyncClient(base_url=self.url, timeout=WAIT_S + 10, transport=transport) as client,
            asyncio.TaskGroup() as group,
        ):
            for number in range(self.clients):
                group.create_task(self._client(client, number))

    async def _client(self, client: httpx.AsyncClient, number: int) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        turn = 0
        while not self.enough.is_set():
            turn += 1
            body = {"task": f"Task {number}.{turn}", "seed": turn, "role": rng.choice(ROLE_NAMES)}
            body |= rng.choice(STRATEGIES)
            deliberation_id = await self._submitted(client, body, key=f"chaos-{self.seed}-{number}-{turn}")
            if deliberation_id is None:
                return
            self.pending.add(deliberation_id)
            if rng.random() < CANCELLED_SHARE:
                await asyncio.sleep(rng.random())
                await self._request(client, "POST", f"/deliberations/{deliberation_id}/cancel", json={})
            await self._ended(client, deliberation_id)
            self.pending.discard(deliberation_id)

    async def _submitted(self, client: httpx.AsyncClient, body: dict[str, Any], key: str) -> str | None:
        """The id once the gateway has accepted; None when the run ends before that."""
        while not self.enough.is_set():
            response = await self._request(
                client, "POST", "/deliberations", json=body, headers={"Idempotency-Key": key}
            )
            if response is not None and response.status_code in (200, 202):
                self.promised.add(response.json()["id"])
                return response.json()["id"]
            # Shorter than a long Retry-After, to keep enough deliberations in flight.
            asked_s = 0 if response is None else float(response.headers.get("Retry-After", 0))
            await asyncio.sleep(min(max(PAUSE_S, asked_s), PAUSE_MAX_S))
        return None

    async def _ended(self, client: httpx.AsyncClient, deliberation_id: str) -> None:
        while True:
            response = await self._request(
                client, "GET", f"/deliberations/{deliberation_id}", headers={"Prefer": f"wait={WAIT_S}"}
            )
            if response is not None and response.status_code == 200 and response.json()["ended_at"] is not None:
                return
            await asyncio.sleep(PAUSE_S / 3)

    async def _request(self, client: httpx.AsyncClient, method: str, path: str, **more: Any) -> httpx.Response | None:  # noqa: ANN401 -- httpx's own arguments
        """The response; None when the connection broke, as after a kill."""
        try:
            response = await client.request(method, path, **more)
        except (httpx.TransportError, aiohttp.ClientError):
            # The transport does not translate all of aiohttp's errors.
            return None
        if response.status_code not in EXPECTED:
            raise AssertionError(f"{method} {path}: {response.status_code} {response.text}")
        return response
