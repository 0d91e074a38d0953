import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest

from app.log.journal import JetStreamJournal
from benchmarks.reconnects import gateway
from tests.conftest import NatsServer

CSRF = ("Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors")


@dataclass(frozen=True)
class Victim:
    port: int
    id: str
    journal: JetStreamJournal

    async def send(self, request: bytes) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        async with asyncio.timeout(10):
            line = await reader.readline()
        writer.close()
        return int(line.split()[1]) if line else 0

    async def post(self, *headers: str, target: str | None = None, host: str | None = "") -> int:
        named = [] if host is None else [f"Host: {host or f'127.0.0.1:{self.port}'}"]
        head = [f"POST {target or self.path} HTTP/1.1", *named, *headers, "Content-Length: 0", "", ""]
        return await self.send("\r\n".join(head).encode("latin-1"))

    @property
    def path(self) -> str:
        return f"/deliberations/{self.id}/cancel"

    async def cancelled(self) -> bool:
        return any(fact.tokens[-1] == "cancel" for fact in await self.journal.facts("default", self.id))


@pytest.fixture(scope="module")
async def port(nats_server: NatsServer, jetstream_journal: JetStreamJournal) -> AsyncIterator[int]:
    async with gateway(nats_server.url, LOG_LEVEL="error") as (_, listening):
        yield listening


@pytest.fixture
async def victim(port: int, jetstream_journal: JetStreamJournal) -> Victim:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        accepted = await client.post("/deliberations", json={"task": "Name a colour."})
    assert accepted.status_code == 202, accepted.text
    return Victim(port, accepted.json()["id"], jetstream_journal)


@pytest.mark.parametrize(
    "headers",
    [
        CSRF,
        ("Origin: null",),
        ("Origin: x://127.0.0.1:{port}",),
        ("Origin: https://127.0.0.1:{port}",),
        ("Origin: http://127.0.0.1",),
        ("Origin: http://localhost:{port}",),
        ("Origin: http://127.0.0.1:{port}@evil.example",),
        ("Origin: http://127.0.0.1:{port}.evil.example",),
        ("Origin: http://127.0.0.1:{port}", "Origin: https://evil.example"),
        ("Origin: http://127.0.0.1:{port}", "Sec-Fetch-Site: cross-site"),
        ("Origin: http://127.0.0.1:{port}", "Sec-Fetch-Site: same-site"),
        ("Sec-Fetch-Site: none",),
        ("Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"),
        (*CSRF, "X-Forwarded-Host: evil.example", "X-Forwarded-Proto: https"),
        (*CSRF, "Authorization: Bearer dlb_anything"),
        (*CSRF, "X-HTTP-Method-Override: GET"),
    ],
)
async def test_a_page_of_another_site_cancels_nothing(victim: Victim, headers: tuple[str, ...]) -> None:
    assert await victim.post(*(header.replace("{port}", str(victim.port)) for header in headers)) == 403
    assert not await victim.cancelled()


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:{port}", "localhost.evil.com:{port}", "127.0.0.1.nip.io:{port}", "gateway:{port}",
        "localhost.:{port}", "evil.example@localhost", "0.0.0.0:{port}", "127.1:{port}", "[::ffff:7f00:2]x", "\xe9",
    ],
)  # fmt: skip
async def test_a_rebound_name_reaches_nothing(victim: Victim, host: str) -> None:
    named = host.replace("{port}", str(victim.port))
    assert await victim.post(f"Origin: http://{named}", "Sec-Fetch-Site: same-origin", host=named) == 400
    head = f"GET /deliberations HTTP/1.1\r\nHost: {named}\r\n\r\n"
    assert await victim.send(head.encode("latin-1")) == 400
    assert not await victim.cancelled()


async def test_two_hosts_and_none_are_refused(victim: Victim) -> None:
    assert await victim.post("Host: evil.example") == 400
    assert await victim.post("Host: localhost", host="evil.example") == 400
    assert await victim.post(host=None) == 400
    assert await victim.send(b"GET /deliberations HTTP/1.0\r\n\r\n") == 400
    assert not await victim.cancelled()


@pytest.mark.parametrize("authority", ["evil.example", "evil.example@localhost", "localhost.evil.example", "gateway"])
async def test_a_target_in_absolute_form_names_the_host(victim: Victim, authority: str) -> None:
    """RFC 9112, 3.2.2: its host replaces the Host header, which must not hide it."""
    assert await victim.post(target=f"http://{authority}{victim.path}") == 400
    assert await victim.post(target=f"HTTP://{authority}{victim.path}") == 400
    own = f"http://localhost:{victim.port}{victim.path}"
    assert await victim.post("Origin: http://127.0.0.1", target=own) == 403
    assert not await victim.cancelled()


@pytest.mark.parametrize("target", ["//evil.example/deliberations", "evil.example:80", "*", "http://", "http:///x"])
async def test_an_odd_target_is_no_server_error(victim: Victim, target: str) -> None:
    assert await victim.post(target=target) in (0, 400, 404, 405)
    assert not await victim.cancelled()


@pytest.mark.parametrize("site", [(), ("Origin: http://127.0.0.1:{port}", "Sec-Fetch-Site: same-origin")])
async def test_its_own_page_and_other_clients_cancel(victim: Victim, site: tuple[str, ...]) -> None:
    assert await victim.post(*(header.replace("{port}", str(victim.port)) for header in site)) == 202
    assert await victim.cancelled()


async def test_absolute_form_with_its_own_name_is_answered(victim: Victim) -> None:
    assert await victim.post(target=f"http://LOCALHOST:{victim.port}{victim.path}", host="evil.example") == 202


async def test_a_preflight_of_another_site_permits_nothing(victim: Victim) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{victim.port}") as client:
        asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        for path in (victim.path, "/deliberations", "/v1/chat/completions"):
            answered = await client.options(path, headers=asked)
            assert answered.status_code == 405
            assert not [name for name in answered.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
async def test_a_form_starts_nothing(victim: Victim, media: str) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{victim.port}") as client:
        form = await client.post("/deliberations", content='{"task": "x"}', headers={"Content-Type": media})
        assert form.status_code == 415
