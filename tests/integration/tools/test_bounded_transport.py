"""The bounds on what a tool server sends over HTTP, whole or in events."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import httpx2
import pytest

from serve_deployments.tools.bounded_transport import (
    MESSAGE_BYTES_MAX,
    MESSAGE_VALUES_MAX,
    TOO_LONG,
    TOO_MANY_VALUES,
    BoundedTransport,
    Wire,
    number_of_values,
)

MANY = b'{"a":%s}' % json.dumps([1] * MESSAGE_VALUES_MAX).encode()
ALMOST_MANY = b'{"a":%s}' % json.dumps([1] * (MESSAGE_VALUES_MAX - 2)).encode()
REPEATED = b'{"a":{%s}}' % b",".join([b'"k":1'] * MESSAGE_VALUES_MAX)
# More commas than values are allowed, in one value.
TEXT = b'{"a":"%s"}' % (b"one, two" * MESSAGE_VALUES_MAX)
LONG = b'{"a":"%s"}' % (b"x" * MESSAGE_BYTES_MAX)


@asynccontextmanager
async def answering(kind: str, pieces: Sequence[bytes]) -> AsyncIterator[str]:
    """The URL of a server that answers each request with a body in these pieces."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nConnection: close\r\n\r\n" % kind.encode())
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def as_json(message: bytes) -> tuple[str, list[bytes]]:
    return "application/json", [message[:10], message[10:]]


def as_event(message: bytes) -> tuple[str, list[bytes]]:
    return "text/event-stream", [b"event: message\ndata: ", message, b"\n", b"\n"]


def as_lines_of_an_event(message: bytes) -> tuple[str, list[bytes]]:
    return "text/event-stream", [b"data:" + message[:5] + b"\r\n", b"data:" + message[5:], b"\r\n\r", b"\n"]


@pytest.mark.parametrize("form", [as_json, as_event, as_lines_of_an_event])
@pytest.mark.parametrize(
    ("message", "exceeded"),
    [(MANY, TOO_MANY_VALUES), (REPEATED, TOO_MANY_VALUES), (LONG, TOO_LONG), (ALMOST_MANY, ""), (TEXT, "")],
    ids=["many values", "one key many times", "long", "almost many values", "commas in a text"],
)
async def test_a_message_over_http_is_read_up_to_its_bounds(
    form: Callable[[bytes], tuple[str, list[bytes]]], message: bytes, exceeded: str
) -> None:
    wire, (kind, pieces) = Wire(), form(message)
    body = b""
    async with answering(kind, pieces) as url, httpx2.AsyncClient(transport=BoundedTransport(wire)) as client:
        try:
            body = (await client.post(url)).content
        except httpx2.ReadError as error:
            assert str(error) == exceeded
    assert wire.exceeded == exceeded
    whole = b"".join(pieces) if form is as_json else b"".join(pieces).replace(b"\r\n", b"\n")
    assert body == (b"" if exceeded else whole)


async def test_events_that_are_small_alone_may_be_many() -> None:
    wire, event = Wire(), b"data: %s\n\n" % TEXT
    async with (
        answering("text/event-stream", [event] * 80) as url,
        httpx2.AsyncClient(transport=BoundedTransport(wire)) as client,
    ):
        assert len((await client.post(url)).content) == 80 * len(event) > MESSAGE_BYTES_MAX
    assert wire.exceeded == ""


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/event-stream", b"data: {}\n\r\ndata: %s\r\n\n" % MANY),
        ("text/event-stream", b"data: {}\r\rdata: %s\r" % MANY),
        ("text/event-stream", b"data: {}\n\ndata: %s" % MANY),
        ("text/event-stream; charset=utf-7", b"data: %s\n\n" % MANY.replace(b",", b"+ACw-")),
        ("Text/Event-Stream ; x", b"data: %s\n\n" % MANY),
    ],
    ids=["mixed ends of lines", "an end of the stream", "no end", "another charset", "another spelling"],
)
async def test_no_form_of_events_hides_how_many_values_the_package_gets(kind: str, body: bytes) -> None:
    wire, events = Wire(), list[httpx2.ServerSentEvent]()
    async with (
        answering(kind, [body[:10], body[10:]]) as url,
        httpx2.AsyncClient(transport=BoundedTransport(wire)) as client,
    ):
        with suppress(httpx2.ReadError):
            async with client.stream("POST", url) as response:
                events += [event async for event in httpx2.EventSource(response, max_event_size=None)]
    assert all(number_of_values(event.data.encode()) <= MESSAGE_VALUES_MAX for event in events)


async def test_an_event_without_an_end_is_read_up_to_its_bound() -> None:
    wire, pieces = Wire(), [b"data: ", *[b"x" * 65_536] * 80]
    async with (
        answering("text/event-stream", pieces) as url,
        httpx2.AsyncClient(transport=BoundedTransport(wire)) as client,
    ):
        with pytest.raises(httpx2.ReadError, match=TOO_LONG):
            await client.post(url)
    assert wire.exceeded == TOO_LONG
