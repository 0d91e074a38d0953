"""Recorded cases in which a client's habit is at stake, over a gateway on a socket."""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest

from app.api.responses import HEADERS
from app.deliberation.calls import Call
from app.deliberation.facts import Accepted, decode
from app.openapi.document import document
from tests.components.facades.chatting import BODY, PATH, frames_of
from tests.components.routes.listening import Gateway, listening, whole
from tests.components.routes.served import played, written
from tests.conditions import until
from tests.fakes import FakeClock
from tests.integration.engine.raw_engine import RECORDED
from tests.story import Story

PAGE = "https://app.example"
STAINLESS = ("arch", "lang", "os", "package-version", "retry-count", "runtime", "runtime-version", "timeout")
SDK_HEADERS = "authorization, content-type, openai-organization, openai-beta, user-agent, " + ", ".join(
    f"x-stainless-{name}" for name in STAINLESS
)


@pytest.fixture(scope="module")
async def gateway() -> AsyncGenerator[Gateway, None]:
    async with listening(heartbeat_s=0.05, cors_origins=(PAGE,)) as made:
        yield made


@pytest.fixture
async def story(gateway: Gateway) -> Story:
    """An ended deliberation."""
    made = Story(f"s{len(gateway.journal.records)}")
    await gateway.write(*whole(made))
    return made


def answer_of(case: str) -> str:
    """The text that the case's engine streams."""
    pieces = "".join(RECORDED[case]["replies"][0]["pieces"])
    chunks = [json.loads(line[6:]) for line in pieces.split("\n") if line.startswith("data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


def accepted_in(gateway: Gateway) -> list[Accepted]:
    facts = [decode(record.data) for record in gateway.journal.records if record.subject.endswith(".accepted")]
    return [fact for fact in facts if isinstance(fact, Accepted)]


async def play(gateway: Gateway, answer: str | None = None) -> None:
    def write(call: Call) -> str:
        return written(call) if answer is None else answer

    await gateway.write(*played(accepted_in(gateway)[-1], now=FakeClock().now, write=write))


async def chat(gateway: Gateway, case: str, **body: Any) -> httpx.Response:
    before = len(accepted_in(gateway))
    asking = asyncio.create_task(gateway.client.post(PATH, json=BODY | {"model": "single/DEV"} | body))
    await until(lambda: len(accepted_in(gateway)) > before or asking.done())
    if not asking.done():
        await play(gateway, answer_of(case))
    return await asking


def preflight(headers: str, origin: str = PAGE) -> dict[str, str]:
    return {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": headers,
    }


@pytest.mark.parametrize(
    "headers",
    [
        SDK_HEADERS,
        "openai-project,x-requested-with,helicone-auth,traceparent,tracestate,last-event-id,idempotency-key",
        "x-an-sdk-of-next-year",
        "",
        ", ".join(f"x-{number}" for number in range(64)),
    ],
    ids=["case 10", "other SDKs", "a new one", "none", "64 of them"],
)
async def test_a_preflight_of_a_listed_page_passes_with_any_headers(gateway: Gateway, headers: str) -> None:
    answer = await gateway.client.options(PATH, headers=preflight(headers))
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
    assert answer.headers["access-control-allow-headers"] == headers


@pytest.mark.parametrize(
    ("headers", "origin"),
    [
        ("authorization, x y", PAGE),
        ("authorization, (x)", PAGE),
        ("x-" + "a" * 63, PAGE),
        (", ".join(f"x-{number}" for number in range(65)), PAGE),
        (SDK_HEADERS, "https://other.example"),
    ],
    ids=["no name", "no token", "a long name", "65 names", "another page"],
)
async def test_a_preflight_without_names_or_a_listed_page_fails(gateway: Gateway, headers: str, origin: str) -> None:
    answer = await gateway.client.options(PATH, headers=preflight(headers, origin))
    assert answer.status_code == 400 and "access-control-allow-origin" not in answer.headers


async def test_a_listed_page_may_read_every_declared_header(gateway: Gateway) -> None:
    answer = await gateway.client.get("/healthz", headers={"Origin": PAGE})
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert set(exposed) == HEADERS.keys() - {"Set-Cookie"}


@pytest.mark.parametrize(
    ("case", "given", "limit", "changes"),
    [
        ("12a", {"max_tokens": 65_536}, 32_768, "max_tokens=32768"),
        ("12b", {"max_tokens": -1}, 2_048, "max_tokens=default"),
        ("12c", {"max_completion_tokens": 128_000}, 32_768, "max_completion_tokens=32768"),
        ("12c", {"max_completion_tokens": 32_768}, 32_768, None),
        ("12c", {"max_tokens": 10**40}, 32_768, "max_tokens=32768"),
    ],
)
async def test_a_bound_beyond_ours_is_clamped_and_named(
    gateway: Gateway, case: str, given: dict[str, int], limit: int, changes: str | None
) -> None:
    answer = await chat(gateway, case, **given)
    assert (answer.status_code, answer.headers.get("x-adjusted")) == (200, changes)
    assert accepted_in(gateway)[-1].specification.agents[0].sampling.max_tokens == limit


async def test_more_agents_and_time_than_allowed_are_clamped_and_named(gateway: Gateway) -> None:
    given = {"model": "independent/DEV", "n": 99, "deliberation": {"timeout_seconds": 86_400}}
    answer = await chat(gateway, "12a", **given)
    assert answer.headers["x-adjusted"] == "n=32, deliberation.timeout_seconds=3600"
    specified = accepted_in(gateway)[-1].specification
    assert (len(answer.json()["choices"]), specified.constraints.timeout_seconds) == (32, 3_600)


async def test_a_negative_seed_is_none_and_a_top_p_of_0_the_least(gateway: Gateway) -> None:
    answer = await chat(gateway, "12a", seed=-1, top_p=0)
    assert answer.headers["x-adjusted"] == "seed=default, top_p=0.001"
    specified = accepted_in(gateway)[-1].specification
    assert specified.seed >= 0 and specified.agents[0].sampling.top_p == 0.001


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/deliberations", "/deliberations"),
        ("/api/chat", None),
    ],
)
async def test_a_path_of_another_base_url_is_refused_with_the_one_that_exists(
    gateway: Gateway, path: str, meant: str | None
) -> None:
    answer = await gateway.client.post(path, json=BODY)
    assert answer.status_code == 404
    assert (f"Did you mean {meant}?" in answer.text) if meant else ("Did you mean" not in answer.text)


def schema_format(properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def variant(constant: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"t": {"const": constant, "type": "string"}}, "required": ["t"]}


@pytest.mark.parametrize(
    ("case", "properties", "changes"),
    [
        ("22a", {"day": {"type": "string", "format": "date"}}, "schema.format=description"),
        (
            "22b",
            {"kind": {"oneOf": [variant("a"), variant("b")], "discriminator": {"propertyName": "t"}}},
            "schema.oneOf=anyOf",
        ),
        ("22b", {"kind": {"type": "object", "additionalProperties": {"type": "string"}}}, None),
        ("22b", {"kind": {"type": "object", "properties": {"t": {"type": "string"}}}}, None),
    ],
    ids=["a date", "disjoint oneOf", "a map", "a control"],
)
async def test_a_schema_of_a_library_is_taken_and_what_is_replaced_named(
    gateway: Gateway, case: str, properties: dict[str, Any], changes: str | None
) -> None:
    answer = await chat(gateway, case, response_format=schema_format(properties))
    assert (answer.status_code, answer.headers.get("x-adjusted")) == (200, changes)
    found = json.loads(answer.json()["choices"][0]["message"]["content"])
    assert found == json.loads(answer_of(case))["answer"]


async def test_a_refused_schema_says_how_to_write_it_instead(gateway: Gateway) -> None:
    overlapping = {"kind": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}
    answer = await chat(gateway, "22b", response_format=schema_format(overlapping))
    assert answer.status_code == 400 and "Write anyOf" in answer.json()["error"]["message"]


async def test_a_waiting_stream_has_chunks_that_a_client_parses(gateway: Gateway) -> None:
    """Case 23."""
    received = ""
    body = BODY | {"model": "single/DEV", "stream": True, "stream_options": {"include_usage": True}}
    async with asyncio.timeout(10), gateway.client.stream("POST", PATH, json=body) as answer:
        async for piece in answer.aiter_text():
            received += piece
            if received.count("\n\n") == 4:
                await play(gateway, answer_of("23"))
    first, *waiting = frames_of(received)[:4]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    for chunk in waiting:
        assert chunk.keys() == first.keys() and chunk["id"] == first["id"]
        assert chunk["choices"] == [{"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": None}]
    contents = [each["delta"].get("content", "") for chunk in frames_of(received) for each in chunk["choices"]]
    assert "".join(contents) == "42"
    assert not any(line.startswith(":") for line in received.split("\n"))


def readable_paths() -> Iterator[str]:
    yield from ("/", "/docs", "/ui/page.js", "/openapi.json", "/deliberations/nobody", "/nowhere", PATH)
    for path, methods in document()["paths"].items():
        if "get" in methods:
            values = {"{role}": "DEV", "{model}": "council/DEV", "{delivery_id}": "dlv_none", "{plan_id}": "plan-1"}
            for name, value in values.items():
                path = path.replace(name, value)
            yield path


@pytest.mark.parametrize("path", readable_paths())
async def test_head_has_status_and_headers_of_get(gateway: Gateway, story: Story, path: str) -> None:
    """Case 19."""
    path = path.replace("{deliberation_id}", story.id)
    given = {"Accept": "application/json"} if path.endswith("/events") else {}
    asked, headed = [await gateway.client.request(method, path, headers=given) for method in ("GET", "HEAD")]
    varying = {"x-request-id", "date", "content-length", "transfer-encoding"}
    kept, found = ({name: each.headers[name] for name in each.headers.keys() - varying} for each in (asked, headed))
    assert (headed.status_code, headed.content, found) == (asked.status_code, b"", kept)


async def test_head_of_a_stream_has_its_headers_and_ends(gateway: Gateway) -> None:
    story = Story("live")
    await gateway.write(story.accepted())
    for path in (f"/deliberations/{story.id}/events", "/events"):
        async with asyncio.timeout(5):
            answer = await gateway.client.head(path)
        assert (answer.status_code, answer.headers["content-type"][:17]) == (200, "text/event-stream")
    metrics = (await gateway.client.get("/metrics")).text
    assert "sse_viewers 0.0" in metrics


@pytest.mark.parametrize(
    ("given", "status", "expected"),
    [
        ("", 200, ["stream.opened", "deliberation.snapshot"]),
        ("  ", 200, ["stream.opened", "deliberation.snapshot"]),
        ("1-1", 200, ["stream.opened", "stream.gap", "deliberation.snapshot"]),
        ("null", 400, []),
        ("undefined", 400, []),
        ("{last} ", 204, []),
        ("{last}\t ", 204, []),
        (" {last}", 204, []),
    ],
    ids=["empty", "blank", "another run", "null", "undefined", "case B5b", "a tab after it", "two before it"],
)
async def test_a_cursor_is_read_as_the_standard_says(
    gateway: Gateway, story: Story, given: str, status: int, expected: list[str]
) -> None:
    """Cases B5a and B5b."""
    host, port = gateway.client.base_url.host, gateway.client.base_url.port
    reader, writer = await asyncio.open_connection(host, port)
    cursor = given.replace("{last}", gateway.id_of())
    head = f"GET /deliberations/{story.id}/events HTTP/1.1\r\nHost: {host}\r\nLast-Event-ID: {cursor}\r\n\r\n"
    writer.write(head.encode())
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    received = (await reader.read()).decode()
    writer.close()
    assert received.startswith(f"HTTP/1.1 {status} ")
    kinds = [line[7:] for line in received.split("\n") if line.startswith("event: ")]
    assert kinds[: len(expected)] == expected
    if status == 400:
        assert '"pointer":"Last-Event-ID"' in received and "Take the `id` of an event" in received
    if status == 200:
        assert kinds[-1] == "deliberation.completed"


JSON = {"Content-Type": "application/json"}
TASK = '{"task": "Name a colour: größer.", "strategy": "single"}'


@pytest.mark.parametrize("path", ["/deliberations", PATH])
@pytest.mark.parametrize(
    ("content", "headers", "refused"),
    [
        (TASK.encode("utf-8-sig"), {}, None),
        (TASK.encode(), {"Content-Encoding": "identity"}, None),
        (TASK.encode(), {"Content-Type": "application/json ; charset=UTF-8"}, None),
        (TASK.encode("utf-16"), {}, (400, "UTF-16", "Encode it as UTF-8")),
        (TASK.encode("utf-16-be"), {}, (400, "UTF-16-BE", "Encode it as UTF-8")),
        (TASK.encode("utf-32"), {}, (400, "UTF-32", "Encode it as UTF-8")),
        (TASK.encode("latin-1"), {}, (400, "not UTF-8", "Encode it as UTF-8")),
        (gzip.compress(TASK.encode()), {}, (400, "GZIP", "Send it uncompressed")),
        (gzip.compress(TASK.encode()), {"Content-Encoding": "gzip"}, (415, "gzip", "Send it uncompressed")),
        (b"\x28\xb5\x2f\xfd", {"Content-Encoding": "zstd"}, (415, "zstd", "Send it uncompressed")),
        (TASK.replace("größer", r"\ud83d").encode(), {}, (400, "half of a surrogate pair", "Cut texts between")),
    ],
    ids=[
        *("case B8a: BOM", "identity", "a charset", "case B8b: UTF-16", "UTF-16 without a mark", "UTF-32", "Latin-1"),
        *("gzip unnamed", "case B8c: gzip", "zstd", "half of an emoji"),
    ],
)
async def test_a_body_is_taken_or_refused_with_its_own_remedy(
    gateway: Gateway, path: str, content: bytes, headers: dict[str, str], refused: tuple[int, str, str] | None
) -> None:
    if path == PATH and refused is None:
        content = content.replace(TASK.encode(), json.dumps(BODY | {"n": 0}).encode())
        # Refused by the field's value, so that no test waits for its answer.
        refused = (400, "n:", "Give 1 or more")
    answer = await gateway.client.post(path, content=content, headers=JSON | headers)
    if refused is None:
        assert answer.status_code == 202, answer.text
        return
    status, named, remedy = refused
    assert answer.status_code == status and named in answer.text and remedy in answer.text
    assert answer.headers.get("accept-encoding") == ("identity" if status == 415 else None)
