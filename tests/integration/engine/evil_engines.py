"""Evil engines as data: the fields of `RawEngine`, by the name of each. Texts answer a call of `single`."""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from serve_deployments.engine.client import LIST_BYTES_MAX
from tests.integration.agent.scripted_engine import ANSWER
from tests.integration.engine.raw_engine import LIST, RECORDED, recorded, whole

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def chunk(text: str = "", finish: str | None = None, **more: object) -> bytes:
    body = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def answered(text: str = ANSWER, **more: object) -> list[bytes]:
    return [HEAD, chunk(text), chunk(finish="stop", **more), b"data: [DONE]\n\n"]


def zipped(piece: bytes, count: int) -> list[bytes]:
    """A stream that is compressed although nobody asked for it."""
    packer = zlib.compressobj(1, wbits=zlib.MAX_WBITS | 16)
    packed = b"".join([*(packer.compress(piece) for _ in range(count)), packer.flush()])
    return [HEAD.replace(b"Connection", b"Content-Encoding: gzip\r\nConnection"), packed]


def refused(status: str, headers: str = "") -> list[bytes]:
    return [whole(b'{"error": {"message": "no"}}', status, headers=headers)]


FLOODS: Mapping[str, list[bytes]] = {
    "a text far beyond max_tokens": [HEAD, *([chunk("word " * 2_000)] * 2_000)],
    "reasoning without end": [
        HEAD,
        *([b'data: {"choices": [{"delta": {"reasoning": "%s"}}]}\n\n' % (b"x" * 10_000)] * 2_000),
    ],
    "a line without end": [HEAD, b"data: {", *([b" " * 100_000] * 300)],
    "pings without end": [HEAD, *([b": ping\n\n" * 10_000] * 300)],
    "empty events without end": [HEAD, *([b'data: {"choices": []}\n\n' * 5_000] * 200)],
    "a whole completion without end": [
        HEAD.replace(b"event-stream", b"plain"),
        b'{"choices": "',
        *([b"x" * 100_000] * 300),
    ],
    "a gzip of small events": zipped(b'data: {"choices": []}\n\n' * 5_000, 200),
    "a gzip of blanks": zipped(b" " * 1_000_000, 50),
}

USAGES: Mapping[str, dict[str, object]] = {
    "counts of 4,000 digits": {"prompt_tokens": int("9" * 4_000), "completion_tokens": 5},
    "negative counts": {"prompt_tokens": -1, "completion_tokens": -5},
    "counts of 10³⁰": {"prompt_tokens": 1e30, "completion_tokens": 1e30},
    "counts that are no numbers": {"prompt_tokens": "12", "completion_tokens": True},
    "more tokens than were asked for": {"prompt_tokens": 10, "completion_tokens": 65_536},
    "no tokens for a text": {"prompt_tokens": 10, "completion_tokens": 0},
    "more cached tokens than there are": {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 11},
    },
    "half a token": {"prompt_tokens": 10.5, "completion_tokens": 5},
}

LISTS: Mapping[str, bytes] = {
    "200 kB of brackets": whole(b"[" * 200_000),
    "a megabyte of names": whole(b'{"data": [{"id": "%s"}]}' % (b"m" * LIST_BYTES_MAX)),
    "a gzip of 50 MB": whole(gzip.compress(b" " * 50_000_000, 1), headers="Content-Encoding: gzip\r\n"),
    "an encoding that is none": whole(LIST, headers="Content-Encoding: zstd\r\n"),
    "no gzip": whole(LIST, headers="Content-Encoding: gzip\r\n"),
    "a number": whole(b"7"),
    "names that are none": whole(b'{"data": [{"id": 7}, {"id": null}, {}, [], "' + b"m" * 3_000 + b'"]}'),
    "numbers of 5,000 digits": whole(b'{"data": ' + b"9" * 5_000 + b"}"),
    "a lone surrogate": whole(b'{"data": [{"id": "\\ud83d"}]}'),
}

_EVENT = b'data: {"choices": [%s]}\n\n'
REPLIES: Mapping[str, list[bytes]] = {
    "an event 100,000 deep": [HEAD, _EVENT % (b"[" * 100_000)],
    "a completion 100,000 deep": [whole(b'{"choices": ' + b"[" * 100_000)],
    "90,000 choices": [HEAD, _EVENT % b",".join([b'{"delta": {}}'] * 90_000)],
    "400,000 objects in an event": [HEAD, _EVENT % b",".join([b"{}"] * 400_000)],
    "an event of 110,000 lines": [HEAD, *([b"data: []\n" * 10_000] * 11), b"\n"],
    "numbers of 5,000 digits in an event": [HEAD, _EVENT % (b"9" * 5_000)],
    "30,000 names, the last repeated": answered(
        json.dumps({**{f"n{n}": 0 for n in range(30_000)}, "x": 1})[:-1] + ', "x": 2}'
    ),
    "an answer 30,000 deep": answered('{"answer": ' * 30_000),
    "half a megabyte of objects": answered("{}" * 250_000),
    "half a megabyte of unended objects": answered('{"a":' * 100_000),
    "half a megabyte of reasoning tags": answered("<think>{}</think>" * 30_000),
    "half a megabyte of escapes": answered('{"answer": "' + "\\u" * 240_000),
    "half a surrogate": [HEAD, b'data: {"choices": [{"delta": {"content": "no \\ud83d"}, "finish_reason": "a"}]}\n\n'],
    "10,000 tool calls": [HEAD, _EVENT % (b'{"delta": {"tool_calls": [%s]}}' % b",".join([b"{}"] * 10_000))],
    "a finish reason of 1.5 MB": [HEAD, chunk(ANSWER, "s" * 1_500_000)],
    "an error without an end": [b"HTTP/1.1 500 Oops\r\nConnection: close\r\n\r\n", *([b"no " * 100_000] * 50)],
    "a refusal that blames every field": refused("400 Bad Request"),
    "a key that is refused": refused("401 Unauthorized"),
    "a Retry-After that is none": refused("429 Too Many Requests", "Retry-After: ²\r\n"),
    "a Retry-After of centuries": refused("503 Service Unavailable", "Retry-After: 9999999999\r\n"),
    "a Retry-After of nothing": refused("429 Too Many Requests", "Retry-After: 0\r\n"),
    "a redirect to itself": refused("307 Temporary Redirect", "Location: /v1/chat/completions\r\n"),
    "a redirect to metadata": refused("302 Found", "Location: http://169.254.169.254/latest/meta-data\r\n"),
    "a header of 2 MB": [whole(LIST, headers=f"X-Long: {'a' * 2_000_000}\r\n")],
    "a header without an end": [b"HTTP/1.1 200 OK\r\nX-Long: ", *([b"a" * 100_000] * 300)],
    "headers without an end": [b"HTTP/1.1 200 OK\r\n", *([b"B: c\r\n" * 10_000] * 300)],
    "heads of continuation without an end": [b"HTTP/1.1 100 Continue\r\n\r\n" * 5_000] * 100,
    "a chunk of any size": [HEAD.replace(b"Connection", b"Transfer-Encoding: chunked\r\nConnection"), b"f" * 400],
    "a length below zero": [HEAD.replace(b"Connection", b"Content-Length: -1\r\nConnection")],
    "no HTTP": [b"\x00\xff" * 50_000],
    "a page": [whole(b"<html>" + b"<p>" * 100_000, kind="text/html")],
}

# The text is spread over the call's whole time, or never comes.
SLOW: Mapping[str, Mapping[str, Any]] = {
    "a slow drip": {"replies": [[HEAD, *(bytes([each]) for each in chunk(ANSWER))]], "pause_s": 0.05},
    "slow events without an end": {"replies": [[HEAD, *([chunk("x ")] * 1_000)]], "pause_s": 0.02},
    "a head in single bytes": {"replies": [[bytes([each]) for each in HEAD]], "pause_s": 0.05},
    "silence": {"replies": [[b""]], "holds_open": True},
    "silence behind the head": {"replies": [[HEAD]], "holds_open": True},
    "silence within the text": {"replies": [[HEAD, chunk("word " * 12)]], "holds_open": True},
    "a reset at once": {"replies": [[b""]], "resets": True},
    "a reset within the text": {"replies": [[HEAD, chunk("word " * 12)]], "resets": True},
}


def _every_recorded() -> list[Sequence[bytes]]:
    # Of some cases the simulator writes the replies.
    cases = [case for case, played in RECORDED.items() if isinstance(played["replies"], list)]
    return [reply for case in cases for reply in recorded(case).replies]


EVIL_ENGINES: Mapping[str, Mapping[str, Any]] = {
    **{name: {"replies": [pieces]} for name, pieces in {**FLOODS, **REPLIES}.items()},
    **{f"usage: {name}": {"replies": [answered(usage=usage)]} for name, usage in USAGES.items()},
    **{f"models: {name}": {"models": [models], "replies": [answered()]} for name, models in LISTS.items()},
    **SLOW,
    "every recorded reply in turn": {"replies": _every_recorded()},
}
