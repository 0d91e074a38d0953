import asyncio
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import pytest
from openapi_spec_validator import validate

from app.access.authorization import ACCESS
from app.api.problems import STATUSES
from app.facades.openai_errors import OPENAI_STATUSES
from app.openapi.document import document, document_3_2, encoded
from app.routes.pages import UI
from tests.components.access.keyed import PEPPER
from tests.components.openapi.documented import declarations, operations, references
from tests.components.routes.served import served

# SDKs are generated from these names: changing one breaks their users.
OPERATIONS = {
    "create_deliberation": "POST /deliberations",
    "quote_deliberation": "POST /deliberations/quote",
    "list_deliberations": "GET /deliberations",
    "get_deliberation": "GET /deliberations/{deliberation_id}",
    "cancel_deliberation": "POST /deliberations/{deliberation_id}/cancel",
    "delete_deliberation": "DELETE /deliberations/{deliberation_id}",
    "create_file": "POST /files",
    "list_files": "GET /files",
    "get_file": "GET /files/{file_id}",
    "get_file_content": "GET /files/{file_id}/content",
    "delete_file": "DELETE /files/{file_id}",
    "create_openai_file": "POST /v1/files",
    "list_openai_files": "GET /v1/files",
    "get_openai_file": "GET /v1/files/{file_id}",
    "get_openai_file_content": "GET /v1/files/{file_id}/content",
    "delete_openai_file": "DELETE /v1/files/{file_id}",
    "approve_plan": "POST /plans",
    "get_plan": "GET /plans/{plan_id}",
    "read_deliberation_events": "GET /deliberations/{deliberation_id}/events",
    "read_events": "GET /events",
    "list_deliveries": "GET /deliberations/{deliberation_id}/deliveries",
    "redeliver": "POST /deliberations/{deliberation_id}/deliveries/{delivery_id}/redeliver",
    "list_roles": "GET /roles",
    "get_role": "GET /roles/{role}",
    "list_strategies": "GET /strategies",
    "list_tools": "GET /tools",
    "create_chat_completion": "POST /v1/chat/completions",
    "create_response": "POST /v1/responses",
    "get_response": "GET /v1/responses/{response_id}",
    "cancel_response": "POST /v1/responses/{response_id}/cancel",
    "delete_response": "DELETE /v1/responses/{response_id}",
    "list_input_items": "GET /v1/responses/{response_id}/input_items",
    "run_agent": "POST /ag-ui",
    "connect_agent": "POST /ag-ui/connect",
    "list_models": "GET /v1/models",
    "get_model": "GET /v1/models/{model}",
    "list_keys": "GET /keys",
    "create_key": "POST /keys",
    "revoke_key": "DELETE /keys/{key_id}",
    "log_in": "POST /login",
    "get_session": "GET /login",
    "log_out": "POST /logout",
    "get_health": "GET /healthz",
    "get_readiness": "GET /readyz",
    "get_stats": "GET /stats",
    "get_metrics": "GET /metrics",
    "get_status": "GET /status",
}


@pytest.mark.parametrize(("edition", "made"), [("3.1.0", document), ("3.2.0", document_3_2)])
def test_both_documents_are_valid(edition: str, made: Callable[[], dict[str, Any]]) -> None:
    assert made()["openapi"] == edition
    validate(made())


def streams(described: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        operation["operationId"]: answer["content"]["text/event-stream"]
        for path in described["paths"].values()
        for method, operation in path.items()
        if method != "parameters"
        for answer in operation["responses"].values()
        if "text/event-stream" in answer.get("content", {})
    }


def test_the_editions_differ_only_in_the_schemas_of_streams() -> None:
    first, second = streams(document()), streams(document_3_2())
    assert first.keys() == second.keys() >= {"read_deliberation_events", "create_chat_completion"}
    for name, content in first.items():
        item = second[name]["itemSchema"]
        assert "schema" not in second[name] and "itemSchema" not in content
        data = item["properties"]["data"]
        assert data.get("anyOf", [data])[-1]["contentSchema"] == content["schema"]
    described = deepcopy(document_3_2()) | {"openapi": "3.1.0"}
    for name, content in streams(described).items():
        content.clear()
        content.update(first[name])
    assert described == document()


def test_operation_ids_are_stable() -> None:
    described = {name: f"{method} {path}" for name, method, path in operations()}
    assert described == OPERATIONS, "add a new operation to OPERATIONS here"


def test_every_tag_is_described() -> None:
    described = {tag["name"] for tag in document()["tags"]}
    tags = {tag for _, _, operation in declarations() for tag in operation["tags"]}
    assert tags <= described, f"describe {tags - described} in _TAGS of app/openapi/document.py, or in its Facade"


def test_every_path_is_in_the_table_of_routes() -> None:
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    lacking = {path for _, path, _ in declarations() if not re.search(rf"/{path.split('/')[1]}\b", page)}
    assert lacking == set(), f"describe {lacking} in the table of docs/api.md"


def test_schemas_have_one_name_each() -> None:
    assert [name for name in document()["components"]["schemas"] if name.endswith(("-Input", "-Output"))] == []
    assert "HTTPValidationError" not in document()["components"]["schemas"]
    assert "HTTPValidationError" not in json.dumps(document())


def test_errors_are_problem_documents_and_openai_errors_under_v1() -> None:
    declared = {str(status) for status, _ in STATUSES.values()}
    of_chat = declared | {str(status) for status, _ in OPENAI_STATUSES.values()}
    for method, path, operation in declarations():
        chat = path.startswith("/v1/")
        media, name = ("application/json", "OpenAIError") if chat else ("application/problem+json", "Problem")
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert status in (of_chat if chat else declared)
                schema = answer["content"][media]["schema"]
                assert schema == {"$ref": f"#/components/schemas/{name}"}, (method, path, status)


def test_every_response_declares_the_request_id() -> None:
    for method, path, operation in declarations():
        for status, answer in operation["responses"].items():
            assert "X-Request-Id" in answer.get("headers", {}), (method, path, status)


def test_every_reference_resolves() -> None:
    for reference in references(document()):
        _, _, kind, name = reference.split("/")
        assert name in document()["components"][kind], reference
    # Operations declare neither the answer to a method that their path lacks nor to a head out of bounds.
    unused = {
        "headers": {"Allow"},
        "examples": {"method_not_allowed", "head_too_large", "target_too_long"},
        "schemas": set[str](),
        "parameters": set[str](),
    }
    for kind, names in unused.items():
        used = {found.rpartition("/")[2] for found in references(document()) if f"/{kind}/" in found}
        assert document()["components"][kind].keys() - used == names


def choices_of_one(node: object) -> list[object]:
    match node:
        case dict():
            inner = cast("dict[str, object]", node)
            choices = (inner.get(name) for name in ("anyOf", "oneOf"))
            here: list[object] = [given for given in choices if isinstance(given, list) and len(given) < 2]
            return here + [found for value in inner.values() for found in choices_of_one(value)]
        case list():
            return [found for value in cast("list[object]", node) for found in choices_of_one(value)]
        case _:
            return []


def test_schemas_avoid_what_code_generators_drop() -> None:
    schemas = document()["components"]["schemas"]
    assert choices_of_one(schemas) == []
    assert "patternProperties" not in json.dumps(document()["paths"])
    answers = [answer for _, _, operation in declarations() for answer in operation["responses"].values()]
    shared = [list(answer["content"]) for answer in answers if len(answer.get("content", {})) > 1]
    assert {media[-1] for media in shared if "text/event-stream" in media} == {"text/event-stream"}


@pytest.mark.parametrize(("path", "made"), [("/openapi.json", document), ("/openapi-3.2.json", document_3_2)])
async def test_serves_the_generated_document(path: str, made: Callable[..., dict[str, Any]]) -> None:
    async with served() as gateway:
        response = await gateway.client.get(path)
        page = await gateway.client.get("/docs")
    assert response.json() == json.loads(json.dumps(made(development=True)))
    assert page.status_code == 200 and "/openapi.json" in page.text


async def test_requests_that_come_at_once_share_one_generation() -> None:
    encoded.cache_clear()
    document.cache_clear()
    async with served() as gateway:
        answers = await asyncio.gather(*(gateway.client.get("/openapi.json") for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert document.cache_info().misses == 1


async def test_the_docs_page_loads_nothing_from_other_hosts() -> None:
    async with served() as gateway:
        page = await gateway.client.get("/docs")
        assets = {path: await gateway.client.get(path) for path in re.findall(r'(?:src|href)="(/[^"]+)"', page.text)}
    assert not re.search(r"https?://", page.text)
    served_assets = {
        path: (asset.status_code, asset.headers["content-type"].partition(";")[0]) for path, asset in assets.items()
    }
    assert served_assets == {
        "/docs/swagger-ui.css": (200, "text/css"),
        "/docs/swagger-ui-bundle.js": (200, "text/javascript"),
    }
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';") and "script-src 'self' 'sha256-" in policy
    assert "unsafe-eval" not in policy and "http" not in policy


async def test_an_asset_is_compressed_for_a_client_that_takes_it() -> None:
    async with served() as gateway:
        plain = await gateway.client.get("/ui/page.css", headers={"Accept-Encoding": "identity"})
        small = await gateway.client.get("/ui/page.css", headers={"Accept-Encoding": "gzip"})
    assert plain.content == small.content == (UI / "page.css").read_bytes()
    assert "content-encoding" not in plain.headers and small.headers["content-encoding"] == "gzip"
    assert int(small.headers["content-length"]) < int(plain.headers["content-length"]) / 3
    assert plain.headers["vary"] == small.headers["vary"] == "Accept-Encoding"


async def test_serves_the_whole_page_with_its_own_csp() -> None:
    scripts = {str(path.relative_to(UI)): path.read_text() for path in UI.rglob("*.js")}
    paths = [f"/ui/{name}" for name in (*scripts, *(path.name for path in UI.glob("*.css")))]
    async with served(key_pepper=PEPPER) as gateway:
        page = await gateway.client.get("/")
        answers = {path: await gateway.client.get(path) for path in paths}
    policy = page.headers["content-security-policy"]
    assert page.status_code == 200 and "script-src 'self'; style-src 'self'" in policy and "unsafe" not in policy
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(paths, 200)
    assert set(re.findall(r'(?:src|href)="(/[^"]+)"', page.text)) <= set(paths)
    for name, text in scripts.items():
        imported = {
            (UI / name).parent / each for each in re.findall(r'(?:from|^import) ?"(\.[^"]+)"', text, re.MULTILINE)
        }
        assert all(path.is_file() for path in imported), name


def test_the_page_weighs_at_most_400_kb_compressed() -> None:
    files = [path for path in UI.rglob("*") if path.suffix in {".js", ".css", ".html"}]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) <= 400_000


def test_the_pages_libraries_are_those_of_their_table() -> None:
    listed = {each["file"]: each["sha256"] for each in json.loads((UI / "vendor" / "vendor.json").read_text())}
    kept = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (UI / "vendor").glob("*.js")}
    assert kept == listed


def test_development_mode_changes_only_the_description() -> None:
    development = document(development=True)
    assert "Development mode: this gateway asks for no keys" in development["info"]["description"]
    assert "Development mode" not in document()["info"]["description"]
    assert development | {"info": document()["info"]} == document()


def test_every_operation_declares_its_scope_and_errors() -> None:
    schemes = document()["components"]["securitySchemes"]
    assert {scheme["type"] for scheme in schemes.values()} == {"http", "apiKey"}
    needs = {operation["operationId"]: operation for _, _, operation in declarations()}
    others = {"call_mcp", "call_a2a", "get_agent_card", "refuse_operation"}
    assert needs.keys() | others == ACCESS.keys(), "messages of MCP and A2A, and refusals, are no operations of it"
    for name, operation in needs.items():
        refusals = {"400"} if ACCESS[name] is None else {"400", "401", "429"}
        refusals |= {"403"} if ACCESS[name] else set()
        assert refusals <= operation["responses"].keys(), name
        roles = ACCESS[name]
        if roles is None:
            assert operation["security"] == [], name
            continue
        assert operation["security"] == [{scheme: list(roles)} for scheme in schemes], name
        assert all(f"`{role}`" in operation["description"] for role in roles), name
        assert "WWW-Authenticate" in operation["responses"]["401"]["headers"]
        assert "Retry-After" in operation["responses"]["429"]["headers"]
        assert {"RateLimit", "RateLimit-Policy"} <= operation["responses"]["429"]["headers"].keys()
