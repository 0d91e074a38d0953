"""Attempts over real sockets: checked addresses, no redirects, bounded time, and no URL in logs or records."""

import asyncio
import random
import ssl
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from app.api.webhook_targets import Rules
from app.webhooks.sender.posting import AttemptOutcome, Poster, retry_after_seconds
from tests.components.webhooks.certificates import authority, server_context
from tests.components.webhooks.receiving import Behaviour, receiving

HEADERS = {"webhook-id": "dlv_1"}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Names:
    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.lookups: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.lookups.append((host, port))
        if not self.answers:
            raise OSError("no such name")
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@asynccontextmanager
async def posting(
    names: Names | None = None, *, listed: Sequence[str] = (), timeout_s: float = 5, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[Poster]:
    rules = Rules.of(range(1, 65_536), listed)
    async with Poster(rules, timeout_s=timeout_s, lookup=names, tls=tls) as poster:
        yield poster


async def answered(behaviour: Behaviour, *, timeout_s: float = 5) -> AttemptOutcome:
    async with receiving(behaviour) as receiver, posting(listed=["127.0.0.1"], timeout_s=timeout_s) as poster:
        return await poster.post(receiver.url("/hook?token=hidden"), HEADERS, b"{}")


def code(outcome: AttemptOutcome) -> str | None:
    return outcome.attempt.problem and outcome.attempt.problem.code


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_2xx_is_success(status: int) -> None:
    outcome = await answered(status)
    assert (outcome.attempt.status_code, outcome.attempt.succeeded) == (status, True)


@pytest.mark.parametrize("status", [300, 301, 400, 401, 404, 409, 410, 422, 429, 500, 502, 503, 504])
async def test_any_other_status_is_a_failure(status: int) -> None:
    outcome = await answered(status)
    assert (outcome.attempt.status_code, code(outcome)) == (status, "http_status")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_follows_no_redirect(status: int) -> None:
    async with receiving() as elsewhere:
        head = f"HTTP/1.1 {status} Moved\r\nLocation: {elsewhere.url()}\r\nContent-Length: 0\r\n\r\n"
        outcome = await answered(head.encode())
        assert (outcome.attempt.status_code, code(outcome)) == (status, "http_status")
        assert elsewhere.received == []


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        ("die", "connection_failed"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no_http"),
        (b"HTTP/1.1 99999 x\r\n\r\n", "no_http"),
        (b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 100_000 + b"\r\n\r\n", "no_http"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Many: x\r\n" * 10_000 + b"\r\n", "no_http"),
        ("hang", "timeout"),
        ("drip", "timeout"),
    ],
)
async def test_every_misbehaviour_ends_in_time_with_a_code(behaviour: Behaviour, expected: str) -> None:
    began_s = time.monotonic()
    outcome = await answered(behaviour, timeout_s=0.5)
    assert code(outcome) in (expected, "no_http" if behaviour == "drip" else expected)
    assert time.monotonic() - began_s < 4


async def test_does_not_read_the_body() -> None:
    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b"x" * 65_536
    outcome = await answered(endless)
    assert outcome.attempt.succeeded


async def test_a_name_without_address_is_a_failure() -> None:
    async with posting(Names()) as poster:
        assert code(await poster.post("https://nowhere.example/", HEADERS, b"{}")) == "name_unresolved"


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.1.2.3"],
        ["169.254.169.254"],
        ["::ffff:127.0.0.1"],
        ["fd00:ec2::254"],
        ["0.0.0.0"],
        ["93.184.215.14", "127.0.0.1"],
    ],
)
async def test_refuses_a_name_with_any_private_address(addresses: list[str]) -> None:
    async with receiving() as receiver, posting(Names(addresses)) as poster:
        outcome = await poster.post(receiver.url(host="hooks.example").replace("http:", "https:"), HEADERS, b"{}")
        assert code(outcome) == "address_refused"
        assert receiver.received == [] and receiver.open_max == 0


async def test_connects_to_the_checked_address_despite_dns_rebinding(tmp_path: Path) -> None:
    """The first answer is checked and connected to; there is no second lookup."""
    tls = authority(tmp_path)
    async with receiving(tls=server_context(tls, "hooks.example")) as receiver:
        names = Names(["127.0.0.1"], ["10.0.0.1"])
        async with posting(names, listed=["hooks.example"], tls=tls.client_context()) as poster:
            outcome = await poster.post(receiver.url(host="hooks.example"), HEADERS, b"{}")
    assert outcome.attempt.succeeded
    assert names.lookups == [("hooks.example", receiver.port)]


async def test_checks_the_addresses_at_each_attempt() -> None:
    names = Names(["203.0.113.1"], ["127.0.0.1"])
    async with receiving() as receiver, posting(names, timeout_s=1) as poster:
        for _ in range(2):
            outcome = await poster.post(receiver.url(host="hooks.example").replace("http:", "https:"), HEADERS, b"{}")
            assert code(outcome) == "address_refused"
    assert len(names.lookups) == 2


async def test_the_certificate_must_match_the_host_name(tmp_path: Path) -> None:
    tls = authority(tmp_path)
    async with receiving(tls=server_context(tls, "other.example")) as receiver:
        async with posting(Names(["127.0.0.1"]), listed=["hooks.example"], tls=tls.client_context()) as poster:
            assert code(await poster.post(receiver.url(host="hooks.example"), HEADERS, b"{}")) == "tls_failed"
    assert receiver.received == []


async def test_refuses_an_untrusted_certificate(tmp_path: Path) -> None:
    async with receiving(tls=server_context(authority(tmp_path), "hooks.example")) as receiver:
        async with posting(Names(["127.0.0.1"]), listed=["hooks.example"]) as poster:
            assert code(await poster.post(receiver.url(host="hooks.example"), HEADERS, b"{}")) == "tls_failed"


async def test_sends_host_headers_and_body_unchanged(tmp_path: Path) -> None:
    tls = authority(tmp_path)
    body = '{"text":"é"}'.encode()
    async with receiving(tls=server_context(tls, "hooks.example")) as receiver:
        async with posting(Names(["127.0.0.1"]), listed=["hooks.example"], tls=tls.client_context()) as poster:
            await poster.post(receiver.url("/a%2Fb?c=%20d", host="hooks.example"), HEADERS, body)
    (request,) = receiver.received
    assert (request.path, request.body) == ("/a%2Fb?c=%20d", body)
    assert request.headers["host"] == f"hooks.example:{receiver.port}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["webhook-id"] == "dlv_1"
    assert "cookie" not in request.headers and "authorization" not in request.headers


async def test_ignores_proxies_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as proxy, receiving() as receiver:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url(""))
        async with posting(listed=["127.0.0.1"]) as poster:
            assert (await poster.post(receiver.url(), HEADERS, b"{}")).attempt.succeeded
        assert proxy.received == []


async def test_keeps_no_cookie() -> None:
    answer = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
    async with receiving(answer) as receiver, posting(listed=["127.0.0.1"]) as poster:
        for _ in range(2):
            await poster.post(receiver.url(), HEADERS, b"{}")
        assert [request.headers.get("cookie") for request in receiver.received] == [None, None]


async def test_neither_logs_nor_records_path_and_query() -> None:
    with structlog.testing.capture_logs() as logged:
        outcomes = [await answered(behaviour, timeout_s=0.3) for behaviour in (200, 500, "die", "hang")]
    assert "hidden" not in repr(logged) + repr(outcomes)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("120", 120),
        ("0", 0),
        ("-1", None),
        ("soon", None),
        ("١٢", None),
        ("9" * 400, 9_999_999_999),
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(header, NOW) == seconds


async def test_any_bytes_in_the_answer_give_an_outcome() -> None:
    """An exception instead of an outcome would leave the item in the queue for ever, without a record."""
    draw = random.Random(11)
    answer = bytearray(b"HTTP/1.1 503 Busy\r\nRetry-After: Thu, 01 Jan 2026 00:01:00 GMT\r\nContent-Length: 0\r\n\r\n")
    async with receiving() as receiver, posting(listed=["127.0.0.1"], timeout_s=10) as poster:

        async def attempt(number: int) -> AttemptOutcome:
            mutated = bytearray(answer)
            for _ in range(draw.randrange(1, 6)):
                mutated[draw.randrange(len(mutated))] = draw.randrange(256)
            receiver.script[f"/{number}"].append(bytes(mutated))
            return await poster.post(receiver.url(f"/{number}"), HEADERS, b"{}")

        outcomes = [
            outcome
            for begin in range(0, 300, 30)
            for outcome in await asyncio.gather(*(attempt(number) for number in range(begin, begin + 30)))
        ]
    assert {code(outcome) for outcome in outcomes} >= {"http_status", "no_http"}
    assert len(receiver.received) == 300


async def test_closes_the_connection_of_every_attempt() -> None:
    async with receiving() as receiver, posting(listed=["127.0.0.1"]) as poster:
        outcomes = await asyncio.gather(*(poster.post(receiver.url(), HEADERS, b"{}") for _ in range(300)))
        assert all(outcome.attempt.succeeded for outcome in outcomes)
        async with asyncio.timeout(5):
            while receiver.open:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://xn--bcher-kva.example/x", "xn--bcher-kva.example"),
        ("HTTPS://XN--BCHER-KVA.Example/x", "xn--bcher-kva.example"),
        ("https://xn--a.example/x", "xn--a.example"),
    ],
)
async def test_a_host_in_punycode_is_looked_up_as_it_is_spelt(url: str, host: str) -> None:
    names = Names()
    async with posting(names) as poster:
        assert code(await poster.post(url, HEADERS, b"{}")) == "name_unresolved"
    assert names.lookups == [(host, 443)]


async def test_a_host_in_punycode_receives_its_own_name() -> None:
    async with receiving(200) as receiver, posting(Names(["127.0.0.1"]), listed=["xn--bcher-kva.test"]) as poster:
        port = receiver.url("/").rsplit(":", 1)[1].rstrip("/")
        outcome = await poster.post(f"http://xn--bcher-kva.test:{port}/hook", HEADERS, b"{}")
    assert outcome.attempt.succeeded
