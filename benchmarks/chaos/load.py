"""The load: each client keeps one deliberation in flight and retries with the same key until it is accepted."""

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from benchmarks.chaos.files import FILE_SHARE, FileRecords, LoadFile, load_files, own_file

STRATEGIES: tuple[dict[str, Any], ...] = (
    {"strategy": "council", "num_agents": 3, "rounds": 1},
    {"strategy": "best_of_n", "num_agents": 3},
    {"strategy": "independent", "num_agents": 3},
)
ROLE_NAMES = ("DEV", "QA")
CANCELLED_SHARE = 0.05
# Success; ended before its cancellation; the proxy cut a body; overload; the log is unavailable.
EXPECTED = frozenset({200, 201, 202, 204, 408, 409, 429, 503})
PAUSE_S = 0.3
PAUSE_MAX_S = 2.0
WAIT_S = 20


@dataclass
class Load:
    """`clients` closed loops against the gateway at `url`, until `enough` is set.

    `promised` are the ids that were accepted, `pending` those of them without an end that a client has seen. Some name
    a file, of which some are deleted after their end; `files` records these.
    """

    url: str
    clients: int
    seed: int
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    promised: set[str] = field(default_factory=set[str])
    pending: set[str] = field(default_factory=set[str])
    files: FileRecords = field(default_factory=FileRecords)

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
        rng, files = random.Random(f"{self.seed}/{number}"), load_files(self.seed)
        turn = 0
        while not self.enough.is_set():
            turn += 1
            body = {"task": f"Task {number}.{turn}", "seed": turn, "role": rng.choice(ROLE_NAMES)}
            body |= rng.choice(STRATEGIES)
            file = rng.choice(files) if rng.random() < FILE_SHARE else None
            deliberation_id = await self._submitted(client, body, f"chaos-{self.seed}-{number}-{turn}", file)
            if deliberation_id is None:
                return
            self.pending.add(deliberation_id)
            if rng.random() < CANCELLED_SHARE:
                await asyncio.sleep(rng.random())
                await self._request(client, "POST", f"/deliberations/{deliberation_id}/cancel", json={})
            await self._ended(client, deliberation_id)
            self.pending.discard(deliberation_id)
            if file is not None and file.goes:
                self.files.deleting.add(deliberation_id)
                await self._deleted(client, f"/deliberations/{deliberation_id}", file)
                self.files.deleted.add(deliberation_id)
            if rng.random() < FILE_SHARE / 2:
                own = own_file(f"{self.seed}/{number}/{turn}")
                if await self._uploaded(client, own):
                    await self._deleted(client, f"/files/{own.id}", own)

    async def _submitted(
        self, client: httpx.AsyncClient, body: dict[str, Any], key: str, file: LoadFile | None
    ) -> str | None:
        """The id once the gateway has accepted; None when the run ends before that."""
        headers = {"Idempotency-Key": key}
        if file is not None:
            if not await self._uploaded(client, file):
                return None
            body = {**body, "evidence": [{"id": "file", "title": "A file", "file": file.id}]}
        while not self.enough.is_set():
            response = await self._request(client, "POST", "/deliberations", json=body, headers=headers)
            if response is not None and response.status_code in (200, 202):
                deliberation_id: str = response.json()["id"]
                self.promised.add(deliberation_id)
                if file is not None:
                    self.files.named[deliberation_id] = file.sha256
                return deliberation_id
            if response is not None and response.status_code == 422 and file is not None:
                # The last deliberation that named it was deleted since the upload.
                await self._uploaded(client, file)
                continue
            await self._pause(response)
        if file is not None:
            self.files.doubtful.add(file.sha256)
        return None

    async def _pause(self, response: httpx.Response | None) -> None:
        # Shorter than a long Retry-After, to keep enough deliberations in flight.
        asked_s = 0 if response is None else float(response.headers.get("Retry-After", 0))
        await asyncio.sleep(min(max(PAUSE_S, asked_s), PAUSE_MAX_S))

    async def _uploaded(self, client: httpx.AsyncClient, file: LoadFile) -> bool:
        """Whether the file is stored; False when the run ends before that."""
        while not self.enough.is_set():
            sent_at_s = time.monotonic()
            upload = {"file": ("notes.txt", file.content, "text/plain")}
            response = await self._request(client, "POST", "/files", files=upload)
            if response is not None and response.status_code == 201:
                self.files.uploaded(file.sha256, sent_at_s, time.monotonic())
                return True
            if response is None:
                # It may be stored later, after a deletion too.
                self.files.doubtful.add(file.sha256)
            await self._pause(response)
        return False

    async def _deleted(self, client: httpx.AsyncClient, path: str, file: LoadFile) -> None:
        """Delete what keeps a file, or the file itself; 404 is the answer where an earlier one was lost."""
        while True:
            sent_at_s = time.monotonic()
            response = await self._request(client, "DELETE", path)
            if response is not None and response.status_code in (204, 404):
                self.files.removed(file.sha256, sent_at_s, time.monotonic())
                return
            await self._pause(response)

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
        if response.status_code not in EXPECTED and not _says_deleted(method, response):
            raise AssertionError(f"{method} {path}: {response.status_code} {response.text}")
        return response


def _says_deleted(method: str, response: httpx.Response) -> bool:
    """Whether a file that the request names, or the file itself, is deleted already."""
    if method == "DELETE":
        return response.status_code == 404
    return response.status_code == 422 and {fault["code"] for fault in response.json()["errors"]} == {"unknown_file"}
