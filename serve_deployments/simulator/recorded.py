"""Replies of engines from public reports, by name: status, headers, and the body in the pieces in which it came."""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

_CHUNK = re.compile(rb"[0-9a-f]+\r\n(.*)\r\n", re.DOTALL)
_HEADERS = (b"content-type", b"content-encoding", b"retry-after", b"location")


class RecordedReply(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    pieces: list[bytes]
    right: str


@cache
def recorded_replies() -> Mapping[str, RecordedReply]:
    """Returns the first reply of each case whose case is about an engine's bytes."""
    cases: list[dict[str, Any]] = json.loads(
        files("serve_deployments.simulator").joinpath("replies.json").read_text(encoding="utf-8")
    )
    return {case["case"]: _reply(case) for case in cases if isinstance(case["replies"], list)}


def _reply(case: dict[str, Any]) -> RecordedReply:
    first, *rest = [piece.encode("latin-1") for piece in case["replies"][0]["pieces"]]
    head, _, body = first.partition(b"\r\n\r\n")
    status_line, *lines = head.split(b"\r\n")
    named = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    chunked = (b"transfer-encoding", b"chunked") in named
    pieces = [_CHUNK.sub(rb"\1", piece) for piece in rest] if chunked else [body, *rest]
    kept = [(name, value) for name, value in named if name in _HEADERS and value != b"identity"]
    return RecordedReply(int(status_line.split()[1]), kept, [piece for piece in pieces if piece], case["right"])
