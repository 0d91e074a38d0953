import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from app.routes import connections
from app.routes.connections import ConnectionTable
from tests.components.routes.listening import Gateway, listening
from tests.components.routes.raw_heads import REQUEST, UNFINISHED, forwarded_for, head
from tests.conditions import until


class Raw:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        return int(head[0].split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))

    async def is_closed(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True


@asynccontextmanager
async def connected(gateway: Gateway, source: str = "127.0.0.1") -> AsyncGenerator[Raw, None]:
    port = gateway.client.base_url.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    try:
        async with asyncio.timeout(10):
            yield Raw(reader, writer)
    finally:
        writer.close()


REFUSED = {
    "a value that never ends": (b"GET / HTTP/1.1\r\nX: " + b"v" * 200_000, 431, "head_too_large"),
    "a name that never ends": (b"GET / HTTP/1.1\r\n" + b"n" * 200_000, 431, "head_too_large"),
    "one header too many": (head(headers=101), 431, "head_too_large"),
    "many headers": (head(headers=5_000, value_bytes=2), 431, "head_too_large"),
    "headers above the bound in sum": (head(headers=99, value_bytes=700), 431, "head_too_large"),
    "a target that never ends": (b"GET /" + b"a" * 200_000, 414, "target_too_long"),
    "a target one byte too long": (head(target_bytes=8_193), 414, "target_too_long"),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400, "malformed_request"),
    "both lengths": (
        b"POST /deliberations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        "malformed_request",
    ),
}


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.replace(" ", "-"))
async def test_a_head_beyond_its_bounds_is_refused_with_a_problem_and_closed(case: str) -> None:
    sent, status, code = REFUSED[case]
    async with listening() as gateway, connected(gateway) as raw:
        raw.send(sent)
        answered, headers, body = await raw.answer()
        assert (answered, json.loads(body)["code"], json.loads(body)["status"]) == (status, code, status)
        assert headers["content-type"] == "application/problem+json"
        assert headers["connection"] == "close"
        assert await raw.is_closed()


@pytest.mark.parametrize(
    "sent", [head(headers=100), head(target_bytes=8_192), head(headers=60, value_bytes=1_000)], ids=len
)
async def test_a_head_within_its_bounds_reaches_a_route(sent: bytes) -> None:
    async with listening() as gateway, connected(gateway) as raw:
        for piece in (sent[:-10], sent[-10:]):
            raw.send(piece)
            await raw.writer.drain()
        assert (await raw.answer())[0] == 404


async def test_a_head_that_trickles_is_refused_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.2)
    async with listening() as gateway, connected(gateway) as raw:
        raw.send(b"GET / HTTP/1.1\r\nX: ")
        status, _, body = await raw.answer()
        assert (status, json.loads(body)["code"]) == (408, "head_timeout")
        assert await raw.is_closed()


@pytest.mark.parametrize("sent", [b"", b"\r\n"], ids=["nothing", "blank-lines"])
async def test_a_connection_without_a_head_is_closed_after_its_time(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.2)
    async with listening() as gateway, connected(gateway) as raw:
        raw.send(sent)
        assert await raw.is_closed()


async def test_a_second_head_that_trickles_is_refused_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.2)
    async with listening() as gateway, connected(gateway) as raw:
        raw.send(REQUEST + b"GET /hea")
        assert (await raw.answer())[0] == 200
        assert (await raw.answer())[0] == 408
        assert await raw.is_closed()


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_USER_TIMEOUT is Linux's")
async def test_a_connection_whose_answers_nobody_reads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 0.5)
    asking = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with listening() as gateway:
        with socket.create_connection(("127.0.0.1", gateway.client.base_url.port)) as unread:
            # More than both systems take.
            unread.sendall(asking * 40)
            opened = gateway.server.server_state.connections
            await until(lambda: len(opened) == 1)
            await until(lambda: not opened, 10)


async def test_a_body_may_be_larger_than_a_head() -> None:
    async with listening() as gateway, connected(gateway) as raw:
        body = b'{"task": "' + b"t" * 90_000 + b'"}'
        raw.send(b"POST /deliberations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        raw.send(b"Content-Length: %d\r\n\r\n" % len(body) + body + REQUEST)
        assert (await raw.answer())[0] not in (431, 414, 400)
        assert (await raw.answer())[0] == 200


async def test_an_idle_connection_gives_way_to_a_new_one() -> None:
    async with listening(connections_max=3) as gateway, connected(gateway) as oldest, connected(gateway):
        async with connected(gateway) as third, connected(gateway) as newest:
            assert await oldest.is_closed()
            for raw in (third, newest):
                raw.send(REQUEST)
                assert (await raw.answer())[0] == 200


async def test_a_client_at_its_bound_replaces_its_own_connections_alone() -> None:
    async with (
        listening(connections_per_client_max=1, forwarded_allow_ips="10.0.0.0/8") as gateway,
        connected(gateway) as other,
        connected(gateway, "127.0.0.2") as first,
        connected(gateway, "127.0.0.2"),
    ):
        assert await first.is_closed()
        other.send(REQUEST)
        assert (await other.answer())[0] == 200


def table_of(gateway: Gateway) -> ConnectionTable:
    return gateway.server.config.app.state.connections  # pyright: ignore


async def test_a_client_behind_a_proxy_is_bounded_in_its_requests_under_way() -> None:
    async with (
        listening(connections_per_client_max=1, forwarded_allow_ips="127.0.0.1") as gateway,
        connected(gateway) as busy,
        connected(gateway) as second,
        connected(gateway) as other,
        connected(gateway) as later,
    ):
        table = table_of(gateway)
        busy.send(forwarded_for("203.0.113.1", UNFINISHED) + b"{")
        async with asyncio.timeout(10):
            while table.idle != 3:
                await asyncio.sleep(0)
        # What the client wrote itself stands before what the proxy added.
        second.send(forwarded_for("203.0.113.9, 203.0.113.1"))
        status, _, body = await second.answer()
        assert (status, json.loads(body)["code"]) == (503, "too_many_connections")
        assert await second.is_closed()
        other.send(forwarded_for("203.0.113.1, 203.0.113.2"))
        assert (await other.answer())[0] == 200
        busy.send(b"       }")
        assert (await busy.answer())[0] == 422
        later.send(forwarded_for("203.0.113.1"))
        assert (await later.answer())[0] == 200


async def test_a_new_connection_is_refused_where_every_other_carries_a_request() -> None:
    async with listening(connections_max=1) as gateway, connected(gateway) as busy:
        busy.send(UNFINISHED + b"\r\n{")
        table = table_of(gateway)
        async with asyncio.timeout(10):
            while table.opened != 1 or table.idle:
                await asyncio.sleep(0)
        async with connected(gateway) as refused:
            status, headers, body = await refused.answer()
            assert (status, json.loads(body)["code"]) == (503, "too_many_connections")
            assert headers["retry-after"] == "2"
            assert await refused.is_closed()
        assert table.refused == {"too_many_connections": 1}
