"""The replies of engines as public reports show them, each with its right value, over a real socket."""

import json
import zlib
from datetime import UTC, datetime, timedelta

import pytest

from app.deliberation.calls import Usage
from app.deliberation.roles import EngineSpec
from serve_deployments.engine.client import Engines
from tests.integration.engine.raw_engine import RECORDED, RawEngine, recorded, whole
from tests.integration.engine.recorded_outcomes import ANSWERED, outcome_of
from tests.integration.simulator.server_process import simulating
from tests.reported_inputs import REPORTED, reported

ANSWER = '{"reasoning": "r", "answer": "42", "confidence": 90}'
# After a refusal that costs nothing, or one that comes in place of a text.
ANSWERED_LATER = (
    "failed-generation-empty temperature-1 temperature-or-top-p response-schema error-400-in-200 error-429-in-200 "
    "overloaded-529 conflict-409"
).split()


@pytest.mark.parametrize("case", ANSWERED)
async def test_a_readable_answer_is_taken_at_its_first_request(case: str) -> None:
    played = RECORDED[case]
    async with recorded(case).serving() as engine:
        outcome = await outcome_of(engine, played["url_ends_with"], **played["engine"])
    right = "x = 1\n\ty = 2" if case == "9" else "42"
    assert outcome.problem is None and json.loads(outcome.text or "")["answer"] == right, played["right"]
    assert len(engine.bodies) == outcome.usage.calls == 1


@pytest.mark.parametrize("case", ANSWERED_LATER)
async def test_a_refusal_is_heeded_and_asked_again_once(case: str) -> None:
    async with recorded(case).serving() as engine:
        outcome = await outcome_of(engine)
    assert outcome.problem is None and json.loads(outcome.text or "")["answer"] == "42", RECORDED[case]["right"]
    first, second = engine.bodies
    lacks = {"temperature-1": {"temperature"}, "temperature-or-top-p": {"top_p"}}.get(case, set())
    assert first.keys() - second.keys() == lacks
    weaker = case in ("response-schema", "error-400-in-200")
    assert (second["response_format"]["type"] == "json_object") == weaker


async def test_usage_and_cached_tokens_count_where_an_engine_gives_them() -> None:
    usages = {}
    for case in ("usage-in-choice", "cache-hits"):
        async with recorded(case).serving() as engine:
            usages[case] = (await outcome_of(engine)).usage
    assert usages["usage-in-choice"] == Usage(prompt_tokens=9, completion_tokens=7, calls=1)
    assert usages["cache-hits"] == Usage(prompt_tokens=900, completion_tokens=7, cached_tokens=512, calls=1)


async def test_what_was_read_leniently_is_recorded() -> None:
    found = {}
    for case in ("tool-call", "encoded-twice", "harmony", "failed-generation"):
        async with recorded(case).serving() as engine:
            found[case] = (await outcome_of(engine)).lenient
    assert found == {
        "tool-call": ("wrapper",),
        "encoded-twice": ("text",),
        "harmony": ("prose", "thinking"),
        "failed-generation": ("fence",),
    }


async def test_an_answer_may_come_with_headers_of_many_kibibytes() -> None:
    """As of proxies that give policies and cookies."""
    body = json.dumps({"choices": [{"message": {"content": ANSWER}, "finish_reason": "stop"}]}).encode()
    async with RawEngine([[whole(body, headers=f"X-Policy: {'x' * 32_768}\r\n")]]).serving() as engine:
        outcome = await outcome_of(engine)
    assert outcome.problem is None and len(engine.bodies) == 1


@pytest.mark.parametrize(("encoding", "bits"), [("gzip", 31), ("x-gzip", 31), ("deflate", 15), ("deflate", -15)])
async def test_a_compressed_reply_is_decoded(encoding: str, bits: int) -> None:
    compressor = zlib.compressobj(wbits=bits)
    body = json.dumps({"choices": [{"message": {"content": ANSWER}, "finish_reason": "stop"}]}).encode()
    body = compressor.compress(body) + compressor.flush()
    async with RawEngine([[whole(body, headers=f"Content-Encoding: {encoding}\r\n")]]).serving() as engine:
        outcome = await outcome_of(engine)
    assert outcome.problem is None and len(engine.bodies) == 1


@pytest.mark.parametrize(
    ("case", "code", "words", "requests"),
    [
        ("blocked", "answer_withheld", "a content filter of the engine stopped the answer", 1),
        ("reason-refusal", "answer_withheld", "the model refused", 1),
        ("filter-400", "answer_withheld", "content management policy", 1),
        ("error-401-in-200", "engine_rejected", "wants a key", 1),
        ("error-event", "engine_unavailable", "upstream out of memory", 3),
        ("redirect-307", "engine_rejected", "'https://engine.example/v1/chat/completions': give it as the `url`", 1),
        ("6c", "engine_unavailable", "broke its stream off", 3),
        ("14a", "answer_withheld", 'the model refused: "I can\'t assist."', 1),
        ("14b", "answer_withheld", "a content filter of the engine stopped the answer", 1),
        ("21b", "engine_unavailable", "answered 429 within a success: quota", 3),
        ("29", "invalid_output", "stopped at 196 of 4,096 tokens: its context is full", 2),
    ],
)
async def test_a_reply_without_an_answer_says_why(case: str, code: str, words: str, requests: int) -> None:
    async with recorded(case).serving() as engine:
        outcome = await outcome_of(engine, max_tokens=4_096)
    assert outcome.problem is not None
    assert (outcome.problem.code, len(engine.bodies)) == (code, requests)
    assert words in outcome.problem.detail


@pytest.mark.parametrize("case", ["17a", "17c"])
async def test_a_retry_after_is_waited_for_once(case: str) -> None:
    told = {"17a": "2", "17c": "1.5"}[case]
    refusal = whole(b"{}", "429 Too Many Requests", headers=f"Retry-After: {told}\r\n")
    answer = [piece.encode("latin-1") for piece in RECORDED["6a"]["replies"][0]["pieces"]]
    async with RawEngine([[refusal], answer]).serving() as engine:
        began = datetime.now(UTC)
        outcome = await outcome_of(engine)
    assert outcome.problem is None and len(engine.bodies) == 2
    assert datetime.now(UTC) - began >= timedelta(seconds=float(told))


async def test_a_wait_beyond_the_deadline_ends_the_call_at_once() -> None:
    refusal = whole(b"{}", "429 Too Many Requests", headers="Retry-After: 600\r\n")
    async with RawEngine([[refusal]]).serving() as engine:
        began = datetime.now(UTC)
        outcome = await outcome_of(engine)
    assert outcome.problem is not None and "429" in outcome.problem.detail and len(engine.bodies) == 1
    assert datetime.now(UTC) - began < timedelta(seconds=10)


@pytest.mark.parametrize("case", ["2a", "2b", "2c", "2e", "2f"])
async def test_a_list_of_models_that_is_of_no_use_is_described(case: str) -> None:
    async with recorded(case).serving() as engine:
        engines = Engines([EngineSpec(url=engine.url, model="m")])
        await engines.probe()
        await engines.close()
    state = engines.engines[0]
    assert state.healthy and state.models == ("m",)
    assert bool(state.list_problem) == (case in ("2e", "2f")), state.list_problem
    assert (state.key_rejected is not None) == (case == "2b"), "a refused key is no fault of the list"


async def test_an_engine_without_a_list_and_without_a_named_model_is_named() -> None:
    async with recorded("2f").serving() as engine:
        engines = Engines([EngineSpec(url=engine.url)])
        await engines.probe()
        await engines.close()
    assert not engines.engines[0].healthy and "500" in engines.engines[0].list_problem


async def test_the_simulator_plays_each_recorded_reply_by_name() -> None:
    async with simulating("--model", "simulated-m") as (simulator, client):
        for name in ("4a", "16a", "32a", "33e", "21a", "tool-call", "status-201", "failed-generation"):
            (await client.post("/simulator/script", json={"reply": name})).raise_for_status()
            outcome = await outcome_of(RawEngine([], url=simulator.url))
            assert outcome.problem is None and json.loads(outcome.text or "")["answer"] == "42", name
        refused = await client.post("/simulator/script", json={"reply": "nobody's"})
        assert refused.status_code == 400 and "33e" in refused.text


@pytest.mark.parametrize("name", [*reported("plain backslashes"), *reported("end of a stream")])
async def test_a_reported_reply_is_answered_as_it_was_meant(name: str) -> None:
    stream = whole(REPORTED[name]["input"]["body"].encode(), kind="text/event-stream")
    async with RawEngine([[stream]]).serving() as engine:
        outcome = await outcome_of(engine)
    assert outcome.problem is None and json.loads(outcome.text or "")["answer"] == REPORTED[name]["expected"]
    assert len(engine.bodies) == outcome.usage.calls == 1


def _streamed(*events: str) -> RawEngine:
    return RawEngine([[whole("".join(f"data: {each}\n\n" for each in events).encode(), kind="text/event-stream")]])


def _piece(text: str) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]})


@pytest.mark.parametrize("text", [ANSWER[:-1], f"{ANSWER} {ANSWER[:20]}", "42"])
async def test_done_after_an_object_that_is_not_closed_is_no_answer(text: str) -> None:
    async with _streamed(_piece(text), "[DONE]").serving() as engine:
        outcome = await outcome_of(engine)
    assert outcome.problem is not None and "broke its stream off" in outcome.problem.detail and len(engine.bodies) == 3


@pytest.mark.parametrize(
    "said",
    [
        '"CUDA out of memory"',
        "CUDA out of memory",
        '{"detail": "CUDA out of memory"}',
        '{"message": "CUDA out of memory"}',
    ],
)
async def test_an_error_in_any_form_is_quoted_where_a_stream_breaks_off(said: str) -> None:
    async with _streamed(_piece('{"reasoning"'), said, "[DONE]").serving() as engine:
        outcome = await outcome_of(engine)
    assert outcome.problem is not None and "CUDA out of memory" in outcome.problem.detail
