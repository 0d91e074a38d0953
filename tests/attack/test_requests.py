import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import chain

import pytest

from app.api.request_body import BODY_TIMEOUT_S, READ_BYTES_MAX
from app.routes.connections import SENT_BODY_BYTES_MAX
from tests.attack.gateways import HIDDEN, Answer, Gateway, send

POST = b"POST /deliberations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(HIDDEN)
SHORT = b"Content-Length: 5\r\n"
EMPTY = b"\r\n0\r\n\r\n"
HIDDEN_IN_BODY = b"\r\n" + HIDDEN

# Each is answered with an error and a closed connection, so that what follows is never read as a request.
REFUSED = {
    "both lengths": POST + b"Content-Length: 6\r\n" + CHUNKED + EMPTY + HIDDEN,
    "both lengths, chunked first": POST + CHUNKED + b"Content-Length: %d\r\n" % (5 + len(HIDDEN)) + EMPTY + HIDDEN,
    "two lengths": POST + b"Content-Length: 0\r\n" + LENGTH + HIDDEN_IN_BODY,
    "two equal lengths": POST + LENGTH + LENGTH + HIDDEN_IN_BODY,
    "a list of lengths": POST + b"Content-Length: 0, %d\r\n" % len(HIDDEN) + HIDDEN_IN_BODY,
    "a signed length": POST + b"Content-Length: +%d\r\n" % len(HIDDEN) + HIDDEN_IN_BODY,
    "a negative length": POST + b"Content-Length: -1\r\n" + HIDDEN_IN_BODY,
    "a hexadecimal length": POST + b"Content-Length: 0x10\r\n" + HIDDEN_IN_BODY,
    "a length with underscores": POST + b"Content-Length: 1_0\r\n" + HIDDEN_IN_BODY,
    "a length with a space": POST + b"Content-Length: 1 0\r\n" + HIDDEN_IN_BODY,
    "an empty length": POST + b"Content-Length: \r\n" + HIDDEN_IN_BODY,
    "a length beyond 64 bits": POST + b"Content-Length: 18446744073709551617\r\n" + HIDDEN_IN_BODY,
    "a length with a space before its colon": POST + b"Content-Length : %d\r\n" % len(HIDDEN) + HIDDEN_IN_BODY,
    "xchunked": POST + b"Transfer-Encoding: xchunked\r\n" + LENGTH + HIDDEN_IN_BODY,
    "xchunked without a length": POST + b"Transfer-Encoding: xchunked\r\n" + EMPTY + HIDDEN,
    "chunked, identity": POST + b"Transfer-Encoding: chunked, identity\r\n" + EMPTY + HIDDEN,
    "identity, chunked": POST + b"Transfer-Encoding: identity, chunked\r\n" + EMPTY + HIDDEN,
    "gzip, chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n" + EMPTY + HIDDEN,
    "chunked, chunked": POST + b"Transfer-Encoding: chunked, chunked\r\n" + EMPTY + HIDDEN,
    "chunked before identity": POST + CHUNKED + b"Transfer-Encoding: identity\r\n" + EMPTY + HIDDEN,
    "chunked after identity": POST + b"Transfer-Encoding: identity\r\n" + CHUNKED + EMPTY + HIDDEN,
    "chunked twice": POST + CHUNKED + CHUNKED + EMPTY + HIDDEN,
    "quoted": POST + b'Transfer-Encoding: "chunked"\r\n' + SHORT + EMPTY + HIDDEN,
    "a vertical tab": POST + b"Transfer-Encoding:\x0bchunked\r\n" + SHORT + EMPTY + HIDDEN,
    "a zero byte": POST + b"Transfer-Encoding: chunked\x00\r\n" + SHORT + EMPTY + HIDDEN,
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\n" + SHORT + EMPTY + HIDDEN,
    "a space before the name": POST + b" Transfer-Encoding: chunked\r\n" + SHORT + EMPTY + HIDDEN,
    "a coding in a folded line": POST + b"Transfer-Encoding:\r\n chunked\r\n" + SHORT + EMPTY + HIDDEN,
    "a coding after a bare CR": POST + b"X: a\r" + CHUNKED + SHORT + EMPTY + HIDDEN,
    "a coding after a bare LF": POST + b"X: a\n" + CHUNKED + SHORT + EMPTY + HIDDEN,
    "chunked in HTTP/1.0": POST.replace(b"/1.1", b"/1.0") + CHUNKED + EMPTY + HIDDEN,
    "chunked in HTTP/1.0 that stays open": POST.replace(b"/1.1", b"/1.0")
    + b"Connection: keep-alive\r\n"
    + CHUNKED
    + EMPTY
    + HIDDEN,
    "a folded line": GET + b"X: a\r\n b\r\n\r\n" + HIDDEN,
    "lines that end in LF": POST.replace(b"\r", b"") + LENGTH.replace(b"\r", b"") + b"\n" + HIDDEN,
    "a CR within a line": GET + b"X: a\r\r\n\r\n" + HIDDEN,
    "a zero byte in a value": GET + b"X: a\x00b\r\n\r\n" + HIDDEN,
    "a header without a name": GET + b": a\r\n\r\n" + HIDDEN,
    "a chunk that ends in LF": POST + CHUNKED + b"\r\n2\n{}\n0\n\n" + HIDDEN,
    "a chunk's extension that ends in LF": POST + CHUNKED + b"\r\n2;a\n{}\r\n0\r\n\r\n" + HIDDEN,
    "a chunk's extension with a CR": POST + CHUNKED + b"\r\n2;a\rb\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "a chunk without its end": POST + CHUNKED + b"\r\n2\r\n{}xx0\r\n\r\n" + HIDDEN,
    "a chunk beyond 64 bits": POST + CHUNKED + b"\r\n10000000000000002\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "a negative chunk": POST + CHUNKED + b"\r\n-2\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "a chunk in 0x": POST + CHUNKED + b"\r\n0x2\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "a chunk with a space": POST + CHUNKED + b"\r\n2 \r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "a trailer with a length": POST + CHUNKED + b"\r\n2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n" + HIDDEN,
    "two hosts": GET + b"Host: evil.example\r\n\r\n" + HIDDEN,
    "two equal hosts": GET + b"Host: localhost\r\n\r\n" + HIDDEN,
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n" + HIDDEN,
    "HTTP/0.9": b"GET /healthz\r\n\r\n" + HIDDEN,
    "HTTP/0.9 in a target with a LF": b"GET /healthz\nX: HTTP/1.1\r\nHost: localhost\r\n\r\n" + HIDDEN,
    "HTTP/1.2": GET.replace(b"/1.1", b"/1.2") + b"\r\n" + HIDDEN,
    "HTTP/2.0": GET.replace(b"/1.1", b"/2.0") + b"\r\n" + HIDDEN,
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
    "a tunnel": b"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\n" + HIDDEN,
}
# Each is one request with another one in its body. That one is data.
ONE_REQUEST = {
    "in a body": POST + LENGTH + HIDDEN_IN_BODY,
    "in the body of a GET": GET + LENGTH + HIDDEN_IN_BODY,
    "in a body that no route reads": POST.replace(b"/deliberations", b"/nowhere") + LENGTH + HIDDEN_IN_BODY,
    "in a body with a wrong method": POST.replace(b"POST", b"PUT") + LENGTH + HIDDEN_IN_BODY,
    "in a body for another host": POST.replace(b"localhost", b"evil.example") + LENGTH + HIDDEN_IN_BODY,
    "in a chunk": POST + CHUNKED + b"\r\n%x\r\n" % len(HIDDEN) + HIDDEN + EMPTY,
    "in a chunk's extension": POST + CHUNKED + b'\r\n2;a="GET / HTTP/1.1"\r\n{}' + EMPTY,
    "in a body that waits for leave": POST + b"Expect: 100-continue\r\n" + LENGTH + HIDDEN_IN_BODY,
    "in a body that would switch protocols": POST
    + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n"
    + LENGTH
    + HIDDEN_IN_BODY,
    "in a body with a header of a similar name": POST + b"Transfer_Encoding: chunked\r\n" + LENGTH + HIDDEN_IN_BODY,
}


@pytest.mark.parametrize("name", REFUSED)
async def test_an_ambiguous_request_is_refused_and_its_connection_closed(attacked: Gateway, name: str) -> None:
    answer = await send(attacked.port, [REFUSED[name]], timeout_s=5)
    assert len(answer.statuses) == 1 and answer.statuses[0] in (400, 413, 501, 505), answer
    assert answer.closed


@pytest.mark.parametrize("name", ONE_REQUEST)
async def test_a_request_within_a_body_is_data(attacked: Gateway, name: str) -> None:
    answer = await send(attacked.port, [ONE_REQUEST[name]])
    assert len(answer.statuses) == 1, answer
    assert b"smuggled" not in answer.content


@pytest.mark.parametrize("name", ["in a body", "in a chunk"])
async def test_a_request_in_pieces_of_one_byte_is_the_same_request(attacked: Gateway, name: str) -> None:
    content = ONE_REQUEST[name]
    answer = await send(attacked.port, (content[at : at + 1] for at in range(len(content))))
    assert answer.statuses == (await send(attacked.port, [content])).statuses


async def test_pipelined_requests_are_answered_in_their_order(attacked: Gateway) -> None:
    answer = await send(attacked.port, [(GET + b"\r\n" + POST + SHORT + b"\r\n{   }") * 20])
    assert answer.statuses == [200, 422] * 20


def drip(head: bytes, piece: bytes = b" ") -> Iterator[bytes]:
    yield head
    while True:
        yield piece


SLOW = {
    "with a length": drip(POST + b"Content-Length: 100000\r\n\r\n"),
    "in chunks": drip(POST + CHUNKED + b"\r\n", b"1\r\n \r\n"),
    "of a chunk": drip(POST + CHUNKED + b"\r\n10000\r\n"),
    "of a GET": drip(GET + b"Content-Length: 100000\r\n\r\n"),
    "without a reader": drip(POST.replace(b"/deliberations", b"/nowhere") + b"Content-Length: 100000\r\n\r\n"),
    "for another host": drip(POST.replace(b"localhost", b"evil.example") + b"Content-Length: 100000\r\n\r\n"),
    "of trailers": drip(POST + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n", b"X: y\r\n"),
    "of an extension": drip(POST + CHUNKED + b"\r\n2;", b"x"),
    "that says nothing": iter([POST + b"Content-Length: 100\r\n\r\n{"]),
}


async def test_slow_bodies_end_in_time(attacked: Gateway, record_property: Callable[[str, object], None]) -> None:
    """One byte a second on each connection; a route that reads no body does not wait for it either."""

    async def timed(pieces: Iterator[bytes]) -> tuple[Answer, float]:
        began_s = time.monotonic()
        answer = await send(attacked.port, pieces, timeout_s=BODY_TIMEOUT_S * 3, pause_s=1)
        return answer, time.monotonic() - began_s

    found = dict(zip(SLOW, await asyncio.gather(*map(timed, SLOW.values())), strict=True))
    record_property("slow bodies ended after s, at most", round(max(taken_s for _, taken_s in found.values()), 1))
    assert {name for name, (answer, _) in found.items() if not answer.closed} == set()
    assert max(taken_s for _, taken_s in found.values()) < BODY_TIMEOUT_S * 2
    assert all(len(answer.statuses) == 1 for answer, _ in found.values())
    assert b"body_timeout" in found["with a length"][0].content and b"body_timeout" in found["in chunks"][0].content


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST + b"Content-Length: %d\r\n\r\n" % (READ_BYTES_MAX + 1) + b" " * 1_000,
        POST + b"Content-Length: 999999999999999999\r\n\r\n" + b" " * 1_000,
        POST
        + CHUNKED
        + b"\r\n"
        + b"10000\r\n"
        + b" " * 0x10000
        + (b"\r\n10000\r\n" + b" " * 0x10000) * (READ_BYTES_MAX // 0x10000),
        POST + CHUNKED + b"\r\nfffffff\r\n" + b" " * (READ_BYTES_MAX + 1),
    ],
    ids=["declared", "declared beyond all memory", "chunks", "one chunk"],
)
async def test_a_body_that_is_too_long_is_refused_and_its_connection_closed(
    attacked: Gateway, request_bytes: bytes
) -> None:
    answer = await send(attacked.port, [request_bytes], timeout_s=5)
    assert (answer.statuses, answer.closed) == ([413], True)


@pytest.mark.parametrize("begin", [b"2\r\n{}\r\n0\r\nX: ", b"2;x="], ids=["a trailer", "an extension"])
async def test_what_stands_beside_chunks_is_bounded(attacked: Gateway, begin: bytes) -> None:
    """The parser keeps all of a trailer, and copies it with each piece: some megabytes took the event loop seconds."""
    endless = (b"a" * 65_536 for _ in range(100 * SENT_BODY_BYTES_MAX // 65_536))
    answer = await send(attacked.port, chain([POST + CHUNKED + b"\r\n" + begin], endless), timeout_s=5)
    assert (answer.statuses, answer.closed) == ([413], True)


@pytest.mark.parametrize("piece", [b"zz\r\n", b"2;" + b"x" * SENT_BODY_BYTES_MAX], ids=["malformed", "too long"])
async def test_a_request_that_was_answered_gets_no_second_answer(attacked: Gateway, piece: bytes) -> None:
    unread = POST.replace(b"/deliberations", b"/nowhere") + CHUNKED + b"\r\n"
    answer = await send(attacked.port, [unread, piece], timeout_s=5, pause_s=0.3)
    assert (answer.statuses, answer.closed) == ([404], True)


async def test_what_follows_a_declared_body_is_another_request(attacked: Gateway) -> None:
    """A body longer than declared: its rest is no request, and the connection ends with the answer to the first."""
    answer = await send(attacked.port, [POST + b"Content-Length: 2\r\n\r\n{}{}{}\r\n\r\n"], timeout_s=5)
    assert (answer.statuses, answer.closed) == ([422], True)


async def test_the_gateway_still_answers(attacked: Gateway) -> None:
    assert (await attacked.client.get("/healthz")).status_code == 200
