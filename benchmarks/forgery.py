"""`python -m benchmarks.forgery [--seconds 130] [--per-second 2000]`: floods the log with forged facts.

A gateway process serves one tenant over a nats-server without passwords. A stranger sends forged facts of its key and
its deliberation at a rate, half of them stored, half live alone. Every quarter of a second the run checks what the
gateway shows. Exits with 1 when a forged fact is believed, or when the p99 of /healthz exceeds 50 ms. With
`--without-log-key` only facts of keys are forged: those of deliberations are believed then.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import httpx
import nats
import nats.errors
from nats.aio.client import Client

from app.access.keys import SCOPES, KeyRevoked, Pepper, created, key_subject
from app.api.schemas import dump
from app.deliberation.facts import CancelRequested, Completed, Deleted, encode, prefix, suffix
from app.log.journal import JetStreamJournal
from app.log.seal import LogSeal
from app.log.stream_settings import StreamSettings
from app.log.streams import apply
from benchmarks.reconnects import gateway
from tests.conftest import NatsServer

PEPPER = "the pepper of the benchmark of forgeries"
LOG_KEY = "the log key of the benchmark of forgeries"
HEALTH_P99_MAX_MS = 50.0
TENANT = "acme"
_AT_ONCE = 20


@dataclass
class Attack:
    """One run: the forged records with their subjects, how many were sent and believed, and /healthz in ms."""

    forged: list[tuple[str, bytes]]
    sent: int = 0
    believed: list[str] = field(default_factory=list[str])
    checks: int = 0
    health_ms: list[float] = field(default_factory=list[float])

    async def send(self, stranger: Client, per_second: int, until_s: float) -> None:
        """Send forged facts in turn, every second one as a core message on its live subject."""
        began_s = time.monotonic()
        for number in count():
            if number % _AT_ONCE == 0:
                due_s = began_s + number / per_second
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                if time.monotonic() > until_s:
                    return
            subject, data = self.forged[number // 2 % len(self.forged)]
            headers = {"Nats-Sequence": str(10**6 + number)} if number % 2 else None
            await stranger.publish(f"live.{subject}" if number % 2 else subject, data, headers=headers)
            self.sent += 1

    async def check(self, client: httpx.AsyncClient, admin: str, reader: str, deliberation_id: str) -> None:
        """Compare what the gateway shows with what honest processes wrote."""
        read = {"Authorization": f"Bearer {reader}"}
        expected = {"/deliberations": 200, "/metrics": 403, f"/deliberations/{deliberation_id}": 200}
        for path, status in expected.items():
            response = await client.get(path, headers=read)
            if response.status_code != status:
                self.believed.append(f"{path} answered {response.status_code}")
            elif path == "/deliberations" and [each["id"] for each in response.json()["items"]] != [deliberation_id]:
                self.believed.append("the list has other deliberations")
            elif path.endswith(deliberation_id) and response.json()["status"] != "pending":
                self.believed.append(f"the deliberation is {response.json()['status']}")
        if (await client.get("/metrics", headers={"Authorization": f"Bearer {admin}"})).status_code != 200:
            self.believed.append("the admin's key is no admin's")
        self.checks += 1

    async def watch(self, client: httpx.AsyncClient, until_s: float, *of: str) -> None:
        """Check four times a second, and ask for /healthz twenty times a second."""
        while time.monotonic() < until_s:
            for _ in range(5):
                began_s = time.perf_counter()
                assert (await client.get("/healthz")).status_code == 200
                self.health_ms.append((time.perf_counter() - began_s) * 1_000)
                await asyncio.sleep(0.05)
            await self.check(client, *of)


def percentile(values: list[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


@asynccontextmanager
async def prepared(server: NatsServer, log_key: Path | None) -> AsyncGenerator[tuple[JetStreamJournal, Client]]:
    """An honest journal with declared streams, and a stranger's connection."""
    journal = await JetStreamJournal.connect(server.url, name="benchmark", seal=LogSeal.of_file(log_key))
    await apply(journal, StreamSettings())
    stranger = await nats.connect(server.url)
    yield journal, stranger
    await stranger.close()
    await journal.close()


async def attack(server: NatsServer, log_key: Path | None, seconds: float, per_second: int) -> Attack:
    """Run the gateway and the attack."""
    pepper, now = Pepper(PEPPER), datetime.now(UTC)
    async with prepared(server, log_key) as (journal, stranger):
        keys: list[str] = []
        facts = []
        for scopes in (SCOPES, ("read",)):
            fact, key = created(pepper, name="x", tenant=TENANT, scopes=scopes, created_at=now, expires_at=None)
            await journal.write(key_subject(fact), dump(fact))
            keys.append(key)
            facts.append(fact)
        promoted = facts[1].model_copy(update={"scopes": SCOPES, "tenant": "victim"})
        forged = [(key_subject(promoted), dump(promoted))]
        for fact in facts:
            gone = KeyRevoked(key_id=fact.key_id, revoked_at=now, seal=fact.seal)
            forged.append((key_subject(gone), dump(gone)))
        settings = {"KEY_PEPPER": PEPPER, "TENANT_REQUESTS_PER_MINUTE": "1000000"}
        async with gateway(server.url, **settings, **({"LOG_KEY_FILE": str(log_key)} if log_key else {})) as (_, port):
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                posted = await client.post(
                    "/deliberations",
                    json={"task": "Name a colour."},
                    headers={"Authorization": f"Bearer {keys[0]}"},
                )
                assert posted.status_code == 202, posted.text
                deliberation_id = str(posted.json()["id"])
                if log_key is not None:
                    for event in (Completed, CancelRequested, Deleted):
                        fact = event(deliberation_id=deliberation_id, ts=now)
                        forged.append((f"{prefix(TENANT, deliberation_id)}.{suffix(fact)}", encode(fact)))
                    accepted = (await journal.facts(TENANT, deliberation_id))[0].data
                    forged.append((f"{prefix(TENANT, 'forged')}.accepted", accepted))
                found, until_s = Attack(forged), time.monotonic() + seconds
                async with asyncio.TaskGroup() as group:
                    group.create_task(found.send(stranger, per_second, until_s))
                    group.create_task(found.watch(client, until_s, *keys, deliberation_id))
                await found.check(client, *keys, deliberation_id)
                return found


async def measure(seconds: float, per_second: int, *, sealed: bool) -> int:
    """Print the figures; returns 1 when a bound is exceeded."""
    with tempfile.TemporaryDirectory() as directory:
        log_key = Path(directory) / "log_key"
        log_key.write_text(LOG_KEY, encoding="utf-8")
        server = NatsServer(Path(directory) / "nats")
        server.start()
        try:
            found = await attack(server, log_key if sealed else None, seconds, per_second)
        finally:
            server.stop()
    p99_ms = percentile(found.health_ms, 0.99)
    figures = {
        "log_key": sealed,
        "seconds": seconds,
        "forged_sent": found.sent,
        "believed": len(found.believed),
        "checks": found.checks,
        "healthz_p50_ms": round(percentile(found.health_ms, 0.5), 1),
        "healthz_p99_ms": round(p99_ms, 1),
        "healthz_max_ms": round(max(found.health_ms), 1),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(figures))
    for line in found.believed[:5]:
        print(line, file=sys.stderr)
    return int(bool(found.believed) or p99_ms > HEALTH_P99_MAX_MS)


def main() -> None:
    """Measure; exits with 1 when a bound is exceeded."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=130)
    options.add_argument("--per-second", type=int, default=2_000)
    options.add_argument("--without-log-key", action="store_true")
    given = options.parse_args()
    sys.exit(asyncio.run(measure(given.seconds, given.per_second, sealed=not given.without_log_key)))


if __name__ == "__main__":
    main()
