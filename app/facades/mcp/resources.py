"""Embedded resources: files in the arguments of a tool, which are uploaded and become evidence."""

from collections.abc import Sequence
from typing import Literal, Self
from urllib.parse import unquote

from pydantic import Field, PrivateAttr, model_validator
from pydantic.alias_generators import to_camel

from app.api.problems import ValidationFailed, body_fault, refused
from app.api.request_model import (
    RequestModel,
)
from app.facades.mcp.rest import AskRoute, RouteAnswer
from app.facades.message_content import MEDIA_TYPE_CHARS_MAX, FilePart, file_of, given_file

URI_CHARS_MAX = 2_048
RESOURCES_MAX = 64


class ResourceContents(RequestModel, extra="ignore", alias_generator=to_camel):
    """A text, or bytes in base64."""

    uri: str = Field(min_length=1, max_length=URI_CHARS_MAX, description="Its last part names the evidence")
    mime_type: str | None = Field(default=None, max_length=MEDIA_TYPE_CHARS_MAX)
    text: str | None = None
    blob: str | None = Field(default=None, description="Base64 of a text, a PDF, a docx or a picture")

    @property
    def name(self) -> str:
        path, _, _ = self.uri.partition("?")
        return unquote(path.partition("#")[0].rstrip("/").rpartition("/")[2])


class EmbeddedResource(RequestModel, extra="ignore"):
    """An embedded resource of MCP."""

    type: Literal["resource"]
    resource: ResourceContents

    _file: FilePart = PrivateAttr()

    @property
    def file(self) -> FilePart:
        return self._file

    @model_validator(mode="after")
    def _read_content(self) -> Self:
        match self.resource:
            case ResourceContents(text=str(text), blob=None, name=name, mime_type=media_type):
                self._file = file_of(text.encode(errors="surrogatepass"), name=name, media_type=media_type)
            case ResourceContents(text=None, blob=str(blob), name=name, mime_type=media_type):
                self._file = given_file("The blob", blob, name=name, media_type=media_type)
            case _:
                raise refused("conflict", "The resource has not one of text and blob", "Give one of them.")
        return self


def _form_of(file: FilePart) -> bytes:
    """A form with the file (RFC 7578). The id of the file separates its parts."""
    name = file.title.replace('"', "%22")
    head = f'--{file.id}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
    if file.media_type is not None and file.media_type.isascii() and file.media_type.isprintable():
        head += f"Content-Type: {file.media_type}\r\n"
    return b"".join((head.encode(), b"\r\n", file.content or b"", f"\r\n--{file.id}--\r\n".encode()))


async def upload_refusal(ask: AskRoute, resources: Sequence[EmbeddedResource]) -> RouteAnswer | None:
    """Upload the files, each once; returns the answer that refused one.

    Raises ValidationFailed, which names the resource, for a file that no agent could read.
    """
    uploaded = set[str]()
    for index, file in enumerate(resource.file for resource in resources):
        if file.id in uploaded:
            continue
        uploaded.add(file.id)
        # No content holds its own digest.
        headers = {"Content-Type": f"multipart/form-data; boundary={file.id}"}
        answer = await ask("POST", "/files", body=_form_of(file), headers=headers)
        if answer.status == 422:
            raise ValidationFailed(
                [
                    body_fault(f"/resources/{index}", fault["code"], fault["detail"], fault["remedy"])
                    for fault in answer.document["errors"]
                ]
            )
        if answer.refused:
            return answer
    return None
