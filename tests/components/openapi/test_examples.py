import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import jsonschema
import pytest

from app.api.problems import STATUSES
from app.client import SseDecoder
from app.openapi.document import document, document_3_2
from app.openapi.examples import DELIVERY, EVENT_STREAM, ID, PLAN_ID
from tests.components.openapi.documented import declarations
from tests.components.openapi.example_journal import example_journal
from tests.components.routes.served import AGENT, COORDINATOR, SENDER, Served, served


def declared() -> dict[str, tuple[str, str, dict[str, Any]]]:
    return {operation["operationId"]: (method, path, operation) for method, path, operation in declarations()}


def bodies(operation: dict[str, Any]) -> list[Any]:
    if "requestBody" not in operation:
        return [None]
    content = operation["requestBody"]["content"]
    if "multipart/form-data" in content:
        # A file has none.
        return [None]
    examples = content["application/json"]["examples"]
    return [example["value"] for example in examples.values()]


def answers(operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for status, answer in operation["responses"].items():
        if int(status) < 400:
            yield from answer.get("content", {}).values()


def assert_matches(value: object, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator({**schema, "components": document()["components"]}).validate(value)


@pytest.mark.parametrize("name", declared())
def test_every_example_matches_its_schema(name: str) -> None:
    _, _, operation = declared()[name]
    for parameter in operation.get("parameters", ()):
        assert parameter["description"]
        if parameter.get("required"):
            assert_matches(parameter["example"], parameter["schema"])
    for body in bodies(operation):
        if body is not None:
            assert_matches(body, operation["requestBody"]["content"]["application/json"]["schema"])
    for content in answers(operation):
        assert_matches(content["example"], content["schema"])


def test_every_body_has_an_example() -> None:
    without = {name for name, (_, _, operation) in declared().items() if bodies(operation) == []}
    remedy = 'declare the model of the body with json_schema_extra={"examples": [...]}, as the other facades do'
    assert without == set(), remedy


def test_an_event_stream_is_shown_as_it_is_sent() -> None:
    for methods in document_3_2()["paths"].values():
        for operation in (each for name, each in methods.items() if name != "parameters"):
            for content in (each for each in answers(operation) if "itemSchema" in each):
                (example,) = content["examples"].values()
                first, *rest = SseDecoder().feed(example["serializedValue"].encode())
                assert first.fields() and [each.data for each in rest] in ([], ["[DONE]"])


def test_the_webhook_and_every_problem_have_an_example() -> None:
    content = document()["webhooks"]["event"]["post"]["requestBody"]["content"]["application/json"]
    assert_matches(content["example"], content["schema"])
    components = document()["components"]
    assert components["examples"].keys() == STATUSES.keys()
    for code, example in components["examples"].items():
        assert_matches(example["value"], components["schemas"]["Problem"])
        assert (example["value"]["code"], example["value"]["status"]) == (code, STATUSES[code][0])


async def _play_new(gateway: Served) -> None:
    known = {ID}
    while True:
        for record in list(gateway.journal.records):
            if record.tokens[2] not in known and record.tokens[-1] == "accepted":
                known.add(record.tokens[2])
                await gateway.play(record.tokens[2])
        await asyncio.sleep(0.005)


@asynccontextmanager
async def example_gateway() -> AsyncGenerator[Served, None]:
    replies = {"coordinator": COORDINATOR, "role.DEV": AGENT, "webhooks": SENDER, "archive": {"replica": "archive-8"}}
    journal = await example_journal(**replies)
    settings: dict[str, Any] = {"webhooks": True, "lists": True, "stream_age_max_s": 0.1, "archive_retention_s": 86_400}
    async with served(journal=journal, **settings) as gateway, asyncio.TaskGroup() as group:
        await gateway.copied()
        playing = group.create_task(_play_new(gateway))
        yield gateway
        playing.cancel()


@pytest.mark.parametrize(
    ("name", "place"), [(n, p) for n, each in declared().items() for p, _ in enumerate(bodies(each[2]))]
)
async def test_the_gateway_takes_the_documented_request(name: str, place: int) -> None:
    method, path, operation = declared()[name]
    for parameter in operation.get("parameters", ()):
        path = path.replace(f"{{{parameter['name']}}}", str(parameter.get("example")))
    body = bodies(operation)[place]
    async with example_gateway() as gateway, asyncio.timeout(10):
        if PLAN_ID in path:
            (plan,) = bodies(declared()["approve_plan"][2])
            assert (await gateway.client.post("/plans", json=plan)).status_code == 202
        if name == "connect_agent":
            assert (await gateway.client.post("/ag-ui", json=body)).is_success
        if name in ("create_file", "create_openai_file"):
            files = {"file": ("notes.md", b"# Notes", "text/markdown")}
            response = await gateway.client.post(path, files=files, data={"purpose": "user_data"})
        else:
            response = await gateway.client.request(method, path, json=body)
    if DELIVERY in path:
        # Its id is the hash of a fact.
        assert response.status_code == 404
        return
    if path.startswith("/keys") and method != "GET":
        assert response.json()["code"] == "keys_read_only", "a gateway that asks for no keys makes none"
        return
    assert response.is_success, response.text
    content = operation["responses"][str(response.status_code)].get("content", {})
    media: str = response.headers.get("Content-Type", "").partition(";")[0]
    if not content:
        assert response.content == b""
    elif media == EVENT_STREAM:
        frames = [frame for frame in SseDecoder().feed(response.content) if frame.data and frame.data != "[DONE]"]
        assert frames
        for frame in frames:
            assert_matches(frame.fields(), content[media]["schema"])
    else:
        assert_matches(
            json.loads(response.content) if media.endswith("json") else response.text, content[media]["schema"]
        )
