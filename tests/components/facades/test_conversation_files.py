"""Files and pictures in conversations, and conversations that are long, by OpenAI's own client and by hand."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from app.api.requests import INLINE_CHARS_MAX
from app.deliberation.specification import Evidence
from tests.components.access.keyed import PEPPER, bearer, make_key
from tests.components.facades.chatting import BODY, PATH, accepted_in, complete, error_of, play
from tests.components.inputs.files import pdf, picture
from tests.components.routes.served import COORDINATOR, Served, served
from tests.conditions import until
from tests.fakes import InMemoryJournal

PNG = picture("PNG")
NOTES = "Sales of März: 12.\n".encode()


def data_url(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def id_of(content: bytes) -> str:
    return f"file-{hashlib.sha256(content).hexdigest()}"


def short(content: bytes) -> str:
    return id_of(content)[:13]


@pytest.fixture
async def client(gateway: Served) -> AsyncGenerator[openai.AsyncOpenAI]:
    over_http: Any = gateway.client
    yield openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="unused", http_client=over_http, max_retries=0)


async def answered(gateway: Served, asking: Coroutine[Any, Any, Any]) -> Any:
    before = len(accepted_in(gateway))
    task = asyncio.create_task(asking)
    await until(lambda: len(accepted_in(gateway)) > before or task.done())
    if not task.done():
        await play(gateway, accepted_in(gateway)[-1].deliberation_id)
    return await task


def evidence_in(gateway: Served) -> tuple[Evidence, ...]:
    return accepted_in(gateway)[-1].specification.evidence


def asked(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *parts]}]}


def of_picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


async def test_a_chat_takes_a_picture_and_a_file_in_their_places(gateway: Served, client: openai.AsyncOpenAI) -> None:
    content: Any = [
        {"type": "text", "text": "Compare"},
        {"type": "image_url", "image_url": {"url": data_url(PNG), "detail": "high"}},
        {"type": "text", "text": "with"},
        {"type": "file", "file": {"filename": "../notes.txt", "file_data": base64.b64encode(NOTES).decode()}},
    ]
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": content}]
    completion = await answered(gateway, client.chat.completions.create(model="single/DEV", messages=messages))
    assert completion.choices[0].message.content
    asked_for = accepted_in(gateway)[-1].specification
    assert asked_for.task == f"Compare\n[evidence {short(PNG)}]\nwith\n[evidence {short(NOTES)}]"
    told = [(known.id, known.title, known.file and known.file.kind) for known in evidence_in(gateway)]
    assert told == [
        (short(PNG), "A picture of the conversation", "picture"),
        (short(NOTES), "notes.txt", "text"),
    ]


async def test_a_response_takes_an_upload_by_its_id(gateway: Served, client: openai.AsyncOpenAI) -> None:
    known = await client.files.create(file=("notes.txt", NOTES), purpose="user_data")
    assert (known.id, known.bytes, known.filename, known.status) == (
        id_of(NOTES), len(NOTES), "notes.txt", "processed",
    )  # fmt: skip
    parts: Any = [
        {"type": "input_text", "text": "Sum up."},
        {"type": "input_file", "file_id": known.id},
        {"type": "input_image", "image_url": data_url(PNG), "detail": "auto"},
    ]
    asking = client.responses.create(model="single/DEV", input=[{"role": "user", "content": parts}])
    first = await answered(gateway, asking)
    assert [evidence.title for evidence in evidence_in(gateway)] == ["notes.txt", "A picture of the conversation"]

    more = client.responses.create(model="single/DEV", input="And shorter?", previous_response_id=first.id)
    await answered(gateway, more)
    assert [evidence.id for evidence in evidence_in(gateway)] == [short(NOTES), short(PNG)]
    assert f"[evidence {short(PNG)}]" in accepted_in(gateway)[-1].specification.task


async def test_the_same_file_twice_is_one_piece_of_evidence(gateway: Served) -> None:
    await complete(gateway, **asked(of_picture(data_url(PNG)), of_picture(data_url(PNG))))
    assert [evidence.id for evidence in evidence_in(gateway)] == [short(PNG)]


async def test_the_same_request_with_its_key_asks_nothing_anew(gateway: Served) -> None:
    body = asked(of_picture(data_url(PNG)))
    first = await complete(gateway, headers={"Idempotency-Key": "k"}, **body)
    again = await gateway.client.post(PATH, json=BODY | body, headers={"Idempotency-Key": "k"})
    assert first.json()["id"] == again.json()["id"] and len(accepted_in(gateway)) == 1


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no base64": (of_picture("data:image/png;base64,§"), "messages[0].content", "invalid_base64"),
    "long and no base64": (of_picture("data:image/png;base64,*" + "A" * 3_900_000), "messages[0].content",
                           "invalid_base64"),
    "another coding": (of_picture("data:image/png,abc"), "messages[0].content", "invalid_base64"),
    "a URL": (of_picture("http://127.0.0.1/a.png"), "messages[0].content", "unsupported_url"),
    "a PDF as a picture": (of_picture(data_url(pdf(["One."]))), "messages[0].content[1]", "no_picture"),
    "an empty file": ({"type": "file", "file": {"file_data": "", "filename": "a"}}, "messages[0].content[1]",
                      "empty_file"),
    "a program": ({"type": "file", "file": {"file_data": base64.b64encode(b"\x7fELF\x02\x01\x01\0\0\0").decode()}},
                  "messages[0].content[1]", "unsupported_file"),
    "an unknown upload": ({"type": "file", "file": {"file_id": "file-" + "0" * 64}}, "messages[0].content[1]",
                          "unknown_file"),
    "no id of an upload": ({"type": "file", "file": {"file_id": "file-abc"}}, "messages[0].content", "unknown_file"),
    "no file": ({"type": "file", "file": {"filename": "a"}}, "messages[0].content", "unsupported_content"),
    "a sound": ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "messages[0].content",
                "unsupported_content"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
async def test_refuses_a_file_by_its_place_and_accepts_nothing(gateway: Served, case: str) -> None:
    part, param, code = REFUSED[case]
    response = await gateway.client.post(PATH, json=BODY | asked(part))
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (400, param, code), error
    assert accepted_in(gateway) == []


async def test_a_request_that_is_refused_stores_no_file(gateway: Served) -> None:
    for body in (
        asked(of_picture(data_url(PNG))) | {"model": "unknown/DEV"},
        asked(of_picture(data_url(PNG)), {"type": "file", "file": {"file_id": "file-" + "0" * 64}}),
        asked(*(of_picture(data_url(PNG + bytes([number]))) for number in range(100))),
    ):
        response = await gateway.client.post(PATH, json=BODY | body)
        assert 400 <= response.status_code < 500
    assert error_of(response)["message"] == "messages: The conversation has too many files. Give at most 32."
    assert (await gateway.client.get("/files")).json()["files"] == []


async def test_a_file_of_another_tenant_is_unknown() -> None:
    journal = InMemoryJournal(replies={"control.coordinator": [COORDINATOR]})
    acme, rival = await make_key(journal, "acme"), await make_key(journal, "rival")
    async with served(journal=journal, key_pepper=PEPPER) as gateway:
        upload: Any = {"files": {"file": ("notes.txt", NOTES)}, "data": {"purpose": "assistants"}}
        stored = await gateway.client.post("/v1/files", **upload, headers=bearer(acme))
        body = BODY | asked({"type": "file", "file": {"file_id": stored.json()["id"]}})
        refused = await gateway.client.post(PATH, json=body, headers=bearer(rival))
        assert error_of(refused)["code"] == "unknown_file"
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            answer = await gateway.client.request(method, f"/v1/files/{id_of(NOTES)}{path}", headers=bearer(rival))
            assert answer.status_code == 404
        assert (await gateway.client.get(f"/v1/files/{id_of(NOTES)}", headers=bearer(acme))).status_code == 200


async def test_files_are_managed_by_openais_client(gateway: Served, client: openai.AsyncOpenAI) -> None:
    notes = await client.files.create(file=("notes.txt", NOTES), purpose="user_data")
    shown = await client.files.create(file=("a.png", PNG), purpose="vision")
    assert shown.expires_at is not None and shown.expires_at - shown.created_at == 3_600
    assert await client.files.retrieve(notes.id) == notes
    assert [file.id async for file in client.files.list(limit=1)] == [shown.id, notes.id]
    assert [file.id async for file in client.files.list(purpose="batch")] == []
    assert (await client.files.content(notes.id)).content == NOTES
    assert (await client.files.delete(shown.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(shown.id)
    with pytest.raises(openai.BadRequestError, match="Nothing here reads files for 'batch'") as refused:
        await client.files.create(file=("a.jsonl", b"{}"), purpose="batch")
    assert (refused.value.param, refused.value.code) == ("purpose", "unsupported_value")
    with pytest.raises(openai.BadRequestError, match="holds no text") as empty:
        await client.files.create(file=("a.txt", b""), purpose="user_data")
    assert (empty.value.param, empty.value.code) == ("file", "empty_file")


async def test_a_named_file_is_not_deleted(gateway: Served, client: openai.AsyncOpenAI) -> None:
    await complete(gateway, **asked(of_picture(data_url(PNG))))
    with pytest.raises(openai.ConflictError):
        await client.files.delete(id_of(PNG))
    assert (await client.files.retrieve(id_of(PNG))).expires_at is None


def turns(count: int, characters: int) -> list[dict[str, str]]:
    return [
        {"role": "user" if number % 2 else "assistant", "content": f"{number}: " + "word " * (characters // 5)}
        for number in range(count - 1)
    ] + [{"role": "user", "content": "And the last word?"}]  # fmt: skip


async def test_a_chat_of_200_turns_and_400_kb_completes(gateway: Served) -> None:
    conversation = turns(200, 2_000)
    assert sum(len(turn["content"]) for turn in conversation) > 390_000
    answer = await complete(gateway, messages=conversation)
    assert answer.status_code == 200
    asked_for = accepted_in(gateway)[-1].specification
    assert asked_for.task_file is not None and len(asked_for.task) < INLINE_CHARS_MAX
    stored = gateway.journal.inputs.parts["default", asked_for.task_file.sha256]["original"].decode()
    assert all(turn["content"] in stored for turn in conversation)


@pytest.mark.parametrize("last", ["And the last word?", "First. " + "word " * 10_000 + "Last."])
async def test_a_list_shows_the_last_message_of_a_long_chat(last: str) -> None:
    async with served(lists=True) as gateway:
        await complete(gateway, messages=[*turns(40, 2_000), {"role": "user", "content": last}])
        (listed,) = (await gateway.client.get("/deliberations")).json()["items"]
        assert listed["task"] and listed["task"] in last


async def test_a_long_conversation_goes_on_by_its_response(gateway: Served, client: openai.AsyncOpenAI) -> None:
    conversation: Any = turns(200, 2_000)
    told = "Be brief. " * 400
    asking = client.responses.create(model="single/DEV", input=conversation, instructions=told)
    first = await answered(gateway, asking)
    assert first.instructions == told
    items = [item async for item in client.responses.input_items.list(first.id, order="asc", limit=100)]
    texts = [part.text for item in items for part in getattr(item, "content", ()) if part.type != "refusal"]
    assert texts == [turn["content"] for turn in conversation]

    more = client.responses.create(model="single/DEV", input="Go on.", previous_response_id=first.id)
    await answered(gateway, more)
    asked_for = accepted_in(gateway)[-1].specification
    assert asked_for.task_file is not None
    stored = gateway.journal.inputs.parts["default", asked_for.task_file.sha256]["original"].decode()
    assert all(turn["content"] in stored for turn in conversation) and stored.endswith("Go on.")
