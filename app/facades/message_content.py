"""The content of messages: texts, and files, each of which becomes evidence that the text names in its place."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, cast

from annotated_types import GroupedMetadata
from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticKnownError

from app.api.problems import refused
from app.api.requests import FILE_ID_PREFIX
from app.lifecycle.files import digest_of, plain_name

UNNAMED_PICTURE, UNNAMED_FILE = "A picture of the conversation", "A file of the conversation"
# Digits of a file's id, enough to tell the files of one conversation apart.
ID_DIGITS = 8
MEDIA_TYPE_CHARS_MAX = 255
_STANDARD_BASE64 = bytes.maketrans(b"-_", b"+/")
_GIVE = "Give the file itself, as data:<media type>;base64,<bytes>."
_CONTENT_KINDS = "text, a picture or a file"


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file in a request; `content` is None where `id` names an upload. `pointer` is its place in the request."""

    id: str
    title: str
    name: str
    media_type: str | None
    content: bytes | None
    is_picture: bool
    pointer: str = ""

    @property
    def evidence_id(self) -> str:
        """The same for the same bytes, so that it holds in all conversations that go on from this one."""
        return f"{FILE_ID_PREFIX}{self.id.removeprefix(FILE_ID_PREFIX)[:ID_DIGITS]}"

    @property
    def mark(self) -> str:
        return mark_of(self.evidence_id)


@dataclass(frozen=True, slots=True)
class MessageContent:
    """One text, in which marks stand for the files."""

    text: str = ""
    files: tuple[FilePart, ...] = ()


def mark_of(evidence_id: str) -> str:
    return f"[evidence {evidence_id}]"


def given_file(
    where: str, data: str, *, name: str | None = None, media_type: str | None = None, is_picture: bool = False
) -> FilePart:
    """A file from base64, standard or URL-safe, or from a data URL; `where` begins the sentences of refusals."""
    declared = media_type
    if data[:5].lower() == "data:":
        head, _, data = data.partition(",")
        if len(head) > MEDIA_TYPE_CHARS_MAX or not head.lower().endswith(";base64"):
            raise refused("invalid_base64", f"{where} is a data URL without base64", _GIVE)
        declared = head[5 : -len(";base64")] or media_type
    try:
        encoded = data.encode("ascii").translate(_STANDARD_BASE64).rstrip(b"=")
        content = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        raise refused("invalid_base64", f"{where} is not base64", _GIVE) from None
    return file_of(content, name=name, media_type=declared, is_picture=is_picture)


def file_of(
    content: bytes, *, name: str | None = None, media_type: str | None = None, is_picture: bool = False
) -> FilePart:
    title = plain_name(name) if name else UNNAMED_PICTURE if is_picture else UNNAMED_FILE
    id = FILE_ID_PREFIX + sha256(content).hexdigest()
    return FilePart(id, title, name or "", media_type, content, is_picture)


def file_at(where: str, url: str, *, name: str | None = None, is_picture: bool = False) -> FilePart:
    """A file from a URL, which is a data URL: nothing is fetched."""
    if url[:5].lower() != "data:":
        raise refused("unsupported_url", f"{where} is a URL, and nothing is fetched", _GIVE)
    return given_file(where, url, name=name, is_picture=is_picture)


def uploaded_file(where: str, file_id: str, *, is_picture: bool = False) -> FilePart:
    if digest_of(file_id) is None:
        raise refused("unknown_file", f"{where} names no file of this gateway", "Give the id of an upload.")
    return FilePart(file_id, UNNAMED_FILE, "", None, None, is_picture)


def joined(pieces: Iterable[str | FilePart], separator: str = "\n") -> MessageContent:
    told = [*pieces]
    text = separator.join(piece if isinstance(piece, str) else piece.mark for piece in told)
    return MessageContent(text, tuple(piece for piece in told if isinstance(piece, FilePart)))


def at(part: FilePart, index: int) -> FilePart:
    """A part at its index in the content; `placed` puts the place of the content before it."""
    return replace(part, pointer=f"/{index}")


def placed(contents: Mapping[str, MessageContent]) -> list[FilePart]:
    """The files of all contents, which are named by their pointers."""
    return [
        replace(part, pointer=place + part.pointer) for place, content in contents.items() for part in content.files
    ]


def evidence_of(parts: Iterable[FilePart]) -> Iterator[dict[str, str]]:
    """Evidence of a deliberation's request: each file once."""
    by_id = dict[str, FilePart]()
    for part in parts:
        by_id.setdefault(part.id, part)
    for id, part in by_id.items():
        yield {"id": part.evidence_id, "title": part.title, "file": id}


def _openai_piece(index: int, part: object, kinds: Sequence[str]) -> str | FilePart:
    """A content part of OpenAI's APIs; texts are of these types, of which the first is usual."""
    where = f"Part {index}"
    match part:
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": str(kind), "text": str(text)} if kind in kinds:
            return text
        case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "input_image", "image_url": str(url)}:
            return file_at(where, url, is_picture=True)
        case {"type": "input_image", "file_id": str(file_id)}:
            return uploaded_file(where, file_id, is_picture=True)
        case {"type": "file"}:
            return _openai_file(where, cast("dict[str, object]", part).get("file"))
        case {"type": "input_file"}:
            return _openai_file(where, part)
        case {"type": str(kind)} if kind not in (*kinds, "refusal"):
            detail = f"{where} is of type {kind[:64]}, or lacks what that needs"
            raise refused("unsupported_content", detail, f"Give {_CONTENT_KINDS}.")
        case _:
            detail = f"{where} is not a text part"
            raise refused("invalid_type", detail, f'Give {{"type": "{kinds[0]}", "text": "…"}}.')


def _openai_file(where: str, file: object) -> FilePart:
    match file:
        case {"file_id": str(file_id)}:
            return uploaded_file(where, file_id)
        case {"file_data": str(data), "filename": str(name)}:
            return given_file(where, data, name=name)
        case {"file_data": str(data)}:
            return given_file(where, data)
        case {"file_url": str(url)}:
            return file_at(where, url)
        case _:
            raise refused("unsupported_content", f"{where} has no file", "Give file_data with filename, or file_id.")


def _schema(kinds: Sequence[str]) -> dict[str, Any]:
    def part(kind: str, **fields: object) -> dict[str, Any]:
        return {"type": "object", "properties": {"type": {"const": kind}, **fields}, "required": ["type", *fields]}

    string = {"type": "string"}
    texts = {"type": "object", "properties": {"type": {"enum": [*kinds]}, "text": string}, "required": ["type", "text"]}
    if "input_text" in kinds:
        files = [{"type": "object", "properties": {"type": {"enum": ["input_image", "input_file"]}}}]
    else:
        url = {"type": "object", "properties": {"url": string}, "required": ["url"]}
        files = [part("image_url", image_url=url), part("file", file={"type": "object"})]
    parts = {"type": "array", "items": {"anyOf": [texts, part("refusal", refusal=string), *files]}}
    return {"anyOf": [string, parts, {"type": "null"}]}


class OpenAIContent(GroupedMetadata):
    """The content of a message of OpenAI's APIs: a string, null, or a list of parts; texts are of these types."""

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds

    def _read(self, content: object) -> MessageContent:
        if content is None or isinstance(content, str | MessageContent):
            return content if isinstance(content, MessageContent) else MessageContent(content or "")
        if not isinstance(content, list):
            raise PydanticKnownError("string_type")
        pieces = [_openai_piece(index, part, self._kinds) for index, part in enumerate(cast("list[object]", content))]
        return joined(at(piece, n) if isinstance(piece, FilePart) else piece for n, piece in enumerate(pieces))

    def __iter__(self) -> Iterator[object]:
        yield PlainValidator(self._read)
        yield WithJsonSchema(_schema(self._kinds))
