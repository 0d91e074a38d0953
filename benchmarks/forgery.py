"""`python -m benchmarks.forgery [STRANGER ...] [--seconds 130] [--per-second 2000]`: floods the log with forged facts.

A gateway process serves one tenant. A stranger sends forged facts of its key and its deliberation at a rate, half of
them to be stored, half live alone. Every quarter of a second the run checks what the gateway shows. There is a run for
each stranger:

open     nats-server has no users: anyone may write
none     nats-server has the users of `deliberate up`; the stranger has no credentials and connects again and again
monitor  the same server; the stranger has the credentials of the user with the fewest rights, and so for each user

Without strangers the runs are `open`, `none`, `monitor` and `keys`, the user that may write facts of keys. Exits with 1
when a forged fact is believed, or when the p99 of /healthz exceeds 50 ms. With `--without-log-key` only facts of keys
are forged: without users, those of deliberations are believed then.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import nats

from app.access.keys import SCOPES, KeyCreated, KeyRevoked, Pepper, Scope, created, key_subject
from app.api.schemas import dump
from app.cli.stack.children import write_nats_config
from app.cli.stack.layout import NATS_USERS, StackOptions, plan_stack
from app.deliberation.facts import CancelRequested, Completed, Deleted, encode, prefix, suffix
from app.log.connection import login, server_url
from app.log.journal import JetStreamJournal
from app.log.signature import LogSigner
from app.log.stream_settings import KEYS_STREAM, STREAM, StreamSettings
from app.log.streams import apply
from benchmarks.reconnects import gateway
from tests.conftest import NATS_SERVER, NatsServer

PEPPER = "the pepper of the benchmark of forgeries"
LOG_KEY = "the log key of the benchmark of forgeries"
HEALTH_P99_MAX_MS = 50.0
TENANT = "acme"
STRANGERS = ("open", "none", *NATS_USERS)
_AT_ONCE = 20
# The two keys and the deliberation.
_HONEST_RECORDS = 3

UrlOf = Callable[[str], str]
"""The URL of nats-server for a user."""
Forged = tuple[str, bytes]
Message = tuple[str, bytes, dict[str, str] | None]
Send = Callable[[Sequence[Message]], Awaitable[None]]


@dataclass
class Attack:
    """One run: the forged records with their subjects, how many were sent, refused by nats-server, stored and believed.

    `health_ms` are the durations of /healthz.
    """

    forged: list[Forged]
    sent: int = 0
    refused: int = 0
    stored: int = 0
    believed: list[str] = field(default_factory=list[str])
    checks: int = 0
    health_ms: list[float] = field(default_factory=list[float])

    async def send(self, send: Send, per_second: int, until_s: float) -> None:
        """Send forged facts in turn, every second one as a core message on its live subject."""
        began_s = time.monotonic()
        for number in count(step=_AT_ONCE):
            await asyncio.sleep(max(0.0, began_s + number / per_second - time.monotonic()))
            if time.monotonic() > until_s:
                return
            await send([self._message(each) for each in range(number, number + _AT_ONCE)])
            self.sent += _AT_ONCE

    def _message(self, number: int) -> Message:
        subject, data = self.forged[number // 2 % len(self.forged)]
        if number % 2 == 0:
            return subject, data, None
        return f"live.{subject}", data, {"Nats-Sequence": str(10**6 + number)}

    async def check(self, client: httpx.AsyncClient, admin: str, reader: str, deliberation_id: str) -> None:
        """Compare what the gateway shows with what honest processes wrote."""
        read = {"Authorization": f"Bearer {reader}"}
        expected = {"/metrics": 403, f"/deliberations/{deliberation_id}": 200}
        for path, status in expected.items():
            response = await client.get(path, headers=read)
            if response.status_code != status:
                self.believed.append(f"{path} answered {response.status_code}")
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


@contextmanager
def server_without_users(directory: Path) -> Generator[UrlOf]:
    """A nats-server that asks for no credentials."""
    server = NatsServer(directory / "nats")
    server.start()
    try:
        yield lambda _: server.url
    finally:
        server.stop()


@contextmanager
def server_with_users(directory: Path) -> Generator[UrlOf]:
    """A nats-server with the configuration of `deliberate up`."""
    layout = plan_stack(StackOptions(data_dir=directory, nats_port=0), lambda _: None)
    (directory / "nats").mkdir()
    command = [NATS_SERVER, "-c", write_nats_config(layout, directory / "nats")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield layout.nats_url_of
    finally:
        process.terminate()
        process.wait(timeout=10)


@asynccontextmanager
async def with_credentials(url: str, found: Attack) -> AsyncGenerator[Send]:
    """Publish on one connection, and count what the server refuses."""

    async def refused(error: Exception) -> None:
        found.refused += "permissions violation" in str(error).lower()

    server, credentials = login(url)
    client = await nats.connect(server, error_cb=refused, **credentials)

    async def send(messages: Sequence[Message]) -> None:
        for subject, data, headers in messages:
            await client.publish(subject, data, headers=headers)

    yield send
    await client.flush()
    await client.close()


@asynccontextmanager
async def without_credentials(url: str, found: Attack) -> AsyncGenerator[Send]:
    """Open a connection for each batch of messages, and send them before the server can refuse it."""
    address = urlsplit(server_url(url))

    async def send(messages: Sequence[Message]) -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        published = (b"PUB %b %d\r\n%b\r\n" % (each[0].encode(), len(each[1]), each[1]) for each in messages)
        writer.write(b'CONNECT {"verbose":false}\r\n' + b"".join(published))
        try:
            answer = await reader.read()
        except ConnectionResetError:
            # The server closed it before it had read everything.
            answer = b"-ERR"
        found.refused += len(messages) if b"-ERR" in answer else 0
        writer.transport.abort()

    yield send


@asynccontextmanager
async def journal_of(url: str, log_key: Path | None) -> AsyncGenerator[JetStreamJournal]:
    """The journal of an honest process."""
    journal = await JetStreamJournal.connect(url, name="benchmark", signer=LogSigner.of_file(log_key))
    yield journal
    await journal.close()


async def attack(url_of: UrlOf, stranger: str, log_key: Path | None, seconds: float, per_second: int) -> Attack:
    """Run the gateway and the attack."""
    pepper, now = Pepper(PEPPER), datetime.now(UTC)
    settings = {"KEY_PEPPER": PEPPER, "TENANT_REQUESTS_PER_MINUTE": "1000000"}
    settings |= {"LOG_KEY_FILE": str(log_key)} if log_key else {}
    keys: list[str] = []
    facts: list[KeyCreated] = []
    async with AsyncExitStack() as opened:
        await apply(await opened.enter_async_context(journal_of(url_of("streams"), log_key)), StreamSettings())
        writer = await opened.enter_async_context(journal_of(url_of("keys"), log_key))
        rights: tuple[tuple[Scope, ...], ...] = (SCOPES, ("read",))
        for scopes in rights:
            fact, key = created(pepper, name="x", tenant=TENANT, scopes=scopes, created_at=now, expires_at=None)
            await writer.write(key_subject(fact), dump(fact))
            keys.append(key)
            facts.append(fact)
        _, port = await opened.enter_async_context(gateway(url_of("gateway"), **settings))
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30)
        await opened.enter_async_context(client)
        body, headers = {"task": "Name a colour."}, {"Authorization": f"Bearer {keys[0]}"}
        posted = await client.post("/deliberations", json=body, headers=headers)
        assert posted.status_code == 202, posted.text
        deliberation_id = str(posted.json()["id"])
        reader = await opened.enter_async_context(journal_of(url_of("gateway"), log_key))
        found = Attack(forged_keys(facts, now))
        if log_key is not None or stranger != "open":
            accepted = (await reader.facts(TENANT, deliberation_id))[0].data
            found.forged += forged_facts(deliberation_id, now, accepted)
        way = without_credentials if stranger == "none" else with_credentials
        send = await opened.enter_async_context(way(url_of("gateway" if stranger == "none" else stranger), found))
        (admin, read_only), until_s = keys, time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(found.send(send, per_second, until_s))
            group.create_task(found.watch(client, until_s, admin, read_only, deliberation_id))
        await found.check(client, admin, read_only, deliberation_id)
        infos = [await reader.request(f"$JS.API.STREAM.INFO.{stream}") for stream in (STREAM, KEYS_STREAM)]
        found.stored = sum(info["state"]["messages"] for info in infos) - _HONEST_RECORDS
        return found


def forged_keys(facts: Sequence[KeyCreated], now: datetime) -> list[Forged]:
    """A key of another tenant with all rights, and revocations."""
    promoted = facts[1].model_copy(update={"scopes": SCOPES, "tenant": "victim"})
    gone = [KeyRevoked(key_id=fact.key_id, revoked_at=now, signature=fact.signature) for fact in facts]
    return [(key_subject(fact), dump(fact)) for fact in (promoted, *gone)]


def forged_facts(deliberation_id: str, now: datetime, accepted: bytes) -> list[Forged]:
    """An end, a cancel and a deletion, and another deliberation."""
    facts = [event(deliberation_id=deliberation_id, ts=now) for event in (Completed, CancelRequested, Deleted)]
    found = [(f"{prefix(TENANT, deliberation_id)}.{suffix(fact)}", encode(fact)) for fact in facts]
    return [*found, (f"{prefix(TENANT, 'forged')}.accepted", accepted)]


async def measure(stranger: str, seconds: float, per_second: int, *, signed: bool) -> int:
    """Print the figures of one stranger; returns 1 when a bound is exceeded."""
    with tempfile.TemporaryDirectory() as directory:
        log_key = Path(directory) / "benchmark_log_key"
        log_key.write_text(LOG_KEY, encoding="utf-8")
        server = server_without_users if stranger == "open" else server_with_users
        with server(Path(directory)) as url_of:
            found = await attack(url_of, stranger, log_key if signed else None, seconds, per_second)
    p99_ms = percentile(found.health_ms, 0.99)
    figures = {
        "stranger": stranger,
        "log_key": signed,
        "seconds": seconds,
        "forged_sent": found.sent,
        "refused_by_nats": found.refused,
        "stored": found.stored,
        "believed": len(found.believed),
        "checks": found.checks,
        "healthz_p50_ms": round(percentile(found.health_ms, 0.5), 1),
        "healthz_p99_ms": round(p99_ms, 1),
        "healthz_max_ms": round(max(found.health_ms), 1),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(figures), flush=True)
    for line in found.believed[:5]:
        print(line, file=sys.stderr)
    return int(bool(found.believed) or p99_ms > HEALTH_P99_MAX_MS)


def main() -> None:
    """Measure each stranger; exits with 1 when a bound is exceeded."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("strangers", nargs="*", metavar="STRANGER", help=", ".join(STRANGERS))
    options.add_argument("--seconds", type=float, default=130)
    options.add_argument("--per-second", type=int, default=2_000)
    options.add_argument("--without-log-key", action="store_true")
    given = options.parse_args()
    if unknown := set(given.strangers) - set(STRANGERS):
        options.error(f"unknown stranger {', '.join(unknown)}; choose from {', '.join(STRANGERS)}")
    signed = not given.without_log_key
    strangers = given.strangers or ["open", "none", "monitor", "keys"]
    found = [asyncio.run(measure(stranger, given.seconds, given.per_second, signed=signed)) for stranger in strangers]
    sys.exit(max(found))


if __name__ == "__main__":
    main()
