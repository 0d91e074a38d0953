import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_deployments.simulator.script import (
    FaultKind,
    FaultPlan,
    FaultSyntaxError,
    Script,
    ScriptedFault,
    parse_fault,
)
from serve_deployments.simulator.server import calls
from serve_deployments.simulator.server.app import Simulator
from serve_deployments.simulator.server.calls import CallLedger
from serve_deployments.simulator.server.completion import SimulatorSettings
from serve_deployments.simulator.server.engine import PrefixCache, SequenceSlots
from serve_deployments.simulator.server.requests import parse_chat
from serve_deployments.simulator.writer.outputs import Behaviour
from serve_deployments.simulator.writer.tokens import split_blocks

bounded = settings(max_examples=100, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("error", ScriptedFault(FaultKind.ERROR)),
        ("rate-limit:0.25", ScriptedFault(FaultKind.RATE_LIMIT, rate=0.25)),
        ("slow:1", ScriptedFault(FaultKind.SLOW, rate=1.0)),
        ("hang:every=3", ScriptedFault(FaultKind.HANG, every=3)),
        ("empty:first=2", ScriptedFault(FaultKind.EMPTY, first=2)),
    ],
)
def test_a_fault_is_read_with_its_bound(text: str, expected: ScriptedFault) -> None:
    assert parse_fault(text) == expected


def test_a_match_may_hold_colons_and_stand_beside_a_bound() -> None:
    fault = parse_fault("bad-json:first=1:match=a:b|c")
    assert (fault.kind, fault.first) == (FaultKind.BAD_JSON, 1)
    assert fault.match is not None
    assert fault.match.pattern == "a:b|c"


@pytest.mark.parametrize(
    "text",
    [
        *("", "nonsense", "error:", "error:2", "error:-0.1", "error:x", "error:every=0", "error:first=x"),
        *("error:0.1:0.2", "error:last=3", "error:match=["),
    ],
)
def test_rejects_a_fault_that_cannot_be_read(text: str) -> None:
    with pytest.raises(FaultSyntaxError):
        parse_fault(text)


def decisions(faults: list[str], requests: list[str], seed: int = 0) -> list[str | None]:
    plan = FaultPlan(faults, seed)
    return [plan.decide(text.encode(), text) for text in requests]


@pytest.mark.parametrize(
    ("faults", "hit"),
    [
        ([], []),
        (["error"], [0, 1, 2, 3, 4, 5]),
        (["error:first=2"], [0, 1]),
        (["error:every=3"], [2, 5]),
        (["error:match=[bd]"], [1, 3]),
        (["error:first=1:match=[bd]"], [1]),
        (["error:every=2:match=[bcd]"], [2]),
        (["error:0"], []),
        (["error:1"], [0, 1, 2, 3, 4, 5]),
    ],
    ids=str,
)
def test_counted_and_matched_faults_hit_the_requests_they_name(faults: list[str], hit: list[int]) -> None:
    found = decisions(faults, list("abcdef"))
    assert [place for place, kind in enumerate(found) if kind == "error"] == hit


def test_of_two_faults_the_first_that_hits_wins() -> None:
    assert decisions(["hang:first=1", "error"], ["a", "b"]) == ["hang", "error"]


def test_a_rate_hits_its_share_by_request_whatever_the_order() -> None:
    requests = [f"request {number}" for number in range(2_000)]
    found = dict(zip(requests, decisions(["error:0.2"], requests), strict=True))
    assert 0.17 < sum(kind is not None for kind in found.values()) / 2_000 < 0.23
    backwards = requests[::-1]
    assert dict(zip(backwards, decisions(["error:0.2"], backwards), strict=True)) == found
    assert decisions(["error:0.2"], requests, seed=1) != list(found.values())


def test_a_retry_draws_anew() -> None:
    found = decisions(["error:0.5"], ["the same request"] * 64)
    assert set(found) == {None, FaultKind.ERROR}


@bounded
@given(st.floats(0, 5_000), st.integers(1, 400), st.floats(0, 1, exclude_max=True))
def test_a_duration_is_exact_for_any_number_of_tokens(duration_ms: float, tokens: int, chance: float) -> None:
    due_times_s = Script(ttft_ms=9, per_token_ms=9, duration_ms=duration_ms).due_times_s(tokens, chance)
    assert len(due_times_s) == tokens
    assert due_times_s[-1] == pytest.approx(duration_ms / 1_000)


@bounded
@given(st.floats(0, 500), st.floats(0, 50), st.integers(0, 200), st.floats(0, 1), st.floats(0, 1, exclude_max=True))
def test_jitter_stays_within_its_share(
    ttft_ms: float, step_ms: float, tokens: int, jitter: float, chance: float
) -> None:
    script = Script(ttft_ms=ttft_ms, per_token_ms=step_ms)
    plain_s = script.due_times_s(tokens, chance)[-1]
    found_s = script.model_copy(update={"jitter": jitter}).due_times_s(tokens, chance)[-1]
    assert plain_s == pytest.approx((ttft_ms + step_ms * max(0, tokens - 1)) / 1_000)
    assert (1 - jitter) * plain_s - 1e-9 <= found_s <= (1 + jitter) * plain_s + 1e-9


def test_tokens_fall_due_one_by_one() -> None:
    assert Script(ttft_ms=1_000, per_token_ms=500).due_times_s(4, 0.5) == pytest.approx([1.0, 1.5, 2.0, 2.5])


def test_a_slow_completion_takes_ten_times_as_long_and_a_second_more() -> None:
    script = Script(ttft_ms=100, per_token_ms=10)
    assert script.due_times_s(4, 0.5, slow=True)[-1] == pytest.approx(10 * script.due_times_s(4, 0.5)[-1] + 1)


async def test_a_lower_priority_number_goes_first_and_stops_nothing_that_runs() -> None:
    slots = SequenceSlots(1)
    running, late, later, first = slots.join(1, 5), slots.join(1, 7), slots.join(1, 7), slots.join(1, 2)
    assert [turn.done() for turn in (running, late, later, first)] == [True, False, False, False]
    for ended, granted in ((running, first), (first, late), (late, later)):
        slots.leave(1, ended)
        assert granted.done()


async def test_a_request_larger_than_the_bound_runs_alone() -> None:
    slots = SequenceSlots(2)
    running, large, small = slots.join(1), slots.join(5), slots.join(1)
    assert (running.done(), large.done(), small.done()) == (True, False, False), "no request overtakes the large one"
    slots.leave(1, running)
    assert (large.done(), small.done(), slots.running) == (True, False, 5)
    slots.leave(5, large)
    assert small.done()


def admitted(cache: PrefixCache, text: str, salt: str | None = None) -> int:
    tokens, blocks = split_blocks(text)
    return cache.admit(blocks, tokens, salt)


def test_whole_blocks_from_the_start_are_shared() -> None:
    cache = PrefixCache()
    shared = "word " * 40
    assert admitted(cache, shared + "one ending") == 0
    hits = admitted(cache, shared + "another ending")
    assert 0 < hits <= 40
    assert hits % 16 == 0
    assert admitted(cache, "x" + shared + "one ending") == 0


def test_the_last_token_is_always_computed() -> None:
    cache = PrefixCache()
    text = "word" + " word" * 31
    assert split_blocks(text)[0] == 32
    assert [admitted(cache, text), admitted(cache, text)] == [0, 16]


def test_another_salt_shares_nothing() -> None:
    cache = PrefixCache()
    text = "word " * 64
    assert [admitted(cache, text, salt) for salt in ("a", "b", "a", None)][:2] == [0, 0]
    assert admitted(cache, text, "a") > 0


def test_the_least_recently_used_blocks_are_forgotten() -> None:
    first, second = "first " * 33, "second " * 33
    for blocks_max, hits in ((4, 32), (3, 0)):
        cache = PrefixCache(blocks_max)
        admitted(cache, first)
        admitted(cache, second)
        assert admitted(cache, first) == hits


@pytest.mark.parametrize(("completion_tokens", "charged"), [([1, 2], [(7, 1), (0, 2)]), ([3], [(7, 3), (0, 0)])])
def test_calls_that_share_a_request_share_its_tokens(
    completion_tokens: list[int], charged: list[tuple[int, int]]
) -> None:
    ledger = CallLedger()
    ledger.finish(ledger.start(("a", "b")), 7, completion_tokens, 0)
    report: Any = ledger.report("simulated", detail=False)["calls"]
    assert [(report[call]["prompt_tokens"], report[call]["completion_tokens"]) for call in ("a", "b")] == charged


def test_memory_is_bounded_and_the_report_counts_dropped_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CALLS_MAX", 3)
    monkeypatch.setattr(calls, "PROMPTS_MAX", 2)
    ledger = CallLedger()
    for number in range(5):
        ledger.keep_prompt(ledger.start((f"c{number}",)), json.dumps({"messages": [number]}).encode())
    report: Any = ledger.report("simulated", detail=True)
    assert list(report["calls"]) == ["c2", "c3", "c4"]
    assert [prompt["messages"] for prompt in report["prompts"]] == [[3], [4]]
    assert (report["calls_forgotten"], report["prompts_forgotten"], report["requests"]) == (2, 3, 5)


def test_a_change_of_the_script_touches_only_what_it_names() -> None:
    script = Script(behaviour=Behaviour.POOR, ttft_ms=5, duration_ms=9, tokens=3, faults=("error",))
    change = Script.model_validate_json('{"duration_ms": null, "tokens": null}')
    assert script.changed(change) == Script(behaviour=Behaviour.POOR, ttft_ms=5, faults=("error",))
    assert Script().changed(Script.model_validate_json(script.model_dump_json())) == script


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(Simulator(SimulatorSettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://simulator") as client:
        yield client


CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
OUT_OF_BOUNDS: list[tuple[dict[str, Any], str | None]] = [
    ({"messages": []}, "body.messages"),
    ({"messages": "hello"}, "body.messages"),
    ({"messages": [{"content": "x"}]}, "body.messages.0.role"),
    ({"max_tokens": "many"}, "body.max_tokens"),
    ({"seed": 2**63}, "body.seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 2, "temperature": 0}, "n"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"stream_interval": 0}, "stream_interval"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "structural_tag"}}, "response_format"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, None),
]


@pytest.mark.parametrize(("fields", "param"), OUT_OF_BOUNDS, ids=str)
async def test_rejects_a_field_out_of_bounds_and_names_it(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str | None
) -> None:
    response = await client.post(CHAT, json={"messages": MESSAGES, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"messages":', b"[" * 10_000])
async def test_rejects_a_body_that_is_no_request(client: httpx.AsyncClient, body: bytes) -> None:
    assert (await client.post(CHAT, content=body)).status_code == 400


async def test_rejects_a_body_of_more_than_16_mib(client: httpx.AsyncClient) -> None:
    response = await client.post(CHAT, content=bytes((16 << 20) + 1))
    assert (response.status_code, response.json()["error"]["type"]) == (413, "Request Entity Too Large")


def test_accepts_unknown_fields_and_joins_parts_of_text() -> None:
    content = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "user", "content": content, "name": "x"}]
    request, conversation = parse_chat(
        json.dumps({"messages": messages, "frobnicate": True, "guided_json": {}}).encode()
    )
    assert conversation == (("user", "one\ntwo"),)
    assert request.response_format is None


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": []}], ids=str)
async def test_tokenize_takes_either_a_prompt_or_messages(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    assert (await client.post("/tokenize", json=body)).status_code == 400


@pytest.mark.parametrize("stream", [True, False])
async def test_choices_are_drawn_from_seeds_that_follow_the_requests(client: httpx.AsyncClient, stream: bool) -> None:
    async def texts(**fields: Any) -> list[str]:
        response = await client.post(CHAT, json={"messages": MESSAGES, "stream": stream, **fields})
        if not stream:
            return [choice["message"]["content"] for choice in response.json()["choices"]]
        found: dict[int, str] = {}
        for line in response.text.splitlines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text = found.get(choice["index"], "") + (choice["delta"].get("content") or "")
                    found[choice["index"]] = text
        return [found[index] for index in sorted(found)]

    together = await texts(n=3, seed=7)
    assert together == [(await texts(seed=seed))[0] for seed in (7, 8, 9)] and len(set(together)) == 3
