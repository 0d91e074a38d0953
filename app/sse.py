"""Decodes server-sent events as the HTML standard defines them (§9.2.6), for the gateway's client and for engines.

Only the bytes CR and LF split lines. `str.splitlines`, and with it `httpx.Response.aiter_lines`, also splits on U+2028
and U+0085, which JSON may contain unescaped, and would break an event's data.
"""

import json
import re
from typing import Any, NamedTuple, cast

EVENT_BYTES_MAX = 64 * 1024 * 1024
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class EventTooLong(ValueError):
    """An event exceeds the bytes that its reader keeps of one."""


class Frame(NamedTuple):
    """One block of the stream. `data` is empty in a block that only moves the cursor or sets `retry_ms`."""

    event: str
    data: str
    id: str | None = None
    retry_ms: int | None = None

    def fields(self) -> dict[str, Any]:
        """The JSON object in `data`; empty without one."""
        try:
            document = json.loads(self.data)
        except ValueError:
            return {}
        return cast("dict[str, Any]", document) if isinstance(document, dict) else {}


class SseDecoder:
    """Converts chunks of bytes, split anywhere, into frames; raises EventTooLong beyond `event_bytes_max`."""

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._most = event_bytes_max
        self._started = False
        self._after_cr = False
        # The parts of the line that has not ended, the lines of the event that has not ended, and the bytes of both.
        self._parts: list[bytes] = []
        self._lines: list[bytes] = []
        self._bytes = 0

    @property
    def between_events(self) -> bool:
        """Whether no event has begun that the next chunk may continue."""
        return not self._bytes and not self._after_cr

    def feed(self, chunk: bytes) -> list[Frame]:
        if self._after_cr and chunk:
            self._after_cr, chunk = False, chunk.removeprefix(b"\n")
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        lines = _LINE_END.split(chunk) if b"\r" in chunk else chunk.split(b"\n")
        if len(lines) > 1 and self._parts:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts.clear()
        self._parts.append(lines.pop())
        frames = self._events(lines)
        self._bytes += len(chunk)
        if frames or self._bytes > self._most:
            self._bytes = sum(map(len, (*self._parts, *self._lines)))
            if self._bytes > self._most:
                raise EventTooLong(f"an event has more than {self._most:,} bytes")
        return frames

    def _events(self, lines: list[bytes]) -> list[Frame]:
        frames: list[Frame] = []
        for line in lines:
            if not self._started:
                self._started, line = True, line.removeprefix(_BOM)
            if line:
                if not line.startswith(b":"):
                    self._lines.append(line)
            elif self._lines:
                frames.append(_frame(self._lines))
                self._lines = []
        return frames


def _frame(lines: list[bytes]) -> Frame:
    if len(lines) == 1 and lines[0].startswith(b"data:"):
        return Frame("message", _text(lines[0][5:]).removeprefix(" "))
    fields = [(name, value.removeprefix(" ")) for name, _, value in (_text(line).partition(":") for line in lines)]
    single = dict(fields)
    retry, event_id = single.get("retry", ""), single.get("id")
    return Frame(
        event=single.get("event") or "message",
        data="\n".join(value for name, value in fields if name == "data"),
        id=event_id if event_id is not None and "\0" not in event_id else None,
        retry_ms=int(retry) if re.fullmatch("[0-9]{1,9}", retry) else None,
    )


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")
