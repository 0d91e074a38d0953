"""Routes: files, which deliberations name as evidence."""

from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from app.api.problems import ValidationFailed, body_fault
from app.api.requests import FILE_ID_PATTERN
from app.api.responses import answer, problems
from app.api.schemas import File, FileList, dump
from app.api.upload import Upload, upload_of
from app.inputs.reading import InputRefused
from app.lifecycle.files import Files
from app.log.inputs import StoredInput
from app.routes.dependencies import InGateway, OfTenant, api_router

router = api_router("files")

FileId = Annotated[str, Path(description="`id` of an upload's answer", pattern=FILE_ID_PATTERN)]
_BYTES = {"type": "string", "format": "binary"}
_UPLOADED = {
    "type": "object",
    "required": ["file"],
    "properties": {"file": {**_BYTES, "description": "The file, with its name"}},
}


async def stored_upload(files: Files, tenant: str, upload: Upload) -> StoredInput:
    """The upload as an input; raises ValidationFailed for one that no agent could read."""
    try:
        return await files.add(tenant, upload.path, upload.name, upload.media_type)
    except InputRefused as refused:
        raise ValidationFailed([body_fault("/file", refused.code, refused.detail, refused.remedy)]) from refused


@router.post(
    "/files",
    summary="Upload a file",
    status_code=201,
    responses={201: answer("Stored", "Location", model=File), **problems(400, 408, 413, 415, 422, 503)},
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _UPLOADED}}}},
)
async def create_file(request: Request, gateway: InGateway, tenant: OfTenant) -> Response:
    """Text in any encoding, PDF, docx, or a picture (PNG, JPEG, WebP, GIF), for `evidence` of deliberations.

    The same bytes have the same id. A file that no deliberation names is removed after an hour, and one that some name
    with the last of them.
    """
    files = gateway["files"]
    async with files.receiving.slot(tenant), upload_of(request, files.limits.file_bytes) as upload:
        stored = await stored_upload(files, tenant, upload)
    shown = await files.shown(tenant, stored)
    return Response(dump(shown), 201, {"Location": f"/files/{shown.id}"}, media_type="application/json")


@router.get("/files", summary="List the files", responses={200: answer("All of them", model=FileList), **problems(503)})
async def list_files(gateway: InGateway, tenant: OfTenant) -> Response:
    """The files of the tenant, the oldest first."""
    files = gateway["files"]
    shown = [await files.shown(tenant, stored) for stored in await files.all(tenant)]
    return Response(dump(FileList(files=tuple(shown))), media_type="application/json")


@router.get(
    "/files/{file_id}",
    summary="Read about a file",
    responses={200: answer("What it is", model=File), **problems(404, 422, 503)},
)
async def get_file(gateway: InGateway, tenant: OfTenant, file_id: FileId) -> Response:
    """Its name, type, size and end."""
    stored = await gateway["files"].find(tenant, file_id)
    return Response(dump(await gateway["files"].shown(tenant, stored)), media_type="application/json")


class ContentQuery(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    form: Literal["original", "prompt"] = Field("original", description="`prompt`: what agents read of it")


@router.get(
    "/files/{file_id}/content",
    summary="Download a file",
    responses={
        200: {
            **answer("Its bytes", "Content-Length", "Content-Disposition", "Content-Security-Policy"),
            "content": {"application/octet-stream": {"schema": _BYTES}, "text/plain": {"schema": {"type": "string"}}},
        },
        **problems(404, 422, 503),
    },
)
async def get_file_content(
    gateway: InGateway, tenant: OfTenant, file_id: FileId, query: Annotated[ContentQuery, Query()]
) -> Response:
    """The bytes as they were uploaded, or with `form=prompt` as agents read them."""
    stored = await gateway["files"].find(tenant, file_id)
    return content_of(gateway["files"], tenant, stored, as_read=query.form == "prompt")


def content_of(files: Files, tenant: str, stored: StoredInput, *, as_read: bool = False) -> Response:
    """A download of the file, or of its form for prompts."""
    file = stored.file
    read_as_text = as_read and file.kind == "text"
    headers = {
        "Content-Length": str(file.form_bytes if as_read else file.bytes),
        # Never shown as a page of this site, whatever it holds.
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}",
        "Content-Security-Policy": "sandbox",
    }
    # Else no type of the client's: a browser that shows a file guesses nothing.
    media_type = "text/plain; charset=utf-8" if read_as_text else "application/octet-stream"
    return StreamingResponse(files.content(tenant, stored, as_read=as_read), headers=headers, media_type=media_type)


@router.delete(
    "/files/{file_id}",
    summary="Delete a file that no deliberation names",
    status_code=204,
    responses={204: answer("Its bytes are overwritten"), **problems(404, 409, 422, 503)},
)
async def delete_file(gateway: InGateway, tenant: OfTenant, file_id: FileId) -> Response:
    """Refused while a deliberation in the log names it; deleting the last of these removes the file too."""
    await gateway["files"].delete(tenant, file_id)
    return Response(status_code=204)
