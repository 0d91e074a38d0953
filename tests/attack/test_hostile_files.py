"""Uploads that are meant to harm, to a gateway of two tenants: each costs its sender alone, and says what to mend."""

import asyncio
import os
import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.log.journal import JetStreamJournal
from tests.attack.bystanders import waiting
from tests.attack.gateways import Gateway, send
from tests.components.access.keyed import PEPPER, bearer, make_key
from tests.components.inputs.files import (
    archive,
    deflated_spaces,
    pdf_of_streams,
    picture,
    png_header,
    stream,
    with_member,
    word,
)

BYTES_MAX = 4 << 20
SPOOL = tempfile.TemporaryDirectory()
SETTINGS = {
    "KEY_PEPPER": PEPPER,
    "FILE_BYTES_MAX": str(BYTES_MAX),
    "TENANT_FILE_BYTES_MAX": str(4 * BYTES_MAX),
    "TMPDIR": SPOOL.name,
}
# The longest wait of a bystander for an answer while a gateway reads a hostile file, on a noisy machine.
BYSTANDER_MS_MAX = 2_000
HEARD_WITHIN_S = 5.0
NAMESPACE = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
NOTES = b"Sales of March: 12.\n"


def entities(*declarations: str, text: str) -> bytes:
    body = f"<w:document {NAMESPACE}><w:body><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:body></w:document>"
    return with_member(word("x"), "word/document.xml", f"<!DOCTYPE w [{''.join(declarations)}]>{body}".encode())


def bombs() -> Iterator[tuple[str, bytes, str]]:
    """Names, files, and the code of each refusal."""
    yield (
        "a PDF bomb",
        pdf_of_streams([stream(deflated_spaces(1_100 << 20), b" /Filter /FlateDecode")]),
        "file_too_costly",
    )
    yield "a zip bomb", with_member(word("x"), "word/document.xml", b"<w:t>" + bytes(300 << 20)), "file_too_costly"
    multiplied = [f'<!ENTITY a{n} "{f"&a{n - 1};" * 10 if n else "x"}">' for n in range(12)]
    yield "entities that multiply", entities(*multiplied, text="&a11;"), "broken_file"
    yield "pixels beyond all memory", png_header(100_000, 100_000), "too_many_pixels"
    yield "a picture that ends", picture("PNG", size=(640, 480))[:900], "broken_file"
    yield "an archive that calls itself a picture", archive("a.txt"), "unsupported_file"
    yield "a program", b"\x7fELF\x02\x01\x01" + bytes(9) + random.Random(7).randbytes(4_096), "unsupported_file"
    yield "nothing", b"", "empty_file"


BOMBS = {name: (content, code) for name, content, code in bombs()}


@pytest.fixture(scope="module")
async def keys(attacked: Gateway, jetstream_journal: JetStreamJournal) -> AsyncIterator[tuple[str, str]]:
    """Of the attacker, and of a bystander."""
    made = [await make_key(jetstream_journal, tenant) for tenant in ("mallory", "ann")]  # pyright: ignore[reportArgumentType]
    async with asyncio.timeout(HEARD_WITHIN_S):
        for key in made:
            while (await attacked.client.get("/files", headers=bearer(key))).status_code == 401:
                await asyncio.sleep(0.05)
    yield made[0], made[1]


async def upload(attacked: Gateway, key: str, content: bytes, name: str = "file", **kind: str) -> httpx.Response:
    part: Any = (name, content, *kind.values())
    return await attacked.client.post("/files", files={"file": part}, headers=bearer(key))


async def names_of(attacked: Gateway, key: str) -> list[str]:
    return [file["name"] for file in (await attacked.client.get("/files", headers=bearer(key))).json()["files"]]


def served(attacked: Gateway, key: str) -> AbstractAsyncContextManager[list[float]]:
    """A bystander who uploads small files all the time; the milliseconds of each upload."""
    numbers = count()

    async def ask() -> None:
        answer = await upload(attacked, key, b"note %d\n" % (next(numbers) % 8))
        assert answer.status_code == 201, answer.text

    return waiting(ask)


async def spool_is_empty() -> None:
    async with asyncio.timeout(HEARD_WITHIN_S):
        while os.listdir(SPOOL.name):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_bomb_costs_its_sender_alone_and_says_what_to_mend(
    attacked: Gateway, keys: tuple[str, str], bomb: str, record_property: Any
) -> None:
    attacker, bystander = keys
    content, code = BOMBS[bomb]
    async with served(attacked, bystander) as waits:
        answers = await asyncio.gather(*(upload(attacked, attacker, content) for _ in range(4)))
        async with asyncio.timeout(HEARD_WITHIN_S):
            while not waits:
                await asyncio.sleep(0.05)
    for answer in answers:
        (fault,) = answer.json()["errors"]
        assert (answer.status_code, fault["pointer"], fault["code"], fault["remedy"][-1]) == (422, "/file", code, ".")
    record_property("longest wait of a bystander, ms", round(max(waits)))
    assert max(waits) < BYSTANDER_MS_MAX
    assert await names_of(attacked, attacker) == []
    await spool_is_empty()


async def test_entities_of_a_docx_bring_no_file_of_the_gateway(
    attacked: Gateway, keys: tuple[str, str], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary-of-the-gateway")
    answer = await upload(
        attacked, keys[0], entities(f'<!ENTITY x SYSTEM "{secret.as_uri()}">', text="before &x; after")
    )
    assert answer.status_code == 201, answer.text
    read = await attacked.client.get(f"/files/{answer.json()['id']}/content?form=prompt", headers=bearer(keys[0]))
    assert "before" in read.text and "canary" not in read.text


async def test_a_polyglot_reaches_agents_as_a_picture_and_browsers_as_a_download(
    attacked: Gateway, keys: tuple[str, str]
) -> None:
    page = b"<script>fetch('/keys')</script>"
    polyglot = picture("GIF", comment=page) + archive("index.html") + page
    stored = await upload(attacked, keys[0], polyglot, "page.html", type="text/html")
    assert stored.json()["media_type"] == "image/gif"
    address = f"/files/{stored.json()['id']}/content"
    seen = await attacked.client.get(f"{address}?form=prompt", headers=bearer(keys[0]))
    assert page not in seen.content and b"index.html" not in seen.content
    for answer in (seen, await attacked.client.get(address, headers=bearer(keys[0]))):
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment")
        assert (
            answer.headers["x-content-type-options"] == "nosniff"
            and "sandbox" in answer.headers["content-security-policy"]
        )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\Windows\\win.ini", "win.ini"),
        ("a\r\nSet-Cookie: deliberate=x", "a%0D%0ASet-Cookie: deliberate=x"),
        ("\u202etxt.exe", "txt.exe"),
        ("..", ".."),
        ("x" * 1_000, "x" * 200),
    ],
    ids=["a path", "a path of Windows", "a header", "a reversed name", "a directory", "a long name"],
)
async def test_a_name_is_a_name(attacked: Gateway, keys: tuple[str, str], name: str, shown: str) -> None:
    stored = await upload(attacked, keys[0], NOTES + name.encode()[:9], name)
    assert stored.json()["name"] == shown
    read = await attacked.client.get(f"/files/{stored.json()['id']}/content", headers=bearer(keys[0]))
    assert "set-cookie" not in read.headers and "/" not in read.headers["content-disposition"].partition("''")[2]


async def test_the_digest_of_another_tenants_file_opens_and_tells_nothing(
    attacked: Gateway, keys: tuple[str, str]
) -> None:
    attacker, owner = keys
    hers = (await upload(attacked, owner, b"The offer: 12 millions.\n", "offer.txt")).json()["id"]
    unknown = f"file-{'0' * 64}"

    async def answers(id: str) -> list[tuple[int, str]]:
        asked = [("GET", f"/files/{id}", None), ("GET", f"/files/{id}/content", None), ("DELETE", f"/files/{id}", None)]
        body = {"task": "Tell it.", "evidence": [{"id": "a", "title": "a", "file": id}]}
        requests = [*asked, ("POST", "/deliberations", body), ("POST", "/deliberations/quote", body)]
        told = [await attacked.client.request(*it[:2], json=it[2], headers=bearer(attacker)) for it in requests]
        return [(answer.status_code, answer.text.replace(id, "ID").partition('"request_id"')[0]) for answer in told]

    of_hers, of_none = await answers(hers), await answers(unknown)
    assert of_hers == of_none and {status for status, _ in of_hers} <= {404, 422}
    # The same bytes of another tenant are a file of its own.
    mine = await upload(attacked, attacker, b"The offer: 12 millions.\n", "guess.txt")
    assert (mine.status_code, mine.json()["name"]) == (201, "guess.txt")
    assert (await attacked.client.delete(f"/files/{hers}", headers=bearer(attacker))).status_code == 204
    assert (await attacked.client.get(f"/files/{hers}", headers=bearer(owner))).json()["name"] == "offer.txt"


HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'


def posted(key: str, *headers: bytes) -> bytes:
    lines = (b"POST /files HTTP/1.1", b"Host: localhost", b"Authorization: Bearer " + key.encode())
    return b"\r\n".join((*lines, b"Content-Type: multipart/form-data; boundary=b", *headers, b"", b""))


async def test_an_upload_without_end_ends(attacked: Gateway, keys: tuple[str, str]) -> None:
    endless = (b"10000\r\n" + b"a" * 0x10000 + b"\r\n" for _ in range(100 * BYTES_MAX // 0x10000))
    begun = b"%x\r\n%s\r\n" % (len(HEAD), HEAD)

    def pieces() -> Iterator[bytes]:
        yield posted(keys[0], b"Transfer-Encoding: chunked") + begun
        yield from endless

    answer = await send(attacked.port, pieces(), timeout_s=10)
    assert answer.statuses == [413] and len([*endless]) > 90 * BYTES_MAX // 0x10000


@pytest.mark.parametrize(
    ("length", "content", "statuses"),
    [
        (1_000, HEAD + NOTES + b"\r\n--b--\r\n", []),
        (len(HEAD) + 4, HEAD + NOTES + b"\r\n--b--\r\n", [422]),
        (1 << 60, HEAD + NOTES, [413]),
    ],
    ids=["too long", "too short", "beyond all disks"],
)
async def test_an_upload_that_lies_about_its_length_stores_nothing(
    attacked: Gateway, keys: tuple[str, str], length: int, content: bytes, statuses: list[int]
) -> None:
    known = await names_of(attacked, keys[0])
    answer = await send(attacked.port, [posted(keys[0], b"Content-Length: %d" % length) + content], timeout_s=1)
    assert answer.statuses[:1] == statuses
    await spool_is_empty()
    assert await names_of(attacked, keys[0]) == known


async def test_stalled_uploads_of_one_tenant_leave_those_of_others(attacked: Gateway, keys: tuple[str, str]) -> None:
    attacker, bystander = keys
    opened = [await asyncio.open_connection("127.0.0.1", attacked.port) for _ in range(100)]
    for _, writer in opened:
        writer.write(posted(attacker, b"Content-Length: 100000") + HEAD)
    async with served(attacked, bystander) as waits, asyncio.timeout(30):
        while len(waits) < 20:
            await asyncio.sleep(0.05)
    assert max(waits) < BYSTANDER_MS_MAX
    for _, writer in opened:
        writer.transport.abort()


async def test_files_beyond_a_tenants_share_are_refused(attacked: Gateway, keys: tuple[str, str]) -> None:
    attacker, bystander = keys
    chance, refusal = random.Random(7), None
    for _ in range(8):
        answer = await upload(attacked, attacker, chance.randbytes(BYTES_MAX // 2 - 1_000).hex().encode())
        if answer.status_code != 201:
            refusal = answer
            break
    assert refusal is not None and (refusal.status_code, refusal.json()["code"]) == (413, "files_full")
    assert (await upload(attacked, bystander, NOTES)).status_code == 201
