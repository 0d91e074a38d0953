"""Uploads and downloads over HTTP: what is taken, what is refused and how, and whose it is."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message

from app.api import upload
from app.api.problems import BodyTooLarge
from app.api.upload import FIELD_BYTES_MAX, FRAME_BYTES_MAX, PARTS_MAX, upload_of
from app.lifecycle.files import RECEIVED_OF_TENANT
from tests.components.routes.listening import Gateway, listening
from tests.conditions import until

NOTES = b"Sales of March: 12.\n"
BYTES_MAX = 100_000
TYPE = {"Content-Type": "multipart/form-data; boundary=b"}
HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="notes.txt"\r\n\r\n'
END = b"\r\n--b--\r\n"


@pytest.fixture
async def gateway() -> AsyncGenerator[Gateway, None]:
    async with listening(file_bytes_max=BYTES_MAX) as made:
        yield made


async def post(gateway: Gateway, content: bytes | AsyncIterator[bytes], **headers: str) -> httpx.Response:
    return await gateway.client.post("/files", content=content, headers={**TYPE, **headers})


async def first_line(gateway: Gateway, headers: bytes, begun: bytes = b"") -> bytes:
    """Of the answer to an upload that is never sent to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.client.base_url.port)
    head = f"POST /files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TYPE['Content-Type']}\r\n".encode()
    writer.write(head + headers + b"\r\n" + begun)
    async with asyncio.timeout(5):
        line = await reader.readline()
    writer.close()
    return line


def fault_of(response: httpx.Response) -> tuple[int, str, str]:
    (fault,) = response.json()["errors"]
    assert fault["remedy"]
    return response.status_code, fault["pointer"], fault["code"]


async def test_a_file_is_stored_once_and_read_as_it_came(gateway: Gateway) -> None:
    first, second = [await gateway.client.post("/files", files={"file": ("notes.txt", NOTES)}) for _ in range(2)]
    assert (first.status_code, second.status_code) == (201, 201) and first.json() == second.json()
    shown = first.json()
    assert first.headers["location"] == f"/files/{shown['id']}"
    assert (shown["name"], shown["bytes"], shown["kind"]) == ("notes.txt", len(NOTES), "text")
    assert (await gateway.client.get("/files")).json()["files"] == [shown]
    content = await gateway.client.get(f"/files/{shown['id']}/content")
    assert content.content == NOTES and content.headers["content-type"] == "application/octet-stream"
    assert content.headers["content-disposition"].startswith("attachment")
    assert (await gateway.client.delete(f"/files/{shown['id']}")).status_code == 204
    assert (await gateway.client.get(f"/files/{shown['id']}")).status_code == 404


@pytest.mark.parametrize("beyond", [1, BYTES_MAX // 2])
async def test_a_file_somewhat_too_large_is_read_to_its_end_so_that_the_answer_arrives(
    gateway: Gateway, beyond: int
) -> None:
    body = HEAD + b"a" * (BYTES_MAX + beyond) + END
    pieces = [body[at : at + 1_000] for at in range(0, len(body), 1_000)]
    unread = iter(pieces)

    async def receive() -> Message:
        piece = next(unread)
        return {"type": "http.request", "body": piece, "more_body": piece is not pieces[-1]}

    request = Request({"type": "http", "headers": [(b"content-type", TYPE["Content-Type"].encode())]}, receive)
    with pytest.raises(BodyTooLarge):
        async with upload_of(request, BYTES_MAX):
            pass
    assert list(unread) == []
    answer = await post(gateway, body)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


async def test_a_file_of_the_most_bytes_is_taken(gateway: Gateway) -> None:
    assert (await post(gateway, HEAD + b"a" * BYTES_MAX + END)).json()["bytes"] == BYTES_MAX


@pytest.mark.parametrize(
    ("declared", "waits"),
    [(BYTES_MAX + FRAME_BYTES_MAX + 1, b"Expect: 100-continue\r\n"), (2 * BYTES_MAX + FRAME_BYTES_MAX + 1, b"")],
    ids=["a client that waits to send", "far too large"],
)
async def test_a_declared_length_is_refused_before_its_body(gateway: Gateway, declared: int, waits: bytes) -> None:
    answer = await first_line(gateway, b"Content-Length: %d\r\n" % declared + waits)
    assert answer.split()[1] == b"413"


FORMS = {
    "no parts": b"--b--\r\n",
    "another part": HEAD.replace(b'"file"', b'"document"') + NOTES + END,
    "an open part": HEAD + NOTES,
    "no form": NOTES,
    "two files": HEAD + NOTES + b"\r\n" + HEAD + NOTES + END,
    "many parts": HEAD.replace(b'"file"', b'"x"').join([b"", *[b"x\r\n"] * PARTS_MAX]) + HEAD + NOTES + END,
    "a long field": HEAD.replace(b'"file"', b'"x"') + b"x" * (FIELD_BYTES_MAX + 1) + b"\r\n" + HEAD + NOTES + END,
    "a long head": b"--b\r\nX: " + b"x" * (FRAME_BYTES_MAX + 1) + b"\r\n\r\n" + NOTES + END,
}


@pytest.mark.parametrize("form", FORMS)
async def test_another_form_is_refused_with_its_fault(gateway: Gateway, form: str) -> None:
    assert fault_of(await post(gateway, FORMS[form])) == (422, "/file", "malformed_form")
    assert (await gateway.client.get("/files")).json()["files"] == []


@pytest.mark.parametrize("media_type", ["application/json", "multipart/form-data", "multipart/mixed; boundary=b"])
async def test_another_media_type_is_refused(gateway: Gateway, media_type: str) -> None:
    answer = await post(gateway, HEAD + NOTES + END, **{"Content-Type": media_type})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


async def test_an_upload_that_stands_still_ends(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "PIECE_TIMEOUT_S", 0.05)
    answer = await first_line(gateway, b"Content-Length: 1000\r\n", HEAD)
    assert answer.split()[1] == b"408"
    assert (await gateway.client.get("/files")).json()["files"] == []


async def test_slow_uploads_of_a_tenant_are_bounded_and_the_next_waits_for_one(gateway: Gateway) -> None:
    ended, begun = asyncio.Event(), 0

    async def slow() -> AsyncIterator[bytes]:
        nonlocal begun
        begun += 1
        yield HEAD
        await ended.wait()
        yield NOTES + END

    receiving = gateway.server.lifespan.state["files"].receiving
    uploads = [asyncio.create_task(post(gateway, slow())) for _ in range(RECEIVED_OF_TENANT + 1)]
    await until(lambda: begun == RECEIVED_OF_TENANT + 1 and receiving.waiting("default") == 1)
    ended.set()
    assert {answer.status_code for answer in await asyncio.gather(*uploads)} == {201}
    assert receiving.waiting("default") == 0
