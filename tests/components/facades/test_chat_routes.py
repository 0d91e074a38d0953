import json
from collections.abc import Sequence
from typing import Any

import pytest

from app.api.request_body import BODY_BYTES_MAX
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Cancelled
from app.deliberation.ports import Record
from app.deliberation.strategies.council import COUNCIL
from app.facades import door
from tests.components.facades.chatting import (
    BODY,
    PATH,
    End,
    accepted_in,
    cancelled_in,
    complete,
    error_of,
    frames_of,
    play,
)
from tests.components.facades.endings import failing, writing
from tests.components.routes.served import COORDINATOR, Served, served
from tests.conditions import until
from tests.fakes import InMemoryJournal


async def test_a_completion_is_the_verdict_with_the_usage_of_all_agents(gateway: Served) -> None:
    response = await complete(gateway)
    assert response.status_code == 200
    found = response.json()
    deliberation_id = response.headers["x-deliberation-id"]
    assert response.headers["location"] == f"/deliberations/{deliberation_id}"
    read = (await gateway.client.get(f"/deliberations/{deliberation_id}")).json()
    usage = read["usage"]
    assert found == {
        "id": f"chatcmpl-{deliberation_id}",
        "object": "chat.completion",
        "created": int(gateway.clock.now().timestamp()),
        "model": "council/DEV",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": read["verdict"]["content"], "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": usage["prompt_tokens"],
            "completion_tokens": usage["completion_tokens"],
            "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"],
            "prompt_tokens_details": {"cached_tokens": usage["cached_tokens"]},
            "cost": None,
        },
        "system_fingerprint": found["system_fingerprint"],
        "deliberation": {
            "id": deliberation_id,
            "href": f"/deliberations/{deliberation_id}",
            **{name: read["verdict"][name] for name in ("winner", "margin", "tie", "agreement", "tally", "calls")},
            "agreed": None,
            "degraded": [],
        },
    }
    assert usage["calls"] == 12 and found["system_fingerprint"].endswith(f"council-v{COUNCIL.version}")


async def test_a_completion_is_stored_as_a_deliberation(gateway: Served) -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    headers = {"X-Request-Id": "mine-1", "traceparent": trace}
    await complete(gateway, headers=headers, seed=7, deliberation={"num_agents": 2})
    await gateway.client.post(
        "/deliberations", json={"task": "Name a colour.", "role": "DEV", "num_agents": 2, "seed": 7}, headers=headers
    )
    ours, theirs = accepted_in(gateway)
    assert ours.specification == theirs.specification
    assert (ours.body_sha256, ours.request_id, ours.traceparent) == (theirs.body_sha256, "mine-1", trace)


async def test_a_stream_starts_with_the_role_and_ends_with_the_usage(gateway: Served) -> None:
    response = await complete(gateway, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    deliberation_id = response.headers["x-deliberation-id"]
    first, *between, last, counted = frames_of(response.text)
    read = (await gateway.client.get(f"/deliberations/{deliberation_id}")).json()
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    said = [piece["choices"][0]["delta"] for piece in between]
    assert "".join(each.get("content", "") for each in said) == read["verdict"]["content"]
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert last["deliberation"]["winner"] == read["verdict"]["winner"]
    assert counted["choices"] == [] and counted["usage"]["prompt_tokens"] == read["usage"]["prompt_tokens"]
    chunks = [first, *between, last, counted]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    shared = ("id", "object", "created", "model", "system_fingerprint")
    assert len({tuple(chunk[name] for name in shared) for chunk in chunks}) == 1


async def test_splits_long_texts_and_sends_usage_only_on_request(gateway: Served) -> None:
    long = "Blue – not green. 🎨 " * 100
    response = await complete(gateway, writing(long), model="single/DEV", stream=True)
    chunks = frames_of(response.text)
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(texts) == long and len(texts) > 5
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("streamed", [False, True])
async def test_usage_has_the_cost_of_all_calls(gateway: Served, streamed: bool) -> None:
    counted: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
    response = await complete(gateway, writing("blue"), model="independent/DEV", **counted)
    usage = frames_of(response.text)[-1]["usage"] if streamed else response.json()["usage"]
    read = (await gateway.client.get(f"/deliberations/{response.headers['x-deliberation-id']}")).json()
    assert read["usage"]["calls"] > 1
    amount = round(read["usage"]["calls"] * 0.000123, 6)
    assert usage["cost"] == read["usage"]["cost"] == {"amount": amount, "currency": "EUR", "unpriced_calls": 0}


@pytest.mark.parametrize("streamed", [False, True])
async def test_truncates_the_answer_at_a_stop_sequence(gateway: Served, streamed: bool) -> None:
    body: dict[str, Any] = {"model": "single/DEV", "stop": ["\n\nQ:"], "stream": streamed}
    response = await complete(gateway, writing("A: blue\n\nQ: and now?"), **body)
    if streamed:
        texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in frames_of(response.text)]
    else:
        texts = [choice["message"]["content"] for choice in response.json()["choices"]]
        assert response.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}
    assert "".join(texts) == "A: blue"


@pytest.mark.parametrize("streamed", [False, True])
async def test_unranked_answers_are_one_choice_each(gateway: Served, streamed: bool) -> None:
    response = await complete(gateway, model="independent/QA", n=2, stream=streamed)
    if not streamed:
        choices = response.json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1]
        assert [choice["message"]["content"] for choice in choices] == ["draft s1-qa-001", "draft s1-qa-002"]
        assert response.json()["deliberation"]["winner"] is None
        return
    texts, ends = ["", ""], [0, 0]
    for chunk in frames_of(response.text):
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        ends[choice["index"]] += choice["finish_reason"] == "stop"
    assert texts == ["draft s1-qa-001", "draft s1-qa-002"] and ends == [1, 1]
    assert ["deliberation" in chunk for chunk in frames_of(response.text)] == [False] * 7 + [True]


async def pass_the_deadline(gateway: Served, deliberation_id: str) -> None:
    gateway.clock.advance(301)
    await gateway.play(deliberation_id)


async def cancel(gateway: Served, deliberation_id: str) -> None:
    await gateway.client.post(f"/deliberations/{deliberation_id}/cancel", json={"reason": "enough"})
    await gateway.append(Cancelled(deliberation_id=deliberation_id, ts=gateway.clock.now()))


ENDS: list[tuple[End, dict[str, Any], int, str, str, str]] = [
    (failing("no_answers", "none of 3 agents answered"), {}, 502, "server_error", "no_answers", "none of 3"),
    (failing("strategy_drift", "other calls"), {}, 502, "server_error", "no_verdict", "other calls"),
    (pass_the_deadline, {}, 504, "server_error", "deadline_exceeded", "within 300 seconds"),
    (cancel, {}, 409, "invalid_request_error", "cancelled", "enough"),
    (play, {"deliberation": {"budget": {"max_calls": 1}}}, 400, "invalid_request_error", "budget_exhausted", "budget"),
]


@pytest.mark.parametrize(("end", "body", "status", "kind", "code", "message"), ENDS)
async def test_an_end_without_a_verdict_is_a_final_error_and_the_end_of_a_stream(
    gateway: Served, end: End, body: dict[str, Any], status: int, kind: str, code: str, message: str
) -> None:
    response, stream = await complete(gateway, end, **body), await complete(gateway, end, stream=True, **body)
    opening, failed = frames_of(stream.text)
    assert stream.status_code == 200 and opening["choices"][0]["delta"]["role"] == "assistant"
    assert response.status_code == status
    for error in (error_of(response), failed["error"]):
        assert (error["type"], error["code"]) == (kind, code) and message in error["message"]
    deliberation_id = response.headers["x-deliberation-id"]
    assert response.headers["location"] == f"/deliberations/{deliberation_id}"
    # A retry by OpenAI's client would pay for the deliberation again.
    assert response.headers.get("x-should-retry") == (None if status == 400 else "false")


async def test_a_missing_end_is_reported_as_the_deadline(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "END_GRACE_S", 0.01)

    async def end(_: Served, __: str) -> None:
        gateway.clock.advance(2)

    response = await complete(gateway, end, deliberation={"timeout_seconds": 1})
    assert (response.status_code, error_of(response)["code"]) == (504, "deadline_exceeded")
    assert cancelled_in(gateway) == [], "the next coordinator ends it with a timeout"


@pytest.mark.parametrize(
    ("body", "status", "code", "where"),
    [
        ({"model": "gpt-4o"}, 404, "model_not_found", "model"),
        ({"n": 3}, 400, "unsupported_value", "n"),
        ({"temperature": "hot"}, 400, "invalid_type", "temperature"),
        ({"frobnicate": 1}, 400, "unknown_parameter", "frobnicate"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            400,
            "missing_required_parameter",
            "messages[0].tool_call_id",
        ),
    ],
)
async def test_errors_name_the_field_as_openai_does(
    gateway: Served, body: dict[str, Any], status: int, code: str, where: str
) -> None:
    response = await gateway.client.post(PATH, json=BODY | body)
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (status, code, where)
    assert error["type"] == "invalid_request_error" and error["message"]
    assert accepted_in(gateway) == []


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("POST", PATH, b"{", 400, "invalid_json"),
        ("POST", PATH, b"[]", 400, "invalid_type"),
        ("POST", PATH, b" " * (BODY_BYTES_MAX + 1), 413, "body_too_large"),
        ("GET", PATH, b"", 405, "method_not_allowed"),
        ("GET", "/v1/models/nope/DEV", b"", 404, "model_not_found"),
        ("POST", "/v1/embeddings", b"{}", 404, "not_found"),
    ],
)
async def test_every_error_under_v1_has_openais_shape(
    gateway: Served, method: str, path: str, content: bytes, status: int, code: str
) -> None:
    sent = {"Content-Type": "application/json"}
    response = await gateway.client.request(method, path, content=content, headers=sent)
    assert (response.status_code, error_of(response)["code"]) == (status, code)


async def test_a_full_queue_answers_with_retry_after() -> None:
    async with served(queue_depth_max=1) as gateway:
        await gateway.accepted()
        response = await gateway.client.post(PATH, json=BODY)
    error = error_of(response)
    assert (response.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "queue_full")
    assert int(response.headers["retry-after"]) >= 1 and "x-should-retry" not in response.headers


async def test_an_unavailable_log_is_an_error_before_and_after_the_end(gateway: Served) -> None:
    async def play_and_disconnect(_: Served, deliberation_id: str) -> None:
        await gateway.play(deliberation_id)
        gateway.journal.available = False

    for response in (await complete(gateway, play_and_disconnect), await gateway.client.post(PATH, json=BODY)):
        assert (response.status_code, error_of(response)["code"]) == (503, "journal_unavailable")
        assert response.headers["retry-after"]


async def test_a_log_that_is_lost_while_a_repeated_request_waits_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.catalog.index.PAST_MAX", 1)
    async with served() as gateway:
        key, last = {"Idempotency-Key": "lost"}, gateway.journal.last
        first = await complete(gateway, headers=key)
        await complete(gateway)

        async def lost(patterns: Sequence[str]) -> list[Record]:
            if any(pattern.endswith(".end") for pattern in patterns):
                raise JournalUnavailable("the log cannot be reached")
            return await last(patterns)

        id = first.json()["id"].removeprefix("chatcmpl-")
        await until(lambda: gateway.gateway["catalog"].find("default", id) is None)
        monkeypatch.setattr(gateway.journal, "last", lost)
        again = await gateway.client.post(PATH, json=BODY, headers=key)
    assert (again.status_code, error_of(again)["code"]) == (503, "journal_unavailable")
    assert again.headers["retry-after"]


class LaggingJournal(InMemoryJournal):
    lags = 3

    async def facts(self, tenant: str, deliberation_id: str) -> list[Record]:
        found = await super().facts(tenant, deliberation_id)
        if found and found[-1].subject.endswith(".end") and self.lags:
            self.lags -= 1
            return found[:-1]
        return found


@pytest.mark.parametrize(("lags", "status"), [(3, 200), (10_000, 503)])
async def test_rereads_an_end_that_a_lagging_server_lacks(
    lags: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "LAG_S", 0.0)
    journal = LaggingJournal(replies={"control.coordinator": [COORDINATOR]})
    journal.lags = lags
    async with served(journal=journal) as gateway:
        assert (await complete(gateway)).status_code == status


async def test_a_repeated_key_returns_the_same_deliberation(gateway: Served) -> None:
    key = {"Idempotency-Key": "k"}
    first = await complete(gateway, headers=key)
    again = await gateway.client.post(PATH, json=BODY, headers=key)
    assert again.content == first.content
    streamed = await gateway.client.post(PATH, json=BODY | {"stream": True}, headers=key)
    assert frames_of(streamed.text)[0]["id"] == first.json()["id"]
    other = await gateway.client.post(PATH, json=BODY | {"temperature": 1}, headers=key)
    assert (other.status_code, error_of(other)["code"]) == (409, "idempotency_conflict")
    assert other.headers["x-should-retry"] == "false"
    assert len(accepted_in(gateway)) == 1
    bad = await gateway.client.post(PATH, json=BODY, headers={"Idempotency-Key": "a b"})
    assert (bad.status_code, error_of(bad)["param"]) == (400, "Idempotency-Key")


@pytest.mark.parametrize(
    ("given", "name"),
    [("single", "single/DEV"), ("qa", "council/QA"), ("DEV", "council/DEV"), ("single/architect", "single/ARCHITECT")],
)
async def test_a_model_may_be_a_strategy_or_a_role_alone_and_is_answered_by_its_whole_name(
    gateway: Served, given: str, name: str
) -> None:
    assert (await complete(gateway, model=given)).json()["model"] == name
    specified = accepted_in(gateway)[-1].specification
    assert f"{specified.strategy}/{specified.agents[0].role}" == name
    assert (await gateway.client.get(f"/v1/models/{given}")).json()["id"] == name


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "number", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("response_format", [AS_SCHEMA, {"type": "json_object"}], ids=["json_schema", "json_object"])
async def test_a_response_format_gives_json_that_satisfies_it(
    gateway: Served, response_format: dict[str, Any], streamed: bool
) -> None:
    body = {"model": "single/DEV", "response_format": response_format, "stream": streamed}
    response = await complete(gateway, writing({"n": 3}), **body)
    if streamed:
        content = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in frames_of(response.text))
    else:
        content = response.json()["choices"][0]["message"]["content"]
    assert json.loads(content) == {"n": 3}
    resource = (await gateway.client.get(response.headers["location"])).json()
    assert resource["verdict"]["content"] == resource["proposals"][0]["content"] == content


@pytest.mark.parametrize("answer", [{"n": "three"}, {}, "three", [3]])
async def test_answers_that_break_the_response_format_do_not_count(gateway: Served, answer: object) -> None:
    response = await complete(gateway, writing(answer), model="single/DEV", response_format=AS_SCHEMA)
    assert response.status_code == 502
    assert error_of(response)["code"] == "no_answers"
