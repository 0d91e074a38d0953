"""One contract for every engine: held by the simulator and by a real vLLM, so that the simulator cannot drift.

The real one writes noise, so nothing here looks at what a text says: only at structure, counts, usage and protocol.
"""

import json
import uuid
from typing import Any

import httpx
import jsonschema
import pytest

from app.deliberation.outputs import Output, json_schema, parse_output
from serve_deployments.agent.call import cache_salt
from tests.vllm.protocol import TASK, Chat

OUTPUTS = [
    Output(kind="answer"),
    Output(kind="critique"),
    Output(kind="revision", issues=3),
    Output(kind="score", labels=("A", "B"), criteria=("correctness", "clarity", "evidence")),
    Output(kind="pair"),
]
FREE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "summary": {"type": "string"},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 3},
        "share": {"type": "number", "minimum": 0, "maximum": 9},
        "sure": {"type": "boolean"},
    },
    "required": ["summary", "tags", "share", "sure"],
    "additionalProperties": False,
}
METRICS = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_count",
    "vllm:e2e_request_latency_seconds_count",
}


def response_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": True}}


def assert_adds_up(usage: dict[str, Any]) -> None:
    assert usage["prompt_tokens"] > 0
    assert usage["completion_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def assert_problem(response: httpx.Response, status: int) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert error["code"] == status


def test_it_lists_the_model_that_it_serves(chat: Chat) -> None:
    models = chat.client.get("/v1/models").raise_for_status().json()
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]] == [chat.model]
    assert models["data"][0]["object"] == "model"
    assert models["data"][0]["max_model_len"] >= 4_096


def test_a_completion_has_its_text_its_end_and_its_usage(chat: Chat) -> None:
    completion = chat.complete()
    (choice,) = completion["choices"]
    assert completion["object"] == "chat.completion"
    assert completion["id"].startswith("chatcmpl-")
    assert completion["created"] > 0
    assert completion["model"] == chat.model
    assert choice["index"] == 0
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    assert completion["usage"]["completion_tokens"] < 2_048
    assert_adds_up(completion["usage"])


def test_a_truncated_completion_has_finish_reason_length(chat: Chat) -> None:
    completion = chat.complete(max_tokens=2, ignore_eos=True)
    assert completion["choices"][0]["finish_reason"] == "length"
    assert completion["usage"]["completion_tokens"] == 2


def test_a_prompt_costs_tokens_by_its_length(chat: Chat) -> None:
    costs = [chat.complete(content=TASK * times, max_tokens=1)["usage"]["prompt_tokens"] for times in (1, 11, 21)]
    assert costs[0] < costs[1] < costs[2]
    assert costs[2] - costs[1] == pytest.approx(costs[1] - costs[0], rel=0.1)


def test_a_stream_sends_its_role_its_text_one_end_and_then_its_usage(chat: Chat) -> None:
    streamed = chat.stream(stream_options={"include_usage": True}, seed=3)
    opening, *_, closing, usage = streamed.chunks
    assert streamed.done
    assert {chunk["object"] for chunk in streamed.chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in streamed.chunks}) == 1
    assert opening["choices"][0]["delta"]["role"] == "assistant"
    assert closing["choices"][0]["finish_reason"] == "stop"
    assert streamed.finish_reasons == {0: ["stop"]}
    assert usage["choices"] == []
    assert_adds_up(usage["usage"])


def test_the_deltas_make_a_text_of_about_as_many_tokens_as_were_counted(chat: Chat) -> None:
    streamed = chat.stream(stream_options={"include_usage": True}, seed=4)
    assert streamed.usage is not None
    # The end token is counted but not written, and neighbouring tokens may be one when the text is read again.
    assert 0.5 * streamed.usage["completion_tokens"] - 1 <= chat.token_count(streamed.texts[0])
    assert chat.token_count(streamed.texts[0]) <= streamed.usage["completion_tokens"]


def test_a_stream_without_include_usage_has_no_chunk_of_usage(chat: Chat) -> None:
    streamed = chat.stream(max_tokens=8)
    assert streamed.usage is None
    assert all(chunk["choices"] for chunk in streamed.chunks)


def test_a_truncated_stream_has_finish_reason_length(chat: Chat) -> None:
    streamed = chat.stream(max_tokens=2, ignore_eos=True, stream_options={"include_usage": True})
    assert streamed.finish_reasons == {0: ["length"]}
    assert streamed.usage is not None
    assert streamed.usage["completion_tokens"] == 2


def test_the_same_seed_writes_the_same_text_streamed_or_not(chat: Chat) -> None:
    whole = chat.text(seed=11, temperature=0.7)
    assert chat.text(seed=11, temperature=0.7) == whole
    assert chat.stream(seed=11, temperature=0.7).texts == {0: whole}


def test_other_seeds_write_other_texts(chat: Chat) -> None:
    assert len({chat.text(seed=seed, temperature=0.9) for seed in range(4)}) > 1


def test_a_stream_interval_only_makes_the_deltas_fewer(chat: Chat) -> None:
    each = chat.stream(seed=12)
    coarse = chat.stream(seed=12, stream_interval=8)
    assert coarse.texts == each.texts
    assert coarse.deltas < each.deltas


def test_n_gives_as_many_choices_counted_together(chat: Chat) -> None:
    completion = chat.complete(n=3, seed=5, temperature=0.9)
    assert [choice["index"] for choice in completion["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in completion["choices"]}) > 1
    assert_adds_up(completion["usage"])
    single = chat.complete(max_tokens=1)["usage"]
    assert completion["usage"]["prompt_tokens"] == single["prompt_tokens"]
    assert completion["usage"]["completion_tokens"] >= 3


def test_n_streams_every_choice_to_its_own_end(chat: Chat) -> None:
    streamed = chat.stream(n=3, max_tokens=3, ignore_eos=True, stream_options={"include_usage": True})
    assert set(streamed.texts) == {0, 1, 2}
    assert streamed.finish_reasons == {0: ["length"], 1: ["length"], 2: ["length"]}
    assert streamed.usage is not None
    assert streamed.usage["completion_tokens"] == 9


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: output.kind)
def test_every_schema_of_the_product_gives_valid_json(chat: Chat, output: Output) -> None:
    completion = chat.complete(response_format=response_format(json_schema(output)), seed=6, temperature=0.7)
    (choice,) = completion["choices"]
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), json_schema(output))
    parse_output(output, choice["message"]["content"])


def test_another_schema_gives_valid_json_too(chat: Chat) -> None:
    for seed in range(3):
        text = chat.text(response_format=response_format(FREE_SCHEMA), seed=seed)
        jsonschema.validate(json.loads(text), FREE_SCHEMA)


def test_json_streams_like_text(chat: Chat) -> None:
    streamed = chat.stream(response_format=response_format(FREE_SCHEMA), seed=7)
    assert streamed.finish_reasons == {0: ["stop"]}
    assert streamed.deltas > 1
    jsonschema.validate(json.loads(streamed.texts[0]), FREE_SCHEMA)


def test_truncated_json_is_invalid_and_has_finish_reason_length(chat: Chat) -> None:
    completion = chat.complete(response_format=response_format(FREE_SCHEMA), max_tokens=4)
    assert completion["choices"][0]["finish_reason"] == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(completion["choices"][0]["message"]["content"])


@pytest.mark.parametrize("gone", ["guided_json", "guided_choice", "guided_regex"])
def test_the_guided_fields_of_old_are_ignored_in_silence(chat: Chat, gone: str) -> None:
    value = {"guided_json": FREE_SCHEMA, "guided_choice": ["x", "y"], "guided_regex": "[0-9]{3}"}[gone]
    assert chat.text(seed=8, **{gone: value}) == chat.text(seed=8)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"model": "nobody"}, 404),
        ({"model": "nobody", "stream": True}, 404),
        ({"max_tokens": -1}, 400),
        ({"max_tokens": 0}, 400),
        ({"max_tokens": "many"}, 400),
        ({"temperature": -1}, 400),
        ({"top_p": 2}, 400),
        ({"n": 0}, 400),
        ({"messages": []}, 400),
        ({"messages": "hello"}, 400),
        ({"messages": None}, 400),
        ({"messages": [{"content": "no role"}]}, 400),
        ({"stream_options": {"include_usage": True}}, 400),
        ({"response_format": {"type": "json_schema"}}, 400),
        ({"response_format": response_format({"type": "nonsense"})}, 400),
    ],
    ids=str,
)
def test_invalid_fields_are_rejected_with_their_status(chat: Chat, fields: dict[str, Any], status: int) -> None:
    assert_problem(chat.post(**fields), status)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b'{"model":'])
def test_a_body_that_is_no_request_is_refused(chat: Chat, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    assert_problem(chat.client.post("/v1/chat/completions", content=body, headers=headers), 400)


def test_more_tokens_than_the_context_has_are_refused(chat: Chat) -> None:
    """Only what exceeds it by itself: with the prompt, max_tokens may exceed it, and is cut."""
    context_tokens = chat.context_tokens()
    assert chat.complete(max_tokens=context_tokens)["choices"][0]["finish_reason"] == "stop"
    assert_problem(chat.post(max_tokens=context_tokens + 1), 400)


def test_a_prompt_that_does_not_fit_is_refused(chat: Chat) -> None:
    context_tokens = chat.context_tokens()
    assert_problem(chat.post(content="word " * (context_tokens + 1_000), max_tokens=1), 400)


def test_a_refused_request_leaves_the_engine_well(chat: Chat) -> None:
    assert_problem(chat.post(max_tokens=-1), 400)
    assert chat.complete(max_tokens=2, ignore_eos=True)["usage"]["completion_tokens"] == 2


def test_an_unknown_field_is_ignored(chat: Chat) -> None:
    assert chat.text(seed=9, frobnicate=True) == chat.text(seed=9)


def test_health_load_and_version_answer(chat: Chat) -> None:
    assert chat.client.get("/health").status_code == 200
    assert chat.client.get("/load").raise_for_status().json() == {"server_load": 0}
    assert chat.client.get("/version").raise_for_status().json()["version"]


def test_tokenize_counts_the_tokens_that_a_prompt_will_cost(chat: Chat) -> None:
    messages = [{"role": "user", "content": TASK}]
    counted = chat.client.post("/tokenize", json={"model": chat.model, "messages": messages}).raise_for_status().json()
    assert counted["count"] == len(counted["tokens"])
    assert counted["count"] == chat.complete(max_tokens=1)["usage"]["prompt_tokens"]


def test_the_metrics_that_are_watched_are_there(chat: Chat) -> None:
    chat.complete(max_tokens=1)
    assert METRICS <= chat.metrics().keys()


def test_the_metrics_count_the_tokens_of_usage(chat: Chat) -> None:
    before = chat.until_idle()
    usages = [chat.complete(seed=1)["usage"], chat.stream(stream_options={"include_usage": True}).usage]
    counted = {
        "vllm:prompt_tokens_total": sum(usage["prompt_tokens"] for usage in usages if usage),
        "vllm:generation_tokens_total": sum(usage["completion_tokens"] for usage in usages if usage),
        "vllm:request_success_total": 2,
    }
    chat.until(lambda now: {name: now[name] - before[name] for name in counted} == counted)


def test_the_metrics_count_the_prompt_once_for_each_of_n(chat: Chat) -> None:
    """Unlike usage, which counts it once."""
    before = chat.until_idle()
    usage = chat.complete(n=3)["usage"]
    counted = {
        "vllm:prompt_tokens_total": 3 * usage["prompt_tokens"],
        "vllm:generation_tokens_total": usage["completion_tokens"],
        "vllm:request_success_total": 3,
    }
    chat.until(lambda now: {name: now[name] - before[name] for name in counted} == counted)


def test_a_client_that_leaves_ends_the_work(chat: Chat) -> None:
    before = chat.until_idle()
    # So much that it takes minutes: a server that is short of a core sends its first word when thousands are written.
    choices, each = 8, 15_000
    with chat.open_stream(max_tokens=each, n=choices, ignore_eos=True) as response:
        lines = response.iter_lines()  # kept: an abandoned iterator would close the connection
        next(line for line in lines if '"delta":{"content":"' in line)
        chat.until(lambda now: now["vllm:num_requests_running"] >= 1)
        assert chat.client.get("/load").json() == {"server_load": 1}
    after = chat.until_idle()
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] < choices * each
    assert after["vllm:request_success_total"] == before["vllm:request_success_total"]
    assert chat.complete(max_tokens=2, ignore_eos=True)["usage"]["completion_tokens"] == 2


def test_prompts_that_share_their_start_are_computed_once(chat: Chat) -> None:
    """A stage's prompts: the task first, what differs last."""
    shared = f"Case {uuid.uuid4()}. " + "Rule: an answer names its source. " * 40
    usages = [chat.complete(content=f"{shared} {persona}", max_tokens=1)["usage"] for persona in ("DEV", "QA", "DATA")]
    shared_tokens = chat.token_count(shared)
    before = chat.metrics()
    again = chat.complete(content=f"{shared} ARCHITECT", max_tokens=1)["usage"]
    after = chat.until(lambda now: now["vllm:prefix_cache_queries_total"] > before["vllm:prefix_cache_queries_total"])
    hits = after["vllm:prefix_cache_hits_total"] - before["vllm:prefix_cache_hits_total"]
    assert 0.7 * shared_tokens < hits < again["prompt_tokens"]
    assert again["prompt_tokens_details"]["cached_tokens"] == hits
    assert usages[1]["prompt_tokens_details"]["cached_tokens"] > 0.7 * shared_tokens


def test_a_prefix_is_shared_under_one_salt_and_under_no_other(chat: Chat) -> None:
    """A request under another tenant's salt, or none, gets no cache hit that reveals the words."""
    shared = f"Case {uuid.uuid4()}. " + "Rule: an answer names its source. " * 40

    def cached(persona: str, **fields: Any) -> int:
        usage = chat.complete(content=f"{shared} {persona}", max_tokens=1, **fields)["usage"]
        details: dict[str, int] = usage["prompt_tokens_details"] or {}
        return details.get("cached_tokens", 0)

    salts = cache_salt("acme"), cache_salt("rival")
    first, same = cached("DEV", cache_salt=salts[0]), cached("QA", cache_salt=salts[0])
    # The chat template's own beginning is the same for all, but no whole block of it.
    assert first == 0 and same > 0.7 * chat.token_count(shared)
    assert [cached("QA", cache_salt=salts[1]), cached("QA")] == [0, 0]


def test_prompts_that_differ_at_the_start_share_nothing(chat: Chat) -> None:
    before = chat.until_idle()
    for persona in ("OPERATOR", "LIBRARIAN"):
        chat.complete(content=f"{uuid.uuid4()} {persona}: " + "the same words follow. " * 40, max_tokens=1)
    after = chat.until(lambda now: now["vllm:prefix_cache_queries_total"] > before["vllm:prefix_cache_queries_total"])
    assert after["vllm:prefix_cache_hits_total"] == before["vllm:prefix_cache_hits_total"]
