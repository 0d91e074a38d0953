"""An agent reads a text without a viewer in few pieces, and its end at once. The transport is the real one."""

import asyncio
import time

import pytest

from app.deliberation.errors import EngineUnavailable
from app.deliberation.roles import EngineSpec
from serve_deployments.engine.client import Engines
from serve_deployments.engine.replies import Meter
from tests.integration.engine.raw_engine import RawEngine
from tests.integration.engine.streamed_replies import CALL, SALT, USAGE, chunk

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WORDS = [f"word{number} " for number in range(30)]
LAST = [chunk(finish="stop"), chunk(usage=USAGE), b"data: [DONE]\n\n"]


def framed(*pieces: bytes) -> list[bytes]:
    return [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]


async def pieces_of(engine: RawEngine, *, is_watched: bool, meter: Meter | None = None) -> list[str]:
    texts: list[str] = []

    async def take(text: str) -> None:
        texts.append(text)

    async with engine.serving():
        engines = Engines([EngineSpec(url=engine.url)])
        try:
            await engines.complete(
                engines.engines[0],
                CALL,
                "m",
                seed=7,
                trace="d.c.1",
                on_text=take,
                meter=meter or Meter(),
                salt=SALT,
                is_watched=lambda: is_watched,
            )
        finally:
            await engines.close()
    return texts


async def test_an_unwatched_text_comes_in_its_first_piece_and_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_deployments.engine.replies.UNWATCHED_READ_S", 60.0)
    engine = RawEngine([[HEAD, *framed(*map(chunk, WORDS), *LAST), b"0\r\n\r\n"]], pause_s=0.005)
    began_s = time.monotonic()
    texts = await pieces_of(engine, is_watched=False)
    assert "".join(texts) == "".join(WORDS) and len(texts) == 2
    assert time.monotonic() - began_s < 10, "the end is not waited for"


async def test_a_watched_text_comes_in_its_pieces() -> None:
    engine = RawEngine([[HEAD, *framed(*map(chunk, WORDS), *LAST), b"0\r\n\r\n"]], pause_s=0.005)
    texts = await pieces_of(engine, is_watched=True)
    assert "".join(texts) == "".join(WORDS) and len(texts) > 10


async def test_an_unwatched_text_without_the_end_of_its_body_ends_with_its_last_event() -> None:
    engine = RawEngine([[HEAD, *framed(*map(chunk, WORDS), *LAST)]], holds_open=True)
    texts = await pieces_of(engine, is_watched=False)
    assert "".join(texts) == "".join(WORDS)


async def test_an_unwatched_text_that_breaks_off_fails() -> None:
    engine = RawEngine([[HEAD, *framed(*map(chunk, WORDS))]], resets=True)
    with pytest.raises(EngineUnavailable, match="broke"):
        await pieces_of(engine, is_watched=False)


async def test_an_unwatched_text_that_is_cancelled_costs_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_deployments.engine.replies.UNWATCHED_READ_S", 60.0)
    meter, written = Meter(), sum(map(len, WORDS))
    engine = RawEngine([[HEAD, *framed(*map(chunk, WORDS))]], pause_s=0.005, holds_open=True)
    reading = asyncio.create_task(pieces_of(engine, is_watched=False, meter=meter))
    while not engine.has_written:
        await asyncio.sleep(0.01)
    assert 0 < meter.written_bytes < written
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert meter.written_bytes == written


async def test_a_long_unwatched_text_is_read_as_fast_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_deployments.engine.replies.UNWATCHED_READ_S", 1.0)
    # More than a connection keeps for its reader.
    words = ["x" * 10_000] * 100
    engine = RawEngine([[HEAD, *framed(chunk(WORDS[0]), *map(chunk, words), *LAST), b"0\r\n\r\n"]])
    call = CALL.model_copy(update={"max_tokens": 1_000_000})
    monkeypatch.setattr("tests.integration.engine.test_unwatched_replies.CALL", call)
    began_s = time.monotonic()
    texts = await pieces_of(engine, is_watched=False)
    assert len("".join(texts)) == len(WORDS[0]) + 1_000_000
    assert time.monotonic() - began_s < 5, "it waits once, and no more while the connection has much to read"
