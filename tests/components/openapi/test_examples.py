"""Every example of the document is executed: the gateway gives its answer, which matches the schema."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import jsonschema
import pytest

from app.api.problems import STATUSES
from app.client import SseDecoder
from app.openapi.document import document
from app.openapi.example_log import log_records
from app.openapi.examples import EVENT_STREAM, RETENTION_S, Example, examples
from tests.components.openapi.example_journal import example_journal
from tests.components.routes.served import COORDINATOR, SENDER, Served, served

CASES = [(operation, example) for operation, entries in examples().items() for example in entries]


def declared() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Method, path and declaration of each operation, by id."""
    return {
        operation["operationId"]: (method, path, operation)
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
        if method != "parameters"
    }


def assert_matches(value: object, schema: dict[str, Any]) -> None:
    """Raise ValidationError unless the value matches the schema."""
    jsonschema.Draft202012Validator({**schema, "components": document()["components"]}).validate(value)


def request_of(operation_id: str, example: Example) -> dict[str, Any]:
    """The request of an example, built from the document alone."""
    method, path, operation = declared()[operation_id]
    query: dict[str, Any] = {}
    headers: dict[str, str] = {"Accept": example.media}
    for name, value in example.parameters.items():
        match location_of(operation, name):
            case "path":
                path = path.replace(f"{{{name}}}", str(value))
            case "query":
                query[name] = value
            case _:
                headers[name] = str(value)
    request = {"method": method.upper(), "url": path, "params": query, "headers": headers}
    return request if example.body is None else {**request, "json": example.body}


def location_of(operation: dict[str, Any], name: str) -> str:
    """Where a parameter is sent; each property of an exploded object is a parameter."""
    return next(each["in"] for each in operation["parameters"] if each["name"] in (name, name.partition(".")[0]))


async def _play_new(gateway: Served, known: set[str]) -> None:
    """Play every accepted deliberation except the `known` ones to its end."""
    while True:
        for record in list(gateway.journal.records):
            if record.tokens[2] not in known and record.tokens[-1] == "accepted":
                known.add(record.tokens[2])
                await gateway.play(record.tokens[2])
        await asyncio.sleep(0.005)


@asynccontextmanager
async def example_gateway() -> AsyncGenerator[Served, None]:
    """A gateway with the log of the examples."""
    journal = await example_journal(coordinator=COORDINATOR, webhooks=SENDER, archive={"replica": "archive-8"})
    async with (
        served(journal=journal, webhooks=True, lists=True, archive_retention_s=RETENTION_S) as gateway,
        asyncio.TaskGroup() as group,
    ):
        await gateway.copied()
        playing = group.create_task(_play_new(gateway, {record.tokens[2] for record in log_records()}))
        yield gateway
        playing.cancel()


@pytest.mark.parametrize(("operation_id", "example"), CASES, ids=[f"{name}-{each.name}" for name, each in CASES])
async def test_the_gateway_answers_as_the_example(operation_id: str, example: Example) -> None:
    operation = declared()[operation_id][2]
    async with example_gateway() as gateway, asyncio.timeout(10):
        response = await gateway.client.request(**request_of(operation_id, example))
    assert response.status_code == example.status, response.text
    answer = operation["responses"][str(example.status)]
    if "content" not in answer:
        assert response.content == b""
        return
    media: str = response.headers["Content-Type"].partition(";")[0]
    schema = answer["content"][media]["schema"]
    if media == EVENT_STREAM:
        frames = [frame for frame in SseDecoder().feed(response.content) if frame.data and frame.data != "[DONE]"]
        assert frames
        for frame in frames:
            assert_matches(frame.fields(), schema)
        return
    content: Any = json.loads(response.content) if media.endswith("json") else response.text
    assert_matches(content, schema)
    if example.answer is not None and media.endswith("json"):
        assert content == example.answer if example.exact else content.keys() == example.answer.keys()


def test_every_operation_has_examples_of_request_and_answers() -> None:
    for name, (_, _, operation) in declared().items():
        entries = examples()[name]
        required = [each["name"] for each in operation.get("parameters", ()) if each.get("required")]
        assert all(parameter in example.parameters for example in entries for parameter in required), name
        if "requestBody" in operation:
            assert operation["requestBody"]["content"]["application/json"]["examples"], name
        succeeded = {status: answer for status, answer in operation["responses"].items() if int(status) < 400}
        for status, answer in succeeded.items():
            assert any(str(example.status) == status for example in entries), (name, status)
            for media, content in answer.get("content", {}).items():
                assert content.get("examples"), (name, status, media)
    assert examples().keys() == declared().keys()


def test_every_parameter_has_a_description() -> None:
    for name, (_, _, operation) in declared().items():
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), (name, parameter["name"])


@pytest.mark.parametrize(("operation_id", "example"), CASES, ids=[f"{name}-{each.name}" for name, each in CASES])
def test_examples_match_their_schemas(operation_id: str, example: Example) -> None:
    operation = declared()[operation_id][2]
    if example.body is not None and example.status < 400:
        assert_matches(example.body, operation["requestBody"]["content"]["application/json"]["schema"])
    if example.answer is not None:
        assert_matches(example.value, operation["responses"][str(example.status)]["content"][example.media]["schema"])
    for name, value in example.parameters.items() if example.status != 400 else ():
        parameter = next(each for each in operation["parameters"] if each["name"] in (name, name.partition(".")[0]))
        assert_matches({name: value} if parameter["schema"].get("type") == "object" else value, parameter["schema"])


def test_every_problem_has_an_example() -> None:
    components = document()["components"]
    assert components["examples"].keys() == STATUSES.keys()
    for code, example in components["examples"].items():
        assert_matches(example["value"], components["schemas"]["Problem"])
        assert (example["value"]["code"], example["value"]["status"]) == (code, STATUSES[code][0])
