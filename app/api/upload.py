"""Reads a file from a body of `multipart/form-data` (RFC 7578) to disk, bounded in bytes and time."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from app.api.problems import BodyTimeout, BodyTooLarge, UnsupportedMediaType, ValidationFailed, body_fault

UPLOAD_TIMEOUT_S = 600.0
# Names of temporary files and directories begin so, by which those of killed gateways are found.
SPOOL_PREFIX = "deliberate-upload-"
PIECE_TIMEOUT_S = 10.0
# Boundaries and heads of parts, beside the file.
FRAME_BYTES_MAX = 65_536
FIELD_BYTES_MAX = 4_096
PARTS_MAX = 16
_WRITTEN_BYTES = 1 << 20
_PART = "file"
_FORM = "Send multipart/form-data with one part called file, as curl -F file=@notes.pdf does."


@dataclass(frozen=True, slots=True)
class Upload:
    """A file as it came; its name and its media type are what the client says."""

    path: Path
    name: str
    media_type: str | None
    fields: dict[str, str]


@dataclass(slots=True)
class _Form:
    """The callbacks of the parser: the file's bytes go to `waiting`, those of other parts to `fields`."""

    waiting: bytearray = field(default_factory=bytearray)
    fields: dict[str, bytearray] = field(default_factory=dict[str, bytearray])
    name: str | None = None
    media_type: str | None = None
    complete: bool = False
    _parts: int = 0
    _head_bytes: int = 0
    _head: dict[str, bytes] = field(default_factory=dict[str, bytes])
    _field: bytearray = field(default_factory=bytearray)
    _value: bytearray = field(default_factory=bytearray)
    _target: bytearray | None = None

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_part_begin": self.on_part_begin,
            "on_header_field": self.on_header_field,
            "on_header_value": self.on_header_value,
            "on_header_end": self.on_header_end,
            "on_headers_finished": self.on_headers_finished,
            "on_part_data": self.on_part_data,
            "on_end": self.on_end,
        }

    def on_part_begin(self) -> None:
        self._parts += 1
        self._head.clear()
        if self._parts > PARTS_MAX:
            raise _malformed(f"The form has more than {PARTS_MAX} parts")

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._take_head(self._field, data[start:end])

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._take_head(self._value, data[start:end])

    def _take_head(self, target: bytearray, data: bytes) -> None:
        target += data
        self._head_bytes += len(data)
        if self._head_bytes > FRAME_BYTES_MAX:
            raise _malformed(f"The heads of the parts have more than {FRAME_BYTES_MAX} bytes")

    def on_header_end(self) -> None:
        self._head[self._field.decode("latin-1").lower()] = bytes(self._value)
        self._field.clear()
        self._value.clear()

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._head.get("content-disposition", b""))
        part = options.get(b"name", b"").decode("utf-8", "replace")
        if part != _PART:
            self._target = self.fields.setdefault(part[:64], bytearray())
            return
        if self.name is not None:
            raise _malformed("The form has two parts called file")
        self.name = options.get(b"filename", b"").decode("utf-8", "replace")
        self.media_type = self._head.get("content-type", b"").decode("latin-1") or None
        self._target = None

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._target is None:
            self.waiting += data[start:end]
            return
        self._target += data[start:end]
        if len(self._target) > FIELD_BYTES_MAX:
            raise _malformed(f"A part beside the file has more than {FIELD_BYTES_MAX} bytes")

    def on_end(self) -> None:
        self.complete = True


def _malformed(detail: str) -> ValidationFailed:
    return ValidationFailed([body_fault("/file", "malformed_form", detail, _FORM)])


@asynccontextmanager
async def upload_of(request: Request, bytes_max: int) -> AsyncGenerator[Upload]:
    """The uploaded file, which is removed at the end.

    Raises UnsupportedMediaType, BodyTooLarge, BodyTimeout, and ValidationFailed for another form. A file that is
    somewhat too large is read to its end: a client that still sends would lose the answer.
    """
    media, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary")
    if media != b"multipart/form-data" or not boundary:
        raise UnsupportedMediaType(_FORM)
    declared = request.headers.get("content-length", "0")
    waits = request.headers.get("expect", "").lower() == "100-continue"
    if declared.isdecimal() and int(declared) > (bytes_max if waits else 2 * bytes_max) + FRAME_BYTES_MAX:
        raise _too_large(bytes_max)
    form = _Form()
    with tempfile.NamedTemporaryFile(prefix=SPOOL_PREFIX) as file:
        try:
            parser = MultipartParser(boundary, form.callbacks())  # pyright: ignore[reportArgumentType]
            await _write_file(request, parser, form, Path(file.name), bytes_max)
        except FormParserError as exc:
            raise _malformed("The body is no form with parts") from exc
        if not form.complete:
            raise _malformed("The form ends within a part")
        if form.name is None:
            raise _malformed("The form has no part called file")
        fields = {name: value.decode("utf-8", "replace") for name, value in form.fields.items()}
        yield Upload(Path(file.name), form.name or "file", form.media_type, fields)


async def _write_file(request: Request, parser: MultipartParser, form: _Form, path: Path, bytes_max: int) -> None:
    written, received, pieces = 0, 0, request.stream().__aiter__()
    with path.open("wb") as target:
        try:
            async with asyncio.timeout(UPLOAD_TIMEOUT_S):
                while True:
                    async with asyncio.timeout(PIECE_TIMEOUT_S):
                        piece = await anext(pieces, None)
                    received += len(piece or b"")
                    if received > 2 * bytes_max + FRAME_BYTES_MAX:
                        raise _too_large(bytes_max)
                    if piece is not None and written <= bytes_max:
                        parser.write(piece)
                    if piece is None or len(form.waiting) >= _WRITTEN_BYTES or written + len(form.waiting) > bytes_max:
                        await asyncio.to_thread(target.write, bytes(form.waiting))
                        written += len(form.waiting)
                        form.waiting.clear()
                    if piece is None:
                        break
        except ClientDisconnect as exc:
            raise BodyTimeout("The client disconnected within the body.") from exc
        except TimeoutError as exc:
            detail = f"Nothing came for {PIECE_TIMEOUT_S:g} seconds, or the body took more than {UPLOAD_TIMEOUT_S:g}."
            raise BodyTimeout(detail) from exc
    if written > bytes_max:
        raise _too_large(bytes_max)


def _too_large(bytes_max: int) -> BodyTooLarge:
    return BodyTooLarge(f"The file exceeds {bytes_max:,} bytes.")
