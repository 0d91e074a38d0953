"""The OpenAPI document allows each request that the gateway accepted from the clients of this folder's other tests."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app.openapi.document import document
from tests.sdk.recorder import Recorded, Recorder

pytestmark = pytest.mark.sdk

# As many clients by their User-Agent, and these operations: with less the test would say little.
CLIENTS_MIN = 8
OPERATIONS = {"/deliberations", "/v1/chat/completions", "/v1/responses", "/ag-ui"}


def schema_of(request: Recorded) -> tuple[str, dict[str, Any]] | None:
    """The path's template and the schema of the body; None where the document has none of JSON."""
    for template, operations in document()["paths"].items():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
        content = operations.get(request.method.lower(), {}).get("requestBody", {}).get("content", {})
        if "application/json" in content and re.fullmatch(pattern, request.path):
            return template, content["application/json"]["schema"]
    return None


def violations(request: Recorded, schema: dict[str, Any]) -> Iterator[str]:
    """What the document forbids in an accepted body, by its place."""
    validator = Draft202012Validator({**schema, "components": document()["components"]})
    for error in validator.iter_errors(json.loads(request.body)):
        yield f"{request.client[:40]} {request.method} {request.path} {error.json_path}: {error.message[:200]}"


async def test_the_document_allows_what_the_gateway_accepted(recorder: Recorder) -> None:
    accepted = [request for request in recorder.requests if request.status < 400 and request.body]
    checked = [(request, declared) for request in accepted if (declared := schema_of(request)) is not None]
    assert OPERATIONS <= {template for _, (template, _) in checked}, "run the whole folder: its tests send the requests"
    clients = sorted({request.client for request, _ in checked})
    assert len(clients) >= CLIENTS_MIN, clients
    assert [fault for request, (_, schema) in checked for fault in violations(request, schema)] == []
