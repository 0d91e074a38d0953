import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from serve_deployments.simulator.writer.prompt import PromptReader
from tests.attack.exploding_requests import BODIES, HEADERS, JSON, PATHS, TASK
from tests.attack.gateways import Gateway

# Bounds for a noisy machine; quadratic work on these inputs takes minutes.
ANSWERED_WITHIN_S = 3.0
READ_WITHIN_S = 3.0


def nested(key: str, levels: int, inner: object = 1) -> object:
    for _ in range(levels):
        inner = [inner] if key == "[" else {key: inner}
    return inner


BOMB: dict[str, Any] = {"$defs": {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 10} for n in range(20)}}
SCHEMAS: dict[str, object] = {
    "a pattern that backtracks": {"type": "string", "pattern": "^(a+)+$", "examples": ["a" * 200 + "!"]},
    "nested quantifiers": {"pattern": "(" * 500 + "a" + "*)" * 500},
    "a multiple of almost nothing": {"type": "number", "multipleOf": 1e-300, "examples": [1e308]},
    "references that multiply": BOMB | {"$ref": "#/$defs/a0"},
    "a reference to itself": {"$ref": "#"},
    "nested allOf": nested("allOf", 28, []),
    "nested lists": nested("[", 28),
    "a huge enum": {"enum": list(range(30_000))},
    "a huge const": {"const": "x" * 200_000},
    "many properties": {"properties": {f"p{n}": {} for n in range(10_000)}},
    "a remote reference": {"$ref": "http://127.0.0.1:1/schema.json"},
}
# A schema stands in each place where the gateway might read one.
PLACES: dict[str, tuple[str, Callable[[object], object]]] = {
    "task": ("/deliberations", lambda schema: {"task": json.dumps(schema)[:32_768], "num_agents": 99}),
    "parameters": ("/deliberations", lambda schema: {"task": TASK, "parameters": schema}),
    "options": ("/deliberations", lambda s: {"task": TASK, "strategy": "vote", "parameters": {"options": [s]}}),
    "tests": (
        "/deliberations",
        lambda s: {
            "task": TASK,
            "strategy": "execute",
            "parameters": {"tests": [{"name": "t", "call": s, "expected": 1}]},
        },
    ),
    "constraints": ("/deliberations", lambda schema: {"task": TASK, "constraints": {"metadata": {"schema": schema}}}),
    "response_format": (
        "/v1/chat/completions",
        lambda schema: {
            "model": "single",
            "messages": [{"role": "user", "content": TASK}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
        },
    ),
    "tools": (
        "/v1/chat/completions",
        lambda schema: {
            # It takes no tools, which is told after their schemas were read.
            "model": "fuse",
            "messages": [{"role": "user", "content": TASK}],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        },
    ),
}


async def seconds(attacked: Gateway, method: str, path: str, **request: Any) -> float:
    began_s = time.perf_counter()
    async with attacked.client.stream(method, f"http://localhost:{attacked.port}{path}", **request) as answer:
        taken_s = time.perf_counter() - began_s
        assert answer.status_code < 500, await answer.aread()
    return taken_s


@pytest.mark.parametrize("place", PLACES)
async def test_no_schema_is_read_where_a_client_places_one(
    attacked: Gateway, place: str, record_property: Callable[[str, object], None]
) -> None:
    path, body_with = PLACES[place]
    slowest_s = 0.0
    for name, schema in SCHEMAS.items():
        content = json.dumps(body_with(schema)).encode()
        answer = await attacked.client.post(path, content=content, headers=JSON)
        assert 400 <= answer.status_code < 500, (name, answer.text)
        slowest_s = max(slowest_s, answer.elapsed.total_seconds())
    record_property("slowest refusal ms", round(slowest_s * 1_000))
    assert slowest_s < ANSWERED_WITHIN_S


async def test_no_body_head_or_path_is_answered_late(
    attacked: Gateway, record_property: Callable[[str, object], None]
) -> None:
    taken_s: dict[str, float] = {}
    for name, content in BODIES.items():
        path = "/v1/chat/completions" if "messages" in name else "/deliberations"
        taken_s[name] = await seconds(attacked, "POST", path, content=content, headers=JSON)
    for name, path in PATHS.items():
        taken_s[name] = await seconds(attacked, "GET", path, headers={"Accept": "application/json"})
    for name, (header, value) in HEADERS.items():
        taken_s[name] = await seconds(attacked, "GET", "/deliberations", headers={header: value})
    slowest = max(taken_s, key=lambda name: taken_s[name])
    record_property("slowest answer ms", f"{round(taken_s[slowest] * 1_000)} ({slowest})")
    assert taken_s[slowest] < ANSWERED_WITHIN_S


@pytest.mark.parametrize("piece", ["\n", "\n\n", " ", "```\n", "1. ", "# Task\n", "Fix: ", "def ", "candidate A"])
def test_the_simulator_reads_every_prompt_in_linear_time(piece: str) -> None:
    """A quadratic pattern would hold up all answers of the engine that `up` starts."""
    text = piece * (32_768 // len(piece))
    began_s = time.perf_counter()
    prompt = PromptReader(
        (f"# Task\n{text}\n\nIssues:\n<<<peer-text abcdef>>>\n{text}\n<<<end-of-peer-text abcdef>>>",)
    )
    assert prompt.title and prompt.entry_point and prompt.fixes is not None and prompt.candidates is not None
    assert time.perf_counter() - began_s < READ_WITHIN_S
