"""Councils over HTTP: one to its end, and a closed loop of them that survives a killed container."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx

COUNCIL = {"task": "Name a colour.", "strategy": "council", "num_agents": 3, "rounds": 1}
WAIT_S = 20
PAUSE_S = 0.2


async def ended(client: httpx.AsyncClient, deliberation_id: str) -> dict[str, Any]:
    """Returns the deliberation at its end; a connection that breaks meanwhile is made again."""
    while True:
        headers = {"Prefer": f"wait={WAIT_S}"}
        response = await _request(client, "GET", f"/deliberations/{deliberation_id}", headers=headers)
        if response is not None and response.status_code == 200 and response.json()["ended_at"] is not None:
            return response.json()
        await asyncio.sleep(PAUSE_S)


async def council(client: httpx.AsyncClient) -> dict[str, Any]:
    response = await client.post("/deliberations", json=COUNCIL)
    assert response.status_code == 202, response.text
    return await ended(client, response.json()["id"])


@dataclass
class Load:
    """`clients` closed loops, until `enough` is set: each repeats a submission with its key until it is accepted.

    `accepted` has the id of each submission by its key; `ends` has the deliberations that have ended, by id.
    """

    client: httpx.AsyncClient
    name: str
    clients: int = 4
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    accepted: dict[str, str] = field(default_factory=dict[str, str])
    ends: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self.clients):
                group.create_task(self._loop(number))

    @property
    def in_flight(self) -> int:
        return len(self.accepted) - len(self.ends)

    async def _loop(self, number: int) -> None:
        turn = 0
        while not self.enough.is_set():
            turn += 1
            key = f"{self.name}-{number}-{turn}"
            response = None
            while response is None or response.status_code not in (200, 202):
                headers = {"Idempotency-Key": key}
                response = await _request(self.client, "POST", "/deliberations", json=COUNCIL, headers=headers)
                await asyncio.sleep(0 if response is not None and response.is_success else PAUSE_S)
            deliberation_id = response.json()["id"]
            self.accepted[key] = deliberation_id
            self.ends[deliberation_id] = await ended(self.client, deliberation_id)


async def _request(client: httpx.AsyncClient, method: str, path: str, **more: Any) -> httpx.Response | None:
    """Returns the response, or None when the connection broke, as after a kill."""
    try:
        response = await client.request(method, path, **more)
    except httpx.TransportError:
        return None
    assert response.status_code in (200, 202, 429, 503), response.text
    return response
