import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from app.deliberation.facts import Failed, decode
from serve_deployments.engine.request_body import STREAM_INTERVAL_TOKENS
from tests.e2e.conftest import FAST, SLOW, TASK, Stack, own_stack, prepared

pytestmark = pytest.mark.e2e


def frames(text: str) -> list[tuple[str | None, dict[str, Any]]]:
    found: list[tuple[str | None, dict[str, Any]]] = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "data" in fields:
            found.append((fields.get("id"), json.loads(fields["data"])))
    return found


async def test_a_council_reaches_a_verdict_that_reports_every_part(stack: Stack) -> None:
    response = await stack.client.post("/deliberations", json={"task": TASK, "seed": 7}, headers={"Prefer": "wait=60"})
    assert response.status_code == 200, response.text
    found = response.json()
    assert found["status"] == "completed" and found["strategy"] == "council" and found["degraded"] is None
    assert [place["rank"] for place in found["verdict"]["ranking"]] == [1, 2, 3]
    assert [proposal["rank"] for proposal in found["proposals"]] == [1, 2, 3]
    assert found["verdict"]["winner"] == found["proposals"][0]["agent_id"]
    assert found["verdict"]["content"]
    for proposal in found["proposals"]:
        assert proposal["content"] and proposal["critiques"] and proposal["criteria"]
        assert 0 <= proposal["score"] <= 1
    assert 9 <= found["usage"]["calls"] <= 12
    engine = await stack.engine_calls()
    assert engine["requests"] == found["usage"]["calls"] == found["verdict"]["calls"]
    for side in ("prompt_tokens", "completion_tokens"):
        assert engine[side] == found["usage"][side]
        assert sum(part[side] for part in found["usage"]["by_stage"]) == found["usage"][side]
        assert sum(part[side] for part in found["usage"]["by_agent"]) == found["usage"][side]


@pytest.mark.parametrize("text", ["raw", "answer"])
async def test_the_stream_sends_every_event_and_deltas_rebuild_each_text(stack: Stack, text: str) -> None:
    await stack.script(**{**SLOW, "duration_ms": 200})
    deliberation_id = await stack.submit(strategy="best_of_n")
    path = f"/deliberations/{deliberation_id}/events?text={text}"
    live = await stack.client.get(f"{path}&after=0", headers={"Accept": "text/event-stream"})
    assert live.status_code == 200 and live.headers["content-type"].startswith("text/event-stream")
    events = frames(live.text)
    assert events[0][1]["type"] == "stream.opened" and events[1][1]["type"] == "deliberation.accepted"
    assert events[-1][1]["type"] == "deliberation.completed"
    sequences = [int(cursor.rpartition("-")[2]) for cursor, _ in events if cursor]
    assert sequences == sorted(set(sequences))
    texts: dict[tuple[str, int], str] = {}
    for _, event in events:
        if event["type"] == "call.delta":
            key = (event["call_id"], event["attempt"])
            assert event["offset"] == len(texts.get(key, ""))
            texts[key] = texts.get(key, "") + event["text"]
    finished = [event for _, event in events if event["type"] == "call.finished"]
    assert len(finished) == 6
    for event in finished:
        if text == "raw" or event["stage"] == 1:
            assert texts[event["call_id"], event["attempt"]] == event["text"]
        else:  # a ballot has no answer
            assert (event["call_id"], event["attempt"]) not in texts and "criteria" in event["text"]
    middle = events[len(events) // 2][0]
    assert middle is not None
    resumed = await stack.client.get(path, headers={"Accept": "text/event-stream", "Last-Event-ID": middle})
    after = [pair for pair in frames(resumed.text) if pair[0]]
    assert after == [
        pair for pair in events if pair[0] and int(pair[0].rpartition("-")[2]) > int(middle.rpartition("-")[2])
    ]
    over = await stack.client.get(path, headers={"Accept": "text/event-stream", "Last-Event-ID": str(events[-1][0])})
    assert over.status_code == 204
    page = await stack.client.get(f"{path}&after=0&limit=1000", headers={"Accept": "application/json"})
    assert [item["id"] for item in page.json()["items"]] == [cursor for cursor, _ in events if cursor]
    assert page.json()["ended"] is True


async def test_the_same_seed_gives_the_same_verdict(stack: Stack) -> None:
    first = await stack.until(await stack.submit(seed=11), status="completed")
    second = await stack.until(await stack.submit(seed=11), status="completed")
    assert first["verdict"] == second["verdict"]
    assert [p["content"] for p in first["proposals"]] == [p["content"] for p in second["proposals"]]


async def test_an_idempotency_key_starts_the_work_once(stack: Stack) -> None:
    headers = {"Idempotency-Key": "order-66"}
    first, second = await asyncio.gather(
        *(stack.client.post("/deliberations", json={"task": TASK}, headers=headers) for _ in range(2))
    )
    assert first.status_code == second.status_code == 202
    assert first.json() == second.json()
    assert {"true"} == {
        r.headers["Idempotency-Replayed"] for r in (first, second) if "Idempotency-Replayed" in r.headers
    }
    other = await stack.client.post("/deliberations", json={"task": "another"}, headers=headers)
    assert other.status_code == 409 and other.json()["code"] == "idempotency_conflict"


async def test_cancelling_closes_the_engines_connections_and_ends_once(stack: Stack) -> None:
    await stack.script(**{**SLOW, "duration_ms": 60_000})
    deliberation_id = await stack.submit()
    page = {"types": "call.delta", "after": "0"}
    written: set[str] = set()
    async with asyncio.timeout(20):
        while len(written) < 3:
            found = await stack.client.get(
                f"/deliberations/{deliberation_id}/events", params=page, headers={"Accept": "application/json"}
            )
            written = {item["call_id"] for item in found.json()["items"]}
            await asyncio.sleep(0.02)
    answer = await stack.client.post(
        f"/deliberations/{deliberation_id}/cancel", json={"reason": "enough"}, headers={"Prefer": "wait=20"}
    )
    assert answer.status_code == 200 and answer.json()["status"] == "cancelled", answer.text
    cancellation = answer.json()["cancellation"]
    assert sorted(call["call_id"] for call in cancellation["cut"]) == sorted(written)
    assert (cancellation["reason"], cancellation["finished_after"], cancellation["tokens_after"]) == ("enough", [], 0)
    # The end was written after the engine had aborted the calls. Its usage of each call equals the engine's count, but
    # for a chunk on its way.
    async with asyncio.timeout(10):
        while (engine := await stack.engine_calls())["aborted"] < 3:
            await asyncio.sleep(0.02)
    spent = sum(call["usage"]["completion_tokens"] for call in cancellation["cut"])
    assert 0 < spent <= engine["aborted_tokens"] <= spent + 3 * STREAM_INTERVAL_TOKENS
    assert answer.json()["usage"]["completion_tokens"] == spent
    again = await stack.client.post(f"/deliberations/{deliberation_id}/cancel", json={})
    assert again.status_code == 200 and again.json()["revision"] == answer.json()["revision"]


FAULTS = {
    "refuses at first": (["error:first=3"], {"status": "completed", "degraded": None}),
    "is overloaded at first": (["rate-limit:first=2"], {"status": "completed", "degraded": None}),
    "breaks every stream off": (["broken-stream"], {"status": "failed"}),
    "answers nonsense": (["bad-json"], {"status": "failed"}),
    "refuses for good": (["bad-request"], {"status": "failed"}),
    "cuts every answer off": (["truncate"], {"status": "failed"}),
}


@pytest.mark.parametrize(("faults", "wanted"), FAULTS.values(), ids=FAULTS.keys())
async def test_an_engine_that_misbehaves(stack: Stack, faults: list[str], wanted: dict[str, Any]) -> None:
    await stack.script(faults=faults)
    found = await stack.until(await stack.submit(strategy="best_of_n"), **wanted)
    if wanted["status"] == "failed":
        assert found["problem"]["code"] == "no_answers" and found["verdict"] is None
        assert all(proposal["error"]["code"] for proposal in found["proposals"])
    await stack.script(faults=[])
    await stack.until(await stack.submit(strategy="single"), status="completed")


async def test_a_hanging_engine_ends_in_a_reported_timeout(stack: Stack) -> None:
    await stack.script(faults=["hang"])
    deliberation_id = await stack.submit(strategy="best_of_n", constraints={"timeout_seconds": 2}, num_agents=2)
    found = await stack.until(deliberation_id, status="timeout")
    assert found["problem"]["code"] == "deadline_exceeded" and found["problem"]["retryable"] is True
    await stack.script(faults=[])
    await stack.until(await stack.submit(strategy="single"), status="completed")


async def test_a_deadline_keeps_the_answers_that_are_paid_for(stack: Stack) -> None:
    """The engine answers proposals alone; what follows has no time left."""
    await stack.script(**FAST | {"faults": ["hang:match=Your work: (critique|revise|score)"]})
    deliberation_id = await stack.submit(strategy="council", constraints={"timeout_seconds": 3}, seed=7)
    found = await stack.until(deliberation_id, status="completed")
    answers = [proposal["content"] for proposal in found["proposals"]]
    assert len(answers) == 3 and found["verdict"]["content"] in answers and found["problem"] is None
    assert "deadline" in found["degraded"]["reasons"] and "unscored" in found["degraded"]["reasons"]
    assert {(stage["purpose"], stage["by"]) for stage in found["degraded"]["cut"]} >= {("score", "deadline")}
    late_s = (datetime.fromisoformat(found["ended_at"]) - datetime.fromisoformat(found["deadline_at"])).total_seconds()
    assert late_s < 2, "the verdict needs no further call"
    events = await stack.client.get(f"/deliberations/{deliberation_id}/events", params={"after": "0"})
    assert "event: deliberation.completed" in events.text and "deliberation.timeout" not in events.text
    await stack.script(**FAST)


async def test_a_damaged_acceptance_ends_as_failed_and_hurts_nothing_else(stack: Stack, fresh_id: str) -> None:
    subject = f"deliberations.default.{fresh_id}"
    await stack.journal.write(f"{subject}.accepted", b"no fact at all")
    async with asyncio.timeout(20):
        while not (ends := await stack.journal.last([f"{subject}.end"])):
            await asyncio.sleep(0.02)
    end = decode(ends[0].data)
    assert isinstance(end, Failed) and end.problem is not None and end.problem.code == "unexpected_fact"
    assert (await stack.client.get(f"/deliberations/{fresh_id}")).status_code == 500
    await stack.until(await stack.submit(strategy="single"), status="completed")


@pytest.mark.parametrize("runner", ["ray", "local"])
async def test_replicas_and_workers_deliberate_in_one_council(tmp_path: Path, runner: str) -> None:
    roles = tmp_path / "roles.yaml"
    roles.write_text("roles: {DEV: {persona: You develop.}, QA: {persona: You test., agents: nats}}")
    async with own_stack(tmp_path / "data", "--agents", runner, "--roles", str(roles)) as stack:
        await prepared(stack)
        body = {"task": TASK, "agents": [{"role": "DEV", "count": 2}, {"role": "QA", "count": 1}]}
        response = await stack.client.post("/deliberations", json=body, headers={"Prefer": "wait=60"})
        council = response.json()
        assert council["status"] == "completed" and council["degraded"] is None, response.text
        criticised = {proposal["agent_id"]: proposal["critiques"] != [] for proposal in council["proposals"]}
        assert criticised == dict.fromkeys(("dev-001", "dev-002", "qa-001"), True)
        async with asyncio.timeout(30):
            while True:
                installation = (await stack.client.get("/status")).json()
                if all(fault["severity"] == "info" for fault in installation["findings"]):
                    break
                await asyncio.sleep(0.2)
        ray = {agent["role"]: bool(agent["versions"]["ray"]) for agent in installation["agents"]}
        assert ray == {"DEV": runner == "ray", "QA": False}
