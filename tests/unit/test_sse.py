from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.sse import Frame, SseDecoder

bounded = settings(max_examples=80, deadline=None, derandomize=True)


def decoded(*chunks: bytes) -> list[Frame]:
    decoder = SseDecoder()
    return [frame for chunk in chunks for frame in decoder.feed(chunk)]


@pytest.mark.parametrize(
    ("sent", "frames"),
    [
        (b"event: a\ndata: 1\n\n", [Frame("a", "1")]),
        (b"data: 1\r\n\r\ndata: 2\r\rdata: 3\n\n", [Frame("message", digit) for digit in "123"]),
        (b"\xef\xbb\xbfdata: 1\n\n", [Frame("message", "1")]),
        (b": beat\n\n: beat\n\n", []),
        (b"id: e-7\n\n", [Frame("message", "", "e-7")]),
        (b"id: e\x00vil\ndata: 1\n\n", [Frame("message", "1")]),
        (b"retry: 250\nevent: a\ndata:1\n\n", [Frame("a", "1", retry_ms=250)]),
        (b"retry: soon\ndata: 1\n\n", [Frame("message", "1")]),
        (b"data: 1\ndata: 2\n\n", [Frame("message", "1\n2")]),
        (b"data: never dispatched\n", []),
        ("data: a\u2028b\x85c\n\n".encode(), [Frame("message", "a\u2028b\x85c")]),
    ],
)
def test_blocks_become_frames(sent: bytes, frames: list[Frame]) -> None:
    assert decoded(sent) == frames


SENT = (
    'retry: 5\r\n: hello\r\nid: e-1\r\nevent: call.delta\r\ndata: {"text":"é\u2028"}\r\n\r\nid: e-2\n\n\rdata: x\r\r'
).encode()


@bounded
@given(st.lists(st.integers(0, len(SENT)), max_size=12))
def test_chunk_boundaries_do_not_change_the_frames(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(SENT)]
    chunks = [SENT[begin:end] for begin, end in pairwise(places)]
    assert decoded(*chunks) == decoded(SENT)


def test_decodes_single_bytes() -> None:
    assert decoded(*(SENT[place : place + 1] for place in range(len(SENT)))) == decoded(SENT)


@pytest.mark.parametrize("data", ["", "[1]", "no json", "{"])
def test_data_without_an_object_has_no_fields(data: str) -> None:
    assert Frame("a", data).fields() == {}
