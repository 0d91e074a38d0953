"""What an uploaded file is to agents: its media type, and the text or the picture that prompts carry.

A text in UTF-8 is that already. Everything else is read by a child with limits, so that no library evaluates what a
client sent in the gateway's process, and what a file costs ends with its child.
"""

import asyncio
import codecs
import os
import secrets
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.bounded_child import ChildExceeded, ChildLimits, ChildOutput, module_command, run_child
from app.inputs import media_types
from app.inputs.encodings import byte_order_mark
from app.inputs.extracted import PAGES_MAX, PICTURE_BYTES_MAX, PIXELS_MAX, SOURCE_BYTES_MAX, TEXT_BYTES_MAX
from app.inputs.extraction import BEGUN

Kind = Literal["text", "picture"]

LIMITS = ChildLimits(memory_bytes=1 << 30, file_bytes=TEXT_BYTES_MAX, processes=1, cpu_s=120)
"""The limits of the child that reads a file."""

WITHIN_S = 180.0
"""The longest that a child takes, on a machine that has other work too."""

_CHUNK_BYTES = 256 << 10
_UTF8 = frozenset({"", "utf-8", "utf8", "us-ascii", "ascii"})
_MIB = 1 << 20
_TAKEN = "Upload a text, a PDF, a docx, or a picture as PNG, JPEG, WebP or GIF."
# By code: what is wrong, and what its sender can do.
_REFUSALS: Mapping[str, tuple[str, str]] = {
    "empty_file": ("The file holds no text.", "Upload a file that holds some."),
    "unsupported_file": ("The file is {detail}, which agents cannot read.", _TAKEN),
    "invalid_encoding": (
        "The file begins with the mark of {detail}, and is not valid in it.",
        "Save the file as UTF-8, and upload it again.",
    ),
    "text_too_long": (
        f"The text of the file is longer than {TEXT_BYTES_MAX // _MIB} MiB in UTF-8.",
        "Split the file, and upload the parts that matter.",
    ),
    "broken_file": ("The file cannot be read as {detail}: it is damaged.", "Open it, save it anew, and upload that."),
    "file_too_costly": (
        f"The file takes more than {LIMITS.memory_bytes // _MIB} MiB of memory or {LIMITS.cpu_s} s to read.",
        "Split the file or scale it down, or save its text alone, and upload that.",
    ),
    "encrypted_pdf": ("The PDF is encrypted.", "Save it without a password or certificate, and upload that."),
    "pdf_without_text": (
        "The PDF has no text on any page; its pages are pictures.",
        "Recognise its text (OCR), or upload its pages as pictures.",
    ),
    "too_many_pages": (f"The PDF has {{detail}} pages, and {PAGES_MAX:,} are read.", "Split it, and upload the parts."),
    "too_many_pixels": (
        f"The picture has {{detail}} pixels, and {PIXELS_MAX // 1_000_000} million are read.",
        "Scale the picture down, and upload that.",
    ),
    "picture_too_large": (
        f"The picture takes {{detail}} MiB without its metadata, and {PICTURE_BYTES_MAX // _MIB} MiB are taken.",
        "Scale the picture down, or save it as JPEG, and upload that.",
    ),
}
# By media type, what the child reads a file as; and what a refusal calls that.
_KINDS: Mapping[str, str] = {
    media_types.PDF: "pdf",
    media_types.ZIP: "docx",
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/webp": "WEBP",
    "image/gif": "GIF",
}
_NAMES: Mapping[str, str] = {
    **{kind: f"a {kind} picture" for kind in _KINDS.values()},
    "text": "a text",
    "pdf": "a PDF",
    "docx": "a docx",
}


@dataclass(frozen=True, slots=True)
class ReadInput:
    """A file as agents get it: `path` is the form for prompts, and `bytes` its size.

    `media_type` is the file's own, such as `application/pdf`. `pages` are those of a PDF, `width` and `height` the
    pixels of a picture.
    """

    media_type: str
    kind: Kind
    path: Path
    bytes: int
    pages: int | None = None
    width: int | None = None
    height: int | None = None


class InputRefused(Exception):
    """A file that agents cannot get: a stable code, a sentence that says why, and one with the remedy."""

    def __init__(self, code: str, detail: str = "") -> None:
        sentence, self.remedy = _REFUSALS[code]
        self.code = code
        self.detail = sentence.format(detail=detail)
        super().__init__(self.detail)


class _Reply(BaseModel):
    """What the child says at its end. It has read what a client sent, so nothing of it is taken unchecked."""

    model_config = ConfigDict(extra="forbid", strict=True)

    code: str | None = None
    detail: Annotated[str, Field(max_length=64)] = ""
    errno: int | None = None
    pages: Annotated[int, Field(ge=1, le=PAGES_MAX)] | None = None
    width: Annotated[int, Field(ge=1, le=PIXELS_MAX)] | None = None
    height: Annotated[int, Field(ge=1, le=PIXELS_MAX)] | None = None


@dataclass(frozen=True, slots=True)
class _Survey:
    """What the first bytes and the validity as UTF-8 say of a file; `signature` is None for a text."""

    head: bytes
    bytes: int
    signature: str | None
    is_utf8: bool


async def read_input(source: Path, name: str, declared: str | None, directory: Path) -> ReadInput:
    """Read one file: its content says what it is, then the suffix of its name, then the declared media type.

    A text in UTF-8 stays where it is; the text or the picture of another file is a new file in `directory`. Raises
    InputRefused; OSError where a file cannot be read or written, or no process can be started.
    """
    charset = media_types.declared_charset(declared)
    survey = await asyncio.to_thread(_surveyed, source, charset)
    if survey.is_utf8:
        return ReadInput(media_types.text_type(name, declared), "text", source, survey.bytes)
    kind = "text" if survey.signature is None else _KINDS[survey.signature]
    async with _new_file(directory) as target:
        reply = await _extracted(kind, source, target, charset, survey.head)
        size = await asyncio.to_thread(os.path.getsize, target)
    media_type = survey.signature or media_types.text_type(name, declared)
    return ReadInput(
        media_types.DOCX if media_type == media_types.ZIP else media_type,
        "picture" if media_type in media_types.PICTURES else "text",
        target,
        size,
        reply.pages,
        reply.width,
        reply.height,
    )


def _surveyed(source: Path, charset: str) -> _Survey:
    """Read the beginning, and a text whole: it is decoded, and nothing of it is parsed."""
    size = source.stat().st_size
    if not size:
        raise InputRefused("empty_file")
    with source.open("rb") as file:
        head = file.read(media_types.HEAD_BYTES)
        signature = media_types.signature(head)
        if signature is not None:
            return _Survey(head, size, signature, is_utf8=False)
        if media_types.is_rtf(head):
            raise InputRefused("unsupported_file", media_types.name_of_binary(head))
        is_marked = any(byte_order_mark(head))
        is_utf8 = not is_marked and charset in _UTF8 and _is_utf8(file, head)
    if size > (TEXT_BYTES_MAX if is_utf8 else SOURCE_BYTES_MAX):
        raise InputRefused("text_too_long")
    return _Survey(head, size, None, is_utf8)


def _is_utf8(file: BinaryIO, piece: bytes) -> bool:
    """Whether a text is in UTF-8, from a first piece on. Raises InputRefused for binary data, and where it is blank."""
    head, decoder = piece, codecs.getincrementaldecoder("utf-8")()
    is_blank = True
    while piece:
        if b"\0" in piece:
            raise InputRefused("unsupported_file", media_types.name_of_binary(head))
        try:
            is_blank = not decoder.decode(piece).strip() and is_blank
            # What is longer is refused, whatever follows.
            piece = file.read(_CHUNK_BYTES) if file.tell() <= TEXT_BYTES_MAX else b""
            decoder.decode(b"", final=not piece)
        except UnicodeDecodeError:
            return False
    if is_blank:
        raise InputRefused("empty_file")
    return True


@asynccontextmanager
async def _new_file(directory: Path) -> AsyncGenerator[Path]:
    """The path of a file that a child writes, which is removed where no use of it succeeds."""
    target = directory / f"read-{secrets.token_hex(16)}"
    is_kept = False
    try:
        yield target
        is_kept = True
    finally:
        if not is_kept:
            await asyncio.to_thread(target.unlink, missing_ok=True)


async def _extracted(kind: str, source: Path, target: Path, charset: str, head: bytes) -> _Reply:
    """What a child says of a file whose text or picture it has written."""
    try:
        output = await run_child(_command(kind, source, target, charset), limits=LIMITS, within_s=WITHIN_S)
    except ChildExceeded:
        raise InputRefused("file_too_costly") from None
    reply = _reply(output, kind)
    if reply.errno is not None:
        raise OSError(reply.errno, os.strerror(reply.errno))
    if reply.code is not None:
        raise InputRefused(reply.code, reply.detail or media_types.name_of_binary(head))
    return reply


def _command(kind: str, source: Path, target: Path, charset: str) -> tuple[str, ...]:
    """The command of a child, which runs in another directory."""
    command = module_command("app.inputs.extraction", packages=True)
    return (*command, kind, str(source.absolute()), str(target.absolute()), charset)


def _reply(output: ChildOutput, kind: str) -> _Reply:
    """The last line of a child. Raises InputRefused where the file ended the child, OSError where its start failed."""
    if not output.data.startswith(BEGUN):
        raise OSError(f"a file's reader does not start: {output.error}")
    if output.status in (-signal.SIGKILL, -signal.SIGXCPU):
        raise InputRefused("file_too_costly")
    try:
        reply = _Reply.model_validate_json(output.data.removeprefix(BEGUN))
    except ValidationError:
        raise InputRefused("broken_file", _NAMES[kind]) from None
    if output.status or reply.code not in (None, *_REFUSALS):
        raise InputRefused("broken_file", _NAMES[kind])
    return reply
