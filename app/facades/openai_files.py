"""Routes: OpenAI's files. They are those of `/files`, with the same ids, in OpenAI's form."""

from typing import Annotated, Literal

from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, Field

from app.api.problems import ValidationFailed, body_fault
from app.api.requests import FILE_ID_PREFIX
from app.api.responses import answer
from app.api.schemas import Resource, dump
from app.api.upload import upload_of
from app.facades.door import Door, InDoor
from app.facades.openai_errors import openai_errors, openai_facade
from app.log.inputs import StoredInput
from app.routes.dependencies import api_router
from app.routes.files import content_of, stored_upload

PATH = "/files/{file_id}"
# A file is for reading, whichever of the first three its client named.
PURPOSES = ("user_data", "assistants", "vision")
PAGE_MAX = 10_000
_BYTES = {"type": "string", "format": "binary"}
_UPLOADED = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {"file": _BYTES, "purpose": {"enum": [*PURPOSES]}},
}

router = api_router("openai", prefix="/v1")

OpenAIFileId = Annotated[str, Path(description="`id` of an upload's answer", max_length=128)]


class OpenAIFile(Resource):
    """A file. `expires_at` is null while a deliberation names it."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int = Field(description="Seconds since 1970")
    expires_at: int | None
    filename: str
    purpose: Literal["user_data"] = "user_data"
    status: Literal["processed"] = "processed"


class OpenAIFilePage(Resource):
    """A page of files."""

    object: Literal["list"] = "list"
    data: tuple[OpenAIFile, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


class OpenAIFileDeleted(Resource):
    """The file is removed."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


async def _shown(door: Door, stored: StoredInput) -> OpenAIFile:
    file = await door.files.shown(door.tenant, stored)
    return OpenAIFile(
        id=file.id,
        bytes=file.bytes,
        created_at=int(file.created_at.timestamp()),
        expires_at=None if file.expires_at is None else int(file.expires_at.timestamp()),
        filename=file.name,
    )


@router.post(
    "/files",
    summary="Upload a file, as OpenAI's clients do",
    responses={200: answer("Stored", model=OpenAIFile), **openai_errors(400, 408, 413, 415, 503)},
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _UPLOADED}}}},
)
async def create_openai_file(request: Request, door: InDoor) -> Response:
    """As `POST /files`. The purpose is one of reading; `expires_after` is ignored."""
    files = door.files
    async with files.receiving.slot(door.tenant), upload_of(request, files.limits.file_bytes) as upload:
        purpose = upload.fields.get("purpose")
        if purpose not in PURPOSES:
            detail = "It is missing" if purpose is None else f"Nothing here reads files for {purpose[:64]!r}"
            code = "missing" if purpose is None else "unsupported_value"
            raise ValidationFailed([body_fault("/purpose", code, detail, f"Give one of {', '.join(PURPOSES)}.")])
        stored = await stored_upload(files, door.tenant, upload)
    return Response(dump(await _shown(door, stored)), media_type="application/json")


class OpenAIFilesQuery(BaseModel, frozen=True, extra="forbid"):
    limit: int = Field(PAGE_MAX, ge=1, le=PAGE_MAX, description="Files on a page")
    order: Literal["asc", "desc"] = Field("desc", description="`asc`: the oldest first")
    after: str | None = Field(None, max_length=128, description="The id of the file before the page")
    purpose: str | None = Field(None, max_length=64, description="None but those of reading have files")


@router.get(
    "/files",
    summary="List the files, as OpenAI's clients do",
    responses={200: answer("A page of files", model=OpenAIFilePage), **openai_errors(400, 503)},
)
async def list_openai_files(door: InDoor, query: Annotated[OpenAIFilesQuery, Query()]) -> Response:
    """The files of the tenant, by default the newest first."""
    known = await door.files.all(door.tenant) if query.purpose in (None, *PURPOSES) else []
    known = known if query.order == "asc" else known[::-1]
    ids = [f"{FILE_ID_PREFIX}{stored.file.sha256}" for stored in known]
    begin = ids.index(query.after) + 1 if query.after in ids else 0
    shown = tuple([await _shown(door, stored) for stored in known[begin : begin + query.limit]])
    named = [file.id for file in shown] or [None]
    more = len(known) > begin + query.limit
    page = OpenAIFilePage(data=shown, first_id=named[0], last_id=named[-1], has_more=more)
    return Response(dump(page), media_type="application/json")


@router.get(
    PATH,
    summary="Read about a file, as OpenAI's clients do",
    responses={200: answer("What it is", model=OpenAIFile), **openai_errors(400, 404, 503)},
)
async def get_openai_file(door: InDoor, file_id: OpenAIFileId) -> Response:
    """Its name, size and end."""
    return Response(
        dump(await _shown(door, await door.files.find(door.tenant, file_id))), media_type="application/json"
    )


@router.get(
    f"{PATH}/content",
    summary="Download a file, as OpenAI's clients do",
    responses={
        200: {
            **answer("Its bytes", "Content-Length", "Content-Disposition", "Content-Security-Policy"),
            "content": {"application/octet-stream": {"schema": _BYTES}},
        },
        **openai_errors(400, 404, 503),
    },
)
async def get_openai_file_content(door: InDoor, file_id: OpenAIFileId) -> Response:
    """The bytes as they were uploaded."""
    return content_of(door.files, door.tenant, await door.files.find(door.tenant, file_id))


@router.delete(
    PATH,
    summary="Delete a file that no deliberation names, as OpenAI's clients do",
    responses={200: answer("Its bytes are overwritten", model=OpenAIFileDeleted), **openai_errors(400, 404, 409, 503)},
)
async def delete_openai_file(door: InDoor, file_id: OpenAIFileId) -> Response:
    """Refused while a deliberation in the log names it."""
    await door.files.delete(door.tenant, file_id)
    return Response(dump(OpenAIFileDeleted(id=file_id)), media_type="application/json")


FILES = openai_facade(router)
