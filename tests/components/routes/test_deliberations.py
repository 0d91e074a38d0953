import asyncio
import io
import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from itertools import cycle
from typing import Any

import pytest

from app.access.keys import Scope
from app.api.request_body import BODY_BYTES_MAX
from app.api.requests import TASK_CHARS_MAX
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Cancelled, CancelRequested, Completed, decode
from tests.components.access.keyed import PEPPER, bearer, make_key
from tests.components.routes.served import Served, decided, served
from tests.conditions import held_back, until
from tests.fakes import InMemoryJournal
from tests.story import Story

GATEWAY = {"lists": True}
BODY = {"task": "Name a colour."}


def problem_of(response: Any) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == response.status_code
    assert problem["request_id"] == response.headers["x-request-id"]
    assert problem["type"].endswith(problem["code"])
    return problem


async def test_an_acceptance_is_in_the_log_before_the_answer(gateway: Served) -> None:
    response = await gateway.post(BODY)
    assert response.status_code == 202
    body = response.json()
    assert response.headers["location"] == f"/deliberations/{body['id']}" == body["links"]["self"]
    assert response.headers["retry-after"] == "1"
    assert response.headers["etag"] == f'"{body["id"]}-1"'
    assert "idempotency-replayed" not in response.headers
    (record,) = gateway.journal.records
    assert record.subject == f"deliberations.default.{body['id']}.accepted"
    assert (body["status"], body["revision"]) == ("pending", 1)
    assert (await gateway.client.get(response.headers["location"])).json() == body


async def test_request_id_and_trace_are_recorded_with_the_acceptance(gateway: Served) -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    response = await gateway.post(BODY, X_Request_Id="mine-1", traceparent=trace)
    assert response.headers["x-request-id"] == "mine-1"
    fact: Any = decode(gateway.journal.records[0].data)
    assert (fact.request_id, fact.traceparent) == ("mine-1", trace)


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a\tb"])
async def test_an_invalid_request_id_is_replaced(gateway: Served, given: str) -> None:
    response = await gateway.client.get("/healthz", headers={"X-Request-Id": given})
    assert response.headers["x-request-id"] != given
    assert len(response.headers["x-request-id"]) == 24


async def test_a_key_used_again_with_the_same_body_starts_nothing(gateway: Served) -> None:
    first = await gateway.post(BODY, Idempotency_Key="k")
    again = await gateway.post({**BODY, "rounds": 1}, Idempotency_Key="k")
    assert (again.status_code, again.headers["idempotency-replayed"]) == (202, "true")
    assert again.content == first.content
    assert again.headers["etag"] == first.headers["etag"]
    assert len(gateway.journal.records) == 1


async def test_a_replay_returns_the_first_answer_even_after_the_end(gateway: Served) -> None:
    first = await gateway.post(BODY, Idempotency_Key="k")
    await gateway.play(first.json()["id"])
    again = await gateway.post(BODY, Idempotency_Key="k")
    assert (again.status_code, again.content) == (202, first.content)
    waited = await gateway.post(BODY, Idempotency_Key="k", Prefer="wait=5")
    assert (waited.status_code, waited.json()["status"]) == (200, "completed")
    assert waited.headers["idempotency-replayed"] == "true"


async def test_concurrent_requests_with_one_key_start_one_deliberation(gateway: Served) -> None:
    answers = await asyncio.gather(*(gateway.post(BODY, Idempotency_Key="k") for _ in range(5)))
    assert len({answer.content for answer in answers}) == 1
    assert len(gateway.journal.records) == 1
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 4


async def test_a_key_used_again_with_another_body_is_a_conflict(gateway: Served) -> None:
    await gateway.post(BODY, Idempotency_Key="k")
    for _ in range(2):
        response = await gateway.post({**BODY, "rounds": 2}, Idempotency_Key="k")
        assert response.status_code == 409
        assert problem_of(response)["code"] == "idempotency_conflict"


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "é"])
async def test_rejects_invalid_idempotency_keys(gateway: Served, key: str) -> None:
    response = await gateway.client.post(
        "/deliberations", json=BODY, headers=[(b"Idempotency-Key", key.encode("latin-1"))]
    )
    assert response.status_code == 422
    (fault,) = problem_of(response)["errors"]
    assert (fault["location"], fault["pointer"]) == ("header", "Idempotency-Key")
    assert gateway.journal.records == []


@pytest.mark.parametrize(
    ("content", "media", "status", "code"),
    [
        (b"{", "application/json", 400, "invalid_json"),
        (b'{"task":"\\ud800"}', "application/json", 400, "invalid_json"),
        (b'"task"', "application/json", 422, "invalid_request"),
        (b"null", "application/json", 422, "invalid_request"),
        (b"", "application/json", 422, "invalid_request"),
        (b'{"task":"a"}', "text/plain", 415, "unsupported_media_type"),
        (b'{"task":"a"}', "", 415, "unsupported_media_type"),
        (b'{"task":"' + b"x" * BODY_BYTES_MAX + b'"}', "application/json", 413, "body_too_large"),
        (b'{"task":"' + b"x" * (TASK_CHARS_MAX + 1) + b'"}', "application/json", 422, "invalid_request"),
    ],
    ids=lambda value: repr(value[:20]) if isinstance(value, bytes) else None,
)
async def test_an_invalid_body_is_refused_and_stores_nothing(
    gateway: Served, content: bytes, media: str, status: int, code: str
) -> None:
    response = await gateway.client.post("/deliberations", content=content, headers={"Content-Type": media})
    assert response.status_code == status
    assert problem_of(response)["code"] == code
    assert gateway.journal.records == []
    assert (await gateway.post(BODY)).status_code == 202


async def test_a_large_body_without_a_length_is_refused_while_it_is_read(gateway: Served) -> None:
    sent = 0

    async def endless() -> AsyncGenerator[bytes, None]:
        nonlocal sent
        while sent < 10_000_000:
            sent += 65_536
            yield b" " * 65_536

    response = await gateway.client.post("/deliberations", content=endless())
    assert response.status_code == 413
    assert problem_of(response)["code"] == "body_too_large"
    assert response.headers["connection"] == "close"


async def test_a_slow_body_times_out(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.api.request_body.BODY_TIMEOUT_S", 0.01)

    async def stalled() -> AsyncGenerator[bytes, None]:
        yield b"{"
        await asyncio.Event().wait()

    response = await gateway.client.post("/deliberations", content=stalled())
    assert response.status_code == 408
    assert problem_of(response)["retryable"] is True


async def test_an_unreachable_log_is_never_answered_with_202(gateway: Served) -> None:
    gateway.journal.available = False
    response = await gateway.post(BODY)
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    assert problem_of(response)["code"] == "journal_unavailable"
    gateway.journal.available = True
    assert (await gateway.post(BODY)).status_code == 202


async def test_before_the_log_has_been_read_nothing_is_accepted_or_listed() -> None:
    async with served(caught_up=False, journal=None) as gateway:
        gateway.gateway["catalog"].caught_up = False
        for response in (await gateway.post(BODY), await gateway.client.get("/deliberations")):
            assert (response.status_code, response.headers["retry-after"]) == (503, "2")


async def test_work_is_accepted_once_unfinished_work_is_loaded() -> None:
    journal = InMemoryJournal()
    async with served(journal=journal) as before:
        replayed = (await before.post(BODY, Idempotency_Key="k")).json()
        await before.play(replayed["id"])
        for _ in range(2):
            await before.accepted()
    going_on = held_back(journal)
    async with served(caught_up=False, journal=journal, queue_depth_max=3, lists=True) as gateway:
        assert (await gateway.post(BODY)).status_code == 503
        going_on.set()
        await until(lambda: gateway.gateway["catalog"].caught_up)
        assert (await gateway.post(BODY)).status_code == 202
        assert (await gateway.post(BODY)).status_code == 429, "with those that were there it is the fourth"
        again = await gateway.post(BODY, Idempotency_Key="k")
        assert (again.status_code, again.headers["idempotency-replayed"]) == (202, "true")
        assert len((await gateway.client.get("/deliberations")).json()["items"]) == 4


async def test_a_full_queue_answers_with_retry_after_and_admits_replays() -> None:
    async with served(queue_depth_max=2) as gateway:
        await gateway.post(BODY, Idempotency_Key="k")
        second = await gateway.accepted()
        response = await gateway.post(BODY)
        assert response.status_code == 429
        assert 3 <= int(response.headers["retry-after"]) <= 43, "no throughput is known"
        assert "deliberations_refused_total 1.0" in (await gateway.client.get("/metrics")).text
        assert problem_of(response)["code"] == "queue_full"
        assert (await gateway.post(BODY, Idempotency_Key="k")).status_code == 202
        await gateway.play(second)
        assert (await gateway.post(BODY)).status_code == 202
        assert (await gateway.post(BODY)).status_code == 429


async def test_prefer_wait_delays_the_answer_until_the_end(gateway: Served) -> None:
    waiting = asyncio.create_task(gateway.post(BODY, Prefer="respond-async, wait=30"))
    await until(lambda: len(gateway.journal.records) == 1)
    await gateway.play(gateway.journal.records[0].tokens[2])
    response = await waiting
    assert response.status_code == 200
    assert response.headers["preference-applied"] == "wait=30"
    assert response.json()["status"] == "completed"


async def test_a_new_request_is_answered_while_many_clients_learn_an_end(gateway: Served) -> None:
    id = await gateway.accepted()
    await gateway.play(id)
    loads = [asyncio.create_task(gateway.gateway["deliberations"].load("default", id)) for _ in range(200)]
    await asyncio.wait(loads, return_when=asyncio.FIRST_COMPLETED)
    response = await gateway.post(BODY)
    assert response.status_code == 202
    assert not all(load.done() for load in loads)
    assert {state.status for state in await asyncio.gather(*loads)} == {"completed"}


@pytest.mark.parametrize(("preference", "applied"), [("wait=0", "wait=0"), ("wait=x", None), ("return=minimal", None)])
async def test_an_expired_wait_answers_with_the_current_state(
    gateway: Served, preference: str, applied: str | None
) -> None:
    response = await gateway.post(BODY, Prefer=preference)
    assert response.status_code == 202
    assert response.headers.get("preference-applied") == applied


@pytest.mark.parametrize(
    ("asked", "agents"), [({}, 1), ({"num_agents": None}, 1), ({"role": "QA"}, 1), ({"num_agents": 2}, 2)]
)
async def test_a_council_of_single_has_one_agent_unless_the_request_names_more(
    gateway: Served, asked: dict[str, Any], agents: int
) -> None:
    made = (await gateway.post({"task": "t", "strategy": "single", **asked})).json()
    assert (len(made["agents"]), made["quorum"]) == (agents, agents)


async def test_a_summary_has_the_outcome_the_cost_and_the_times_alone(gateway: Served) -> None:
    id = await gateway.accepted(metadata={"k": "v"})
    await gateway.play(id)
    whole = (await gateway.client.get(f"/deliberations/{id}")).json()
    summary = (await gateway.client.get(f"/deliberations/{id}?view=summary")).json()
    assert whole.keys() - summary.keys() == {
        *(
            "agents",
            "parameters",
            "task",
            "task_file",
            "constraints",
            "evidence",
            "context",
            "workspace",
            "webhook",
            "proposals",
        ),
    }
    assert summary == {name: whole[name] for name in summary}, "a field is left out, or has its value"
    assert summary["verdict"]["content"] and summary["usage"]["calls"] and summary["metadata"] == {"k": "v"}


async def test_a_summary_has_an_etag_of_its_own_which_a_long_poll_follows(gateway: Served) -> None:
    id = await gateway.accepted()
    path = f"/deliberations/{id}?view=summary"
    first, whole = await gateway.client.get(path), await gateway.client.get(f"/deliberations/{id}?view=whole")
    assert first.headers["etag"] == f'"{id}-1-summary"' != whole.headers["etag"]
    known = {"If-None-Match": first.headers["etag"]}
    assert (await gateway.client.get(path, headers=known)).status_code == 304
    assert (await gateway.client.get(f"/deliberations/{id}", headers=known)).status_code == 200
    waiting = asyncio.create_task(gateway.client.get(path, headers={**known, "Prefer": "wait=60"}))
    await gateway.play(id)
    changed = await waiting
    assert (changed.status_code, changed.headers["preference-applied"]) == (200, "wait=60")
    assert "proposals" not in changed.json()


async def test_an_unchanged_etag_answers_304(gateway: Served) -> None:
    path = f"/deliberations/{await gateway.accepted()}"
    first = await gateway.client.get(path)
    for given in (first.headers["etag"], f'"x", W/{first.headers["etag"]}', "*"):
        same = await gateway.client.get(path, headers={"If-None-Match": given})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", first.headers["etag"])
    await gateway.play(first.json()["id"], until_stage=1)
    changed = await gateway.client.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (changed.status_code, changed.json()["revision"]) == (200, 2)
    assert changed.headers["etag"] != first.headers["etag"]


async def test_a_long_poll_answers_as_soon_as_the_revision_changes(gateway: Served) -> None:
    id = await gateway.accepted()
    etag = f'"{id}-1"'
    waiting = asyncio.create_task(
        gateway.client.get(f"/deliberations/{id}", headers={"If-None-Match": etag, "Prefer": "wait=60"})
    )
    await until(lambda: gateway.gateway["feed"].watched == 1)
    await gateway.play(id, until_stage=1)
    response = await waiting
    assert (response.status_code, response.json()["status"]) == (200, "in_progress")
    assert response.headers["preference-applied"] == "wait=60"


async def test_a_long_poll_with_an_old_etag_does_not_wait(gateway: Served) -> None:
    id = await gateway.accepted()
    response = await gateway.client.get(f"/deliberations/{id}", headers={"If-None-Match": '"old"', "Prefer": "wait=60"})
    assert response.status_code == 200


async def test_a_wait_answers_with_the_known_state_when_the_log_fails(
    gateway: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: object) -> bool:
        raise JournalUnavailable("gone")

    accepted = (await gateway.post(BODY)).json()
    monkeypatch.setattr(gateway.gateway["feed"], "changed", gone)
    polled = await gateway.client.get(f"/deliberations/{accepted['id']}", headers={"Prefer": "wait=60"})
    assert (polled.status_code, polled.json()["revision"]) == (200, 1)
    assert (await gateway.post(BODY, Prefer="wait=1")).status_code == 202


HOSTILE = ["*", ">", "..%2f", "a.b", "a%20b", "%00", "A", "é", "x" * 65, "x" * 10_000, "deliberations.default.>", "%2A"]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile[:12])
@pytest.mark.parametrize(("method", "tail"), [("GET", ""), ("POST", "/cancel"), ("GET", "/events")])
async def test_a_malformed_id_is_not_found(gateway: Served, hostile: str, method: str, tail: str) -> None:
    response = await gateway.client.request(method, f"/deliberations/{hostile}{tail}")
    assert response.status_code == 404
    problem = problem_of(response)
    assert problem["code"] == "not_found"
    assert len(response.content) < 1_000


async def test_facts_without_their_acceptance_are_gone(gateway: Served) -> None:
    id = await gateway.accepted()
    await gateway.play(id)
    gateway.journal.forget(1)
    response = await gateway.client.get(f"/deliberations/{id}")
    assert (response.status_code, problem_of(response)["code"]) == (410, "gone")


async def test_a_damaged_fact_is_an_internal_error_without_details(gateway: Served) -> None:
    id = await gateway.accepted()
    await gateway.append(Completed(deliberation_id=id, ts=gateway.clock.now()))
    await gateway.append(Story(id, 1).opened(stage=7))
    response = await gateway.client.get(f"/deliberations/{id}")
    problem = problem_of(response)
    assert (response.status_code, problem["code"]) == (500, "internal_error")
    assert "stage" not in problem["detail"]


async def test_a_crash_is_a_problem_document_and_logs_frames_without_content(
    gateway: Served, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    async def crash(*_: object) -> None:
        raise RuntimeError("canary")

    monkeypatch.setattr(gateway.journal, "facts", crash)
    response = await gateway.client.get("/deliberations/d1")
    assert response.status_code == 500
    assert problem_of(response)["code"] == "internal_error"
    assert b"canary" not in response.content
    events = [json.loads(line) for line in logged.getvalue().splitlines()]
    (crashed,) = [event for event in events if event["event"] == "request_crashed"]
    assert crashed["request_id"] == response.headers["x-request-id"]
    assert crashed["error"] == "RuntimeError"
    assert any(frame.endswith(" crash") for frame in crashed["frames"])
    assert "canary" not in logged.getvalue()


async def test_requests_are_logged_as_events_without_their_content(gateway: Served, logged: io.StringIO) -> None:
    id = await gateway.accepted(task="canary")
    await gateway.client.get(f"/deliberations/{id}")
    events = [json.loads(line) for line in logged.getvalue().splitlines()]
    assert [(event["event"], event["method"], event["route"], event["status"]) for event in events] == [
        ("request", "POST", "/deliberations", 202),
        ("request", "GET", "/deliberations/{deliberation_id}", 200),
    ]
    assert "canary" not in logged.getvalue()


async def test_cancel_is_idempotent(gateway: Served) -> None:
    id = await gateway.accepted()
    first = await gateway.client.post(f"/deliberations/{id}/cancel", json={"reason": "enough"})
    again = await gateway.client.post(f"/deliberations/{id}/cancel", json={"reason": "really"})
    assert first.status_code == again.status_code == 202
    assert first.json() == again.json()
    assert (first.json()["status"], first.json()["status_reason"]) == ("cancelling", "enough")
    assert first.headers["retry-after"] == "1"
    assert len(gateway.journal.records) == 2


async def test_cancelling_an_ended_deliberation_returns_its_end(gateway: Served) -> None:
    id = await gateway.accepted()
    await gateway.play(id)
    before = len(gateway.journal.records)
    response = await gateway.client.post(f"/deliberations/{id}/cancel")
    assert (response.status_code, response.json()["status"]) == (200, "completed")
    assert len(gateway.journal.records) == before


async def test_cancelling_can_wait_for_the_end(gateway: Served) -> None:
    id = await gateway.accepted()
    waiting = asyncio.create_task(gateway.client.post(f"/deliberations/{id}/cancel", headers={"Prefer": "wait=60"}))
    await until(lambda: len(gateway.journal.records) == 2)
    await gateway.append(Cancelled(deliberation_id=id, ts=gateway.clock.now()))
    response = await waiting
    assert (response.status_code, response.json()["status"]) == (200, "cancelled")


async def test_concurrent_cancels_agree(gateway: Served) -> None:
    id = await gateway.accepted()
    answers = await asyncio.gather(
        *(gateway.client.post(f"/deliberations/{id}/cancel", json={"reason": str(n)}) for n in range(4))
    )
    assert len({answer.content for answer in answers}) == 1


async def test_a_cancellation_says_who_stopped_it_and_why_on_one_line(gateway: Served) -> None:
    id = await gateway.accepted()
    body = {"by": "superseded", "reason": " asked\nagain \u202e\x1b[2J "}
    shown = (await gateway.client.post(f"/deliberations/{id}/cancel", json=body)).json()["cancellation"]
    assert (shown["by"], shown["reason"]) == ("superseded", "asked again [2J")
    await decided(gateway, id)
    ended = (await gateway.client.get(f"/deliberations/{id}")).json()
    assert ended["status"] == "cancelled" and ended["cancellation"]["by"] == "superseded"
    last = decode(gateway.journal.records[-1].data)
    assert isinstance(last, Cancelled) and (last.by, last.reason) == ("superseded", "asked again [2J")
    assert ended["participation"] == {"took_place": False, "members": 3, "counted": 0, "stalled": []}


@pytest.mark.parametrize(("scopes", "status"), [(("submit", "read"), 403), (("submit", "admin"), 202)])
async def test_only_an_operator_cancels_as_one(scopes: tuple[Scope, ...], status: int) -> None:
    journal = InMemoryJournal()
    key = await make_key(journal, "acme", scopes)
    async with served(journal=journal, key_pepper=PEPPER) as gateway:
        response = await gateway.client.post("/deliberations", json={"task": "Name a colour."}, headers=bearer(key))
        cancel = f"{response.json()['links']['self']}/cancel"
        assert (await gateway.client.post(cancel, json={"by": "operator"}, headers=bearer(key))).status_code == status


@pytest.mark.parametrize("body", [{"by": "nobody"}, {"reason": "x" * 501}, {"because": "x"}, [], {"reason": 5}])
async def test_rejects_invalid_cancel_reasons(gateway: Served, body: object) -> None:
    id = await gateway.accepted()
    response = await gateway.client.post(f"/deliberations/{id}/cancel", json=body)
    assert response.status_code == 422
    assert len(gateway.journal.records) == 1


async def listed(gateway: Served, query: str = "") -> list[str]:
    response = await gateway.client.get(f"/deliberations{query}")
    assert response.status_code == 200, response.text
    return [item["task"] for item in response.json()["items"]]


async def test_lists_are_newest_first_and_filtered(gateway: Served) -> None:
    begin = gateway.clock.now()
    await gateway.accepted(task="a", role="QA", metadata={"team": "x", "a.b": "1"})
    gateway.clock.advance(10)
    started = await gateway.accepted(task="b", strategy="single", num_agents=1, metadata={"team": "y"})
    gateway.clock.advance(10)
    ended = await gateway.accepted(task="c", agents=[{"role": "DEV"}, {"role": "QA"}], metadata={"team": "x"})
    stopped = await gateway.accepted(task="d" * 300)
    await gateway.play(started, until_stage=1)
    await gateway.play(ended)
    await gateway.append(CancelRequested(deliberation_id=stopped, ts=gateway.clock.now()))
    later = (begin + timedelta(seconds=5)).isoformat().replace("+00:00", "Z")
    cases = {
        "": ["d" * 200, "c", "b", "a"],
        "?status=pending": ["a"],
        "?status=in_progress": ["b"],
        "?status=completed": ["c"],
        "?status=cancelling": ["d" * 200],
        "?status=failed": [],
        "?role=QA": ["c", "a"],
        "?strategy=single": ["b"],
        "?metadata.team=x": ["c", "a"],
        "?metadata.team=x&metadata.a.b=1": ["a"],
        "?metadata.team=z": [],
        f"?created_after={later}": ["d" * 200, "c", "b"],
        f"?created_before={later}": ["a"],
        f"?created_after={later}&status=completed": ["c"],
        "?limit=2": ["d" * 200, "c"],
    }
    for query, tasks in cases.items():
        assert await listed(gateway, query) == tasks, query


async def test_a_listed_deliberation_is_a_summary(gateway: Served) -> None:
    id = await gateway.accepted(agents=[{"role": "DEV", "count": 2}, {"role": "QA"}], metadata={"team": "x"})
    await gateway.play(id)
    (item,) = (await gateway.client.get("/deliberations")).json()["items"]
    whole = (await gateway.client.get(f"/deliberations/{id}")).json()
    same = ("id", "status", "role", "strategy", "task", "metadata", "created_at", "started_at", "ended_at", "links")
    added = {
        "agents": [{"role": "DEV", "count": 2}, {"role": "QA", "count": 1}],
        "usage": {name: value for name, value in whole["usage"].items() if not name.startswith("by_")},
        "winner": whole["verdict"]["winner"],
        "degraded": whole["degraded"] is not None,
        "progress": None,
    }
    assert item == {**{name: whole[name] for name in same}, **added}
    assert (item["status"], item["role"], item["ended_at"]) == ("completed", None, "2026-01-01T00:00:00Z")


async def test_pages_of_any_gateway_follow_each_other_while_new_work_arrives(gateway: Served) -> None:
    for number in range(7):
        await gateway.accepted(task=f"t{number}", metadata={"a.b": "c&d"} if number != 3 else {})
    path = "/deliberations?limit=2&metadata.a.b=c%26d"
    seen: list[str] = []
    async with served(journal=gateway.journal, lists=True) as other:
        turns = cycle((gateway.client, other.client))
        while path:
            response = await next(turns).get(path)
            page = response.json()
            seen += [item["task"] for item in page["items"]]
            link = response.headers.get("link", "")
            assert (page["next_cursor"] is None) == (link == "")
            path = link.partition("<")[2].partition(">")[0]
            await gateway.accepted(task="new", metadata={"a.b": "c&d"})
    assert seen == ["t6", "t5", "t4", "t2", "t1", "t0"]


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("?status=done", "status"),
        ("?limit=0", "limit"),
        ("?limit=201", "limit"),
        ("?limit=x", "limit"),
        ("?created_after=yesterday", "created_after"),
        ("?created_after=2", "created_after"),
        ("?created_before=1767225600000", "created_before"),
        ("?created_after=2026-01-01T00:00:00", "created_after"),
        ("?unknown=1", "unknown"),
        ("?metadata.=1", "metadata."),
        ("?metadata=1", "metadata"),
        ("?limit=1&limit=2", "limit"),
        ("?metadata.a=1&metadata.a=2", "metadata.a"),
    ],
)
async def test_rejects_invalid_list_parameters_by_name(gateway: Served, query: str, pointer: str) -> None:
    response = await gateway.client.get(f"/deliberations{query}")
    assert response.status_code == 422
    (fault,) = problem_of(response)["errors"]
    assert (fault["location"], fault["pointer"]) == ("query", pointer)
    assert fault["remedy"]


@pytest.mark.parametrize("cursor", ["x", "%00", "é", "MTptZW1vcnk6eA", "MTpvdGhlcjoz", "a" * 100])
async def test_a_malformed_or_foreign_cursor_is_refused(gateway: Served, cursor: str) -> None:
    response = await gateway.client.get(f"/deliberations?cursor={cursor}")
    assert response.status_code == 400
    assert problem_of(response)["code"] == "invalid_cursor"
