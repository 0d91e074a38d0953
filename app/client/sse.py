"""Decodes server-sent events as the HTML standard defines them (§9.2.6).

Only the bytes CR and LF split lines. `str.splitlines`, and with it `httpx.Response.aiter_lines`, also splits on U+2028
and U+0085, which JSON may contain unescaped, and would break an event's data.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, cast

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Frame:
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
    """Converts chunks of bytes, split anywhere, into frames."""

    def __init__(self) -> None:
        self._rest = b""
        self._started = False
        self._after_cr = False
        self._fields: list[tuple[str, str]] = []

    def feed(self, chunk: bytes) -> list[Frame]:
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        lines = _LINE_END.split(self._rest + chunk)
        self._rest = lines.pop()
        frames: list[Frame] = []
        for line in lines:
            if not self._started:
                self._started, line = True, line.removeprefix(_BOM)
            if line:
                self._read(line.decode("utf-8", "replace"))
            elif self._fields:
                frames.append(self._dispatch())
        return frames

    def _read(self, line: str) -> None:
        name, _, value = line.partition(":")
        if name:  # a line that begins with a colon is a comment
            self._fields.append((name, value.removeprefix(" ")))

    def _dispatch(self) -> Frame:
        fields, self._fields = self._fields, []
        single = dict(fields)
        retry, event_id = single.get("retry", ""), single.get("id")
        return Frame(
            event=single.get("event") or "message",
            data="\n".join(value for name, value in fields if name == "data"),
            id=event_id if event_id is not None and "\0" not in event_id else None,
            retry_ms=int(retry) if retry.isascii() and retry.isdigit() else None,
        )
