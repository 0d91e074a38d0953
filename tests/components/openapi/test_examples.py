"""Every example of the document is executed: what it asks is answered with what it shows, and fits its schema."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import jsonschema
import pytest

from app.api.problems import STATUSES
from app.client import SseDecoder
from app.deliberation.facts import CallDelta, CallStarted, decode
from app.openapi.document import document
from app.openapi.example_log import EPOCH, TENANT, log, told
from app.openapi.examples import EVENT_STREAM, Exhibit, exhibits
from app.testing import InMemoryJournal
from tests.components.routes.served import COORDINATOR, SENDER, Served, served

CASES = [(operation, exhibit) for operation, shown in exhibits().items() for exhibit in shown]


def declared() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Method, path and declaration of each operation, by its id."""
    return {
        operation["operationId"]: (method, path, operation)
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
        if method != "parameters"
    }


def fits(value: object, schema: dict[str, Any]) -> None:
    """Raises ValidationError unless the value is as the schema says."""
    jsonschema.Draft202012Validator({**schema, "components": document()["components"]}).validate(value)


def request_of(operation_id: str, exhibit: Exhibit) -> dict[str, Any]:
    """The request that an example describes, made of the document's words alone."""
    method, path, operation = declared()[operation_id]
    query: dict[str, Any] = {}
    headers: dict[str, str] = {"Accept": exhibit.media}
    for name, value in exhibit.parameters.items():
        match place_of(operation, name):
            case "path":
                path = path.replace(f"{{{name}}}", str(value))
            case "query":
                query[name] = value
            case _:
                headers[name] = str(value)
    asked = {"method": method.upper(), "url": path, "params": query, "headers": headers}
    return asked if exhibit.body is None else {**asked, "json": exhibit.body}


def place_of(operation: dict[str, Any], name: str) -> str:
    """Where a parameter is sent; a property of an exploded object is one of its own."""
    return next(each["in"] for each in operation["parameters"] if each["name"] in (name, name.partition(".")[0]))


async def _played(gateway: Served, begun: set[str]) -> None:
    """Bring everything that is accepted beside what has `begun` to its end, as a coordinator would."""
    while True:
        for record in list(gateway.journal.records):
            if record.tokens[2] not in begun and record.tokens[-1] == "accepted":
                begun.add(record.tokens[2])
                await gateway.play(record.tokens[2])
        await asyncio.sleep(0.005)


@asynccontextmanager
async def exhibiting() -> AsyncGenerator[Served, None]:
    """The gateway for which the examples hold."""
    journal = InMemoryJournal(epoch=EPOCH, replies={"control.coordinator": [COORDINATOR], "control.webhooks": [SENDER]})
    for record in log():
        event = decode(record.data)
        if isinstance(event, CallStarted | CallDelta):
            await journal.publish_view(TENANT, event)
        else:
            await journal.append(TENANT, event)
    for record in told():
        await journal.write(record.subject, record.data)
    assert journal.records == [*log(), *told()]
    async with served(journal=journal, webhooks=True) as gateway, asyncio.TaskGroup() as group:
        playing = group.create_task(_played(gateway, {record.tokens[2] for record in log()}))
        yield gateway
        playing.cancel()


@pytest.mark.parametrize(("operation_id", "exhibit"), CASES, ids=[f"{name}-{each.name}" for name, each in CASES])
async def test_an_example_is_answered_as_it_shows(operation_id: str, exhibit: Exhibit) -> None:
    operation = declared()[operation_id][2]
    async with exhibiting() as gateway, asyncio.timeout(10):
        response = await gateway.client.request(**request_of(operation_id, exhibit))
    assert response.status_code == exhibit.status, response.text
    answer = operation["responses"][str(exhibit.status)]
    if "content" not in answer:
        assert response.content == b""
        return
    media: str = response.headers["Content-Type"].partition(";")[0]
    schema = answer["content"][media]["schema"]
    if media == EVENT_STREAM:
        frames = [frame for frame in SseDecoder().feed(response.content) if frame.data and frame.data != "[DONE]"]
        assert frames
        for frame in frames:
            fits(frame.fields(), schema)
        return
    content: Any = json.loads(response.content) if media.endswith("json") else response.text
    fits(content, schema)
    if exhibit.exact:
        assert content == exhibit.answer
    elif exhibit.answer is not None and media.endswith("json"):
        assert content.keys() == exhibit.answer.keys()


def test_every_operation_has_an_example_of_what_is_asked_and_of_what_is_answered() -> None:
    for name, (_, _, operation) in declared().items():
        shown = exhibits()[name]
        required = [each["name"] for each in operation.get("parameters", ()) if each.get("required")]
        assert all(parameter in exhibit.parameters for exhibit in shown for parameter in required), name
        if "requestBody" in operation:
            assert operation["requestBody"]["content"]["application/json"]["examples"], name
        succeeded = {status: answer for status, answer in operation["responses"].items() if int(status) < 400}
        for status, answer in succeeded.items():
            assert any(str(exhibit.status) == status for exhibit in shown), (name, status)
            for media, content in answer.get("content", {}).items():
                assert content.get("examples"), (name, status, media)
    assert exhibits().keys() == declared().keys()


def test_every_parameter_that_may_be_given_is_shown_or_told() -> None:
    for name, (_, _, operation) in declared().items():
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), (name, parameter["name"])


@pytest.mark.parametrize(("operation_id", "exhibit"), CASES, ids=[f"{name}-{each.name}" for name, each in CASES])
def test_what_an_example_shows_fits_its_schema(operation_id: str, exhibit: Exhibit) -> None:
    operation = declared()[operation_id][2]
    if exhibit.body is not None and exhibit.status < 400:
        fits(exhibit.body, operation["requestBody"]["content"]["application/json"]["schema"])
    if exhibit.answer is not None:
        fits(exhibit.value, operation["responses"][str(exhibit.status)]["content"][exhibit.media]["schema"])
    for name, value in exhibit.parameters.items() if exhibit.status != 400 else ():
        parameter = next(each for each in operation["parameters"] if each["name"] in (name, name.partition(".")[0]))
        fits({name: value} if parameter["schema"].get("type") == "object" else value, parameter["schema"])


def test_every_problem_has_an_example() -> None:
    components = document()["components"]
    assert components["examples"].keys() == STATUSES.keys()
    for code, example in components["examples"].items():
        fits(example["value"], components["schemas"]["Problem"])
        assert (example["value"]["code"], example["value"]["status"]) == (code, STATUSES[code][0])
