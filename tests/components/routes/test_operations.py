import asyncio
import json
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import SecretStr

from app.api.findings import ENGINE_KINDS, KINDS
from app.deliberation.engine_troubles import CAUSES, EngineTrouble, TroubleCause
from app.deliberation.errors import JournalUnavailable, StreamsDiffer
from app.deliberation.fold import apply, begin
from app.deliberation.strategies import STRATEGIES
from app.observability.process_counts import CoordinatorCounts, DurationHistogram
from app.observability.replica_status import AgentStatus
from app.operations.document import live_role
from app.operations.heartbeats import SILENT_AFTER_S, Heartbeats
from tests.components.routes.replica_replies import REJECTED, UNREACHABLE, troubled
from tests.components.routes.served import AGENT, ANSWERING, COORDINATOR, SENDER, Served, served
from tests.fakes import InMemoryJournal
from tests.story import NOW, Story


async def test_roles_show_their_declaration_and_live_replicas(gateway: Served) -> None:
    del gateway.journal.replies["control.role.DEV"]
    engine = {"url": "http://user:secret@e1:8000", "healthy": True, "circuit": "closed", "models": ["sim-1"]}
    gateway.journal.replies["control.role.QA"] = [
        {"role": "QA", "replica": "a", "model": "sim-1", "simulated": True, "engines": [engine], "in_flight": 2}
    ]
    items = {item["name"]: item for item in (await gateway.client.get("/roles")).json()["items"]}
    assert list(items) == ["DEV", "QA", "ARCHITECT", "DEVOPS", "DATA"]
    assert items["DEV"]["live"] is None
    assert items["DEV"]["persona"].startswith("You are a senior software developer.")
    assert items["QA"]["live"] == {
        "replicas": 1,
        "models": ["sim-1"],
        "simulated": True,
        "in_flight": 2,
        "engines": [
            {
                "url": "http://e1:8000",
                "name": None,
                "healthy": True,
                "circuit": "closed",
                "models": ["sim-1"],
                "trouble": None,
            }
        ],
    }
    assert (await gateway.client.get("/roles/QA")).json() == items["QA"]


async def test_an_unknown_role_is_not_found_and_lists_the_known_ones(gateway: Served) -> None:
    response = await gateway.client.get("/roles/developer")
    assert response.status_code == 404
    assert "ARCHITECT, DATA, DEV, DEVOPS, QA" in response.json()["detail"]
    assert "Did you mean DEVOPS?" in (await gateway.client.get("/roles/devop")).json()["detail"]


async def test_a_role_is_accepted_in_any_case_and_answered_by_its_name() -> None:
    async with served(lists=True) as gateway:
        assert (await gateway.client.get("/roles/dev")).json()["name"] == "DEV"
        taken = await gateway.post({"task": "t", "agents": [{"role": "qa"}, {"role": "Dev", "count": 2}]})
        assert [agent["role"] for agent in taken.json()["agents"]] == ["QA", "DEV", "DEV"]
        listed = await gateway.client.get("/deliberations?role=qa")
        assert [item["id"] for item in listed.json()["items"]] == [taken.json()["id"]]


async def test_roles_of_a_file_replace_the_packaged_ones(tmp_path: Path) -> None:
    roles = tmp_path / "roles.yaml"
    roles.write_text("roles:\n  JUDGE:\n    persona: You judge.\n    sampling: {temperature: 0}\n")
    async with served(roles_file=roles) as gateway:
        assert [item["name"] for item in (await gateway.client.get("/roles")).json()["items"]] == ["JUDGE"]
        refused = await gateway.post({"task": "t"})
        assert refused.json()["errors"][0]["pointer"] == "/role"
        taken = await gateway.post({"task": "t", "role": "JUDGE", "num_agents": 2})
        assert [agent["agent_id"] for agent in taken.json()["agents"]] == ["judge-001", "judge-002"]
        assert taken.json()["agents"][0]["sampling"]["temperature"] == 0


async def test_strategies_show_steps_calls_and_parameters(gateway: Served) -> None:
    items = {item["name"]: item for item in (await gateway.client.get("/strategies")).json()["items"]}
    assert list(items) == list(STRATEGIES)
    for name, definition in STRATEGIES.items():
        assert items[name]["calls"] == definition.formula
        assert items[name]["steps"] == list(definition.steps)
        assert items[name]["source"]
    assert "rounds" in items["council"]["fields"]
    assert "rounds" not in items["single"]["fields"]


async def test_healthz_depends_on_the_process_only(gateway: Served) -> None:
    gateway.journal.available = False
    assert (await gateway.client.get("/healthz")).json() == {"status": "ok"}


async def test_ready_when_work_can_be_accepted_and_run(gateway: Served) -> None:
    response = await gateway.client.get("/readyz")
    assert (response.status_code, response.json()["status"]) == (200, "ready")
    assert response.headers["cache-control"] == "no-store"


async def test_a_missing_sender_degrades_readiness_without_failing_it() -> None:
    journal = InMemoryJournal(replies=dict(ANSWERING))
    async with served(journal=journal, webhooks=True) as gateway:
        without = await gateway.client.get("/readyz")
        figures = (await gateway.client.get("/metrics")).text.splitlines()
        assert "webhook_senders 0.0" in figures
        gateway.gateway["surveyor"].forget()
        journal.replies["control.webhooks"] = [SENDER]
        ready = (await gateway.client.get("/readyz")).json()
        assert "webhook_senders 1.0" in (await gateway.client.get("/metrics")).text.splitlines()
        journal.replies.clear()
        assert await missing(gateway) == ["coordinator", "roles"], "a degraded part is not a fault"
    assert (without.status_code, without.json()["status"]) == (200, "ready")
    (problem,) = without.json()["degraded"]
    assert problem["pointer"] == "webhooks" and "python -m app.webhooks" in problem["remedy"]
    assert "webhooks" not in without.json()["checks"]
    assert "webhooks" in ready["checks"] and ready["degraded"] == []


@pytest.mark.parametrize("pepper", [None, SecretStr("p" * 32)])
async def test_an_unreachable_engine_degrades_readiness_and_is_named_in_development_mode(
    pepper: SecretStr | None,
) -> None:
    url = "http://user:secret@e1:8000"
    dead = {"url": url, "healthy": False, "circuit": "open", "trouble": UNREACHABLE}
    of_roles = {f"control.role.{role}": [{"role": role, "replica": "a", "engines": [dead]}] for role in ("DEV", "QA")}
    journal = InMemoryJournal(replies={"control.coordinator": [COORDINATOR], **of_roles})
    async with served(journal=journal, key_pepper=pepper) as gateway:
        response = await gateway.client.get("/readyz")
    assert (response.status_code, response.json()["status"]) == (200, "ready")
    (problem,) = response.json()["degraded"]
    assert (problem["pointer"], "secret" in response.text) == ("engines", False)
    what = "An engine" if pepper else "Engine http://e1:8000"
    assert problem["detail"] == f"{what} of DEV, QA cannot be connected to: connection refused, since 03:04:05 UTC"
    assert "VLLM_URL" in problem["remedy"]


@pytest.mark.parametrize("pepper", [None, SecretStr("p" * 32)])
@pytest.mark.parametrize(
    ("trouble", "told", "own", "remedy"),
    [
        (REJECTED, "refuses its key", "it answered 401", "/run/secrets"),
        (troubled("memory", "it answered 503: CUDA out of memory"), "is out of memory", "CUDA", "--max-model-len"),
        (troubled("silent"), "takes connections and does not answer", "", "restart it"),
    ],
)
async def test_an_engine_says_why_to_operators_alone(
    pepper: SecretStr | None, trouble: dict[str, Any], told: str, own: str, remedy: str
) -> None:
    failing = {"url": "http://e1:8000", "name": "hosted", "healthy": True, "trouble": trouble}
    replies = [{"role": "DEV", "replica": name, "engines": [failing]} for name in ("a", "b")]
    journal = InMemoryJournal(replies={"control.coordinator": [COORDINATOR], "control.role.DEV": replies})
    async with served(journal=journal, key_pepper=pepper) as gateway:
        response = await gateway.client.get("/readyz")
    (problem,) = response.json()["degraded"]
    what = "An engine" if pepper else "Engine http://e1:8000"
    words = f"{told}: {trouble['detail'].partition(': ')[2]}" if own and not pepper else told
    assert problem["detail"] == f"{what} of DEV {words}, since 03:04:05 UTC"
    assert (remedy in problem["remedy"]) is (pepper is None or trouble is not REJECTED)


def test_a_role_shows_the_gravest_trouble_of_its_replicas_and_when_it_began() -> None:
    later = {**UNREACHABLE, "since": "2026-01-02T03:09:00+00:00"}
    busy = {**troubled("throttled"), "since": "2026-01-01T00:00:00Z"}
    replicas = [
        AgentStatus.model_validate(
            {"role": "QA", "replica": name, "engines": [{"url": "http://e1:8000", "trouble": trouble}]}
        )
        for name, trouble in (("a", None), ("b", later), ("c", UNREACHABLE), ("d", busy))
    ]
    role = live_role(replicas)
    assert role is not None and role.engines[0].trouble == EngineTrouble.model_validate(UNREACHABLE)


def test_each_cause_has_words_and_a_remedy_in_a_sentence() -> None:
    assert set(CAUSES) == set(get_args(TroubleCause)) == set(ENGINE_KINDS) and set(ENGINE_KINDS.values()) <= set(KINDS)
    assert [cause for cause, kind in CAUSES.items() if not kind.words or not kind.remedy.endswith(".")] == []


async def missing(gateway: Served) -> list[str]:
    gateway.gateway["surveyor"].forget()
    response = await gateway.client.get("/readyz")
    assert response.status_code == 503
    problem = response.json()
    assert (problem["code"], response.headers["retry-after"]) == ("not_ready", "2")
    assert all(error["remedy"] for error in problem["errors"])
    return [error["pointer"] for error in problem["errors"]]


async def test_every_missing_dependency_is_named(gateway: Served) -> None:
    gateway.journal.replies.clear()
    assert await missing(gateway) == ["coordinator", "roles"]
    gateway.journal.available = False
    assert await missing(gateway) == ["journal", "coordinator", "roles"]
    gateway.gateway["catalog"].caught_up = False
    assert await missing(gateway) == ["journal", "catalog", "coordinator", "roles"]
    gateway.journal.available = True
    gateway.journal.replies |= ANSWERING
    gateway.gateway["catalog"].caught_up = True
    gateway.gateway["feed"].drain()
    assert await missing(gateway) == ["draining"]


async def beat(gateway: Served, **more: Any) -> None:
    await gateway.journal.tell("heartbeats.role.DEV", json.dumps({**AGENT, **more}).encode())


async def test_agents_whose_heartbeats_say_that_they_live_are_not_asked(gateway: Served) -> None:
    """Load balancers ask `/readyz` all the time, and there may be many replicas."""
    at_s = 0.0
    surveyor = gateway.gateway["surveyor"]
    surveyor.heartbeats = Heartbeats(lambda: at_s)
    gateway.journal.callbacks["heartbeats.role.*"] = [surveyor.heartbeats.note]
    await beat(gateway)
    del gateway.journal.replies["control.role.DEV"]
    assert (await gateway.client.get("/readyz")).status_code == 200
    at_s = SILENT_AFTER_S
    assert await missing(gateway) == ["roles"]


async def test_agents_that_restart_without_end_are_not_ready_although_one_always_answers(gateway: Served) -> None:
    at_s = 0.0
    surveyor = gateway.gateway["surveyor"]
    surveyor.heartbeats = Heartbeats(lambda: at_s)
    gateway.journal.callbacks["heartbeats.role.*"] = [surveyor.heartbeats.note]
    for number in range(4):
        assert (await gateway.client.get("/readyz")).status_code == 200
        await beat(gateway, replica=f"a{number}")
        at_s += 4
        surveyor.forget()
    response = await gateway.client.get("/readyz")
    assert response.json()["errors"][0]["code"] == "role_restarts", response.text
    for _ in range(20):
        at_s += 3
        await beat(gateway, replica="steady")
    surveyor.forget()
    assert (await gateway.client.get("/readyz")).status_code == 200, "the restarts are a minute ago"


async def test_requests_at_once_share_their_checks(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The route needs no key, and each check asks many processes."""
    asked = 0

    async def differences() -> list[str]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        return []

    monkeypatch.setattr(gateway.gateway["journal"], "differences", differences)
    answers = await asyncio.gather(*(gateway.client.get("/readyz") for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200} and asked < 10


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["DELIBERATIONS is missing", "X.max_age: declared 1, found 2"], ["streams", "streams"]),
        (StreamsDiffer("odd"), ["streams"]),
        (JournalUnavailable("away"), ["journal"]),
    ],
)
async def test_differing_streams_are_named(gateway: Served, lines: list[str] | Exception, expected: list[str]) -> None:
    async def differences() -> list[str]:
        if isinstance(lines, Exception):
            raise lines
        return lines

    gateway.journal.differences = differences  # pyright: ignore[reportAttributeAccessIssue]
    assert await missing(gateway) == expected


async def test_metrics_count_requests_by_route_and_deliberations_by_status(gateway: Served) -> None:
    ended = await gateway.accepted()
    await gateway.play(ended)
    for _ in range(2):
        await gateway.client.get(f"/deliberations/{ended}")
    await gateway.client.get(f"/nothing/{ended}")
    response = await gateway.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    for expected in (
        'gateway_requests_total{method="GET",route="/deliberations/{deliberation_id}",status="200"} 2.0',
        'gateway_requests_total{method="GET",route="unmatched",status="404"} 1.0',
        'gateway_request_seconds_count{method="POST",route="/deliberations"} 1.0',
        "deliberations_accepted_total 1.0",
        'deliberations_active{status="in_progress"} 0.0',
        'deliberations_active{status="pending"} 0.0',
        "sse_viewers 0.0",
    ):
        assert expected in lines


async def test_metrics_count_agent_calls_uses_of_tools_and_engine_circuits(gateway: Served) -> None:
    seconds = DurationHistogram()
    seconds.observe(0.3)
    gateway.journal.replies["control.role.QA"] = [
        {
            "role": "QA",
            "replica": "host-1",
            "in_flight": 2,
            "counts": {"answered": 7, "failed": 1, "cut": 3, "retries": 4, "hedges": 5},
            "lenient": {"confidence": 6, "unknown": 1},
            "costs": {"EUR": 1_250_001},
            "tools": [{"name": "shelf", "away_since": "2026-01-01T00:00:00Z"}, {"name": "desk"}],
            "tool_uses": {"shelf": {"outcomes": {"succeeded": 8, "failed": 9}, "seconds": seconds.model_dump()}},
            "engines": [{"url": "http://user:secret@e1:8000", "healthy": False, "circuit": "open", "models": []}],
        }
    ]
    lines = (await gateway.client.get("/metrics")).text.splitlines()
    replica = 'replica="host-1",role="QA"'
    for expected in (
        'agent_calls_total{outcome="answered",' + replica + "} 7.0",
        'agent_calls_total{outcome="cut",' + replica + "} 3.0",
        "agent_retries_total{" + replica + "} 4.0",
        "agent_hedges_total{" + replica + "} 5.0",
        'agent_lenient_readings_total{kind="confidence",' + replica + "} 6.0",
        'agent_cost_total{currency="EUR",' + replica + "} 1.250001",
        "agent_calls_in_flight{" + replica + "} 2.0",
        'engine_circuit{engine="http://e1:8000",' + replica + ',state="open"} 1.0',
        'engine_circuit{engine="http://e1:8000",' + replica + ',state="closed"} 0.0',
        'tool_uses_total{outcome="failed",' + replica + ',server="shelf"} 9.0',
        'tool_use_seconds_bucket{le="0.5",' + replica + ',server="shelf"} 1.0',
        "tool_server_away{" + replica + ',server="shelf"} 1.0',
        "tool_server_away{" + replica + ',server="desk"} 0.0',
    ):
        assert expected in lines


async def test_metrics_show_durations_of_coordinators_and_engines_by_replica(gateway: Served) -> None:
    counts, seconds, first_token = CoordinatorCounts(), DurationHistogram(), DurationHistogram()
    story = Story("d")
    facts = (story.opened(), *(story.finished(agent) for agent in story.agents), story.closed())
    state = reduce(apply, facts, begin(story.accepted(at=NOW - timedelta(seconds=3))))
    counts.count_end(state, story.completed())
    seconds.observe(0.3)
    first_token.observe(0.04)
    gateway.journal.replies["control.coordinator"] = [{**COORDINATOR, "counts": counts.model_dump(mode="json")}]
    engine = {"url": "http://e1:8000", "prompt_tokens": 9, "cached_tokens": 4, "completion_tokens": 2}
    engine |= {"seconds": seconds.model_dump(mode="json"), "first_token": first_token.model_dump(mode="json")}
    gateway.journal.replies["control.role.QA"] = [
        {"role": "QA", "replica": "host-1", "counts": {"answered": 1}, "engines": [engine]}
    ]
    lines = (await gateway.client.get("/metrics")).text.splitlines()
    of_engine = 'engine="http://e1:8000",'
    of_replica = 'replica="host-1",role="QA"'
    for expected in (
        "coordinators 1.0",
        'deliberation_seconds_bucket{le="2.5",replica="c1",status="completed",strategy="independent"} 0.0',
        'deliberation_seconds_bucket{le="5.0",replica="c1",status="completed",strategy="independent"} 1.0',
        'deliberation_seconds_count{replica="c1",status="completed",strategy="independent"} 1.0',
        'deliberation_seconds_sum{replica="c1",status="completed",strategy="independent"} 3.0',
        'deliberation_seconds_count{replica="c1",status="failed",strategy="independent"} 0.0',
        'deliberation_wait_seconds_count{priority="interactive",replica="c1"} 1.0',
        'deliberation_stage_seconds_count{purpose="propose",replica="c1"} 1.0',
        'deliberations_degraded_total{replica="c1",strategy="independent"} 0.0',
        'deliberation_takeovers_total{after="loss",replica="c1"} 0.0',
        "engine_call_seconds_bucket{" + of_engine + 'le="0.25",' + of_replica + "} 0.0",
        "engine_call_seconds_bucket{" + of_engine + 'le="0.5",' + of_replica + "} 1.0",
        "engine_first_token_seconds_count{" + of_engine + of_replica + "} 1.0",
        "engine_tokens_total{" + of_engine + 'kind="cached",' + of_replica + "} 4.0",
        "queue_head_wait_seconds 0.0",
        "log_reachable 1.0",
    ):
        assert expected in lines


async def test_metrics_say_that_the_log_is_unreachable(gateway: Served) -> None:
    gateway.journal.available = False
    assert "log_reachable 0.0" in (await gateway.client.get("/metrics")).text.splitlines()


@pytest.mark.parametrize(
    "histogram",
    [
        {"counts": [1, 2]},
        {"bounds_s": [1.0], "counts": [1, -1]},
        {"bounds_s": [2.0, 1.0], "counts": [0, 0, 0]},
        {"bounds_s": [1.0], "counts": [0, 0], "sum_s": "nan"},
    ],
)
async def test_an_invalid_histogram_of_a_replica_is_left_out(gateway: Served, histogram: dict[str, Any]) -> None:
    counts = {"stages": {"propose": histogram}}
    gateway.journal.replies["control.coordinator"] = [{**COORDINATOR, "counts": counts}]
    answer = await gateway.client.get("/metrics")
    assert answer.status_code == 200 and "coordinators 0.0" in answer.text.splitlines()
    assert "deliberation_stage_seconds_count" not in answer.text


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"role": "QA", "replica": "r", "in_flight": "many"},
        {"role": "QA", "replica": "r", "counts": {}, "engines": [{"url": "http://e", "circuit": "ajar"}]},
    ],
)
async def test_a_reply_of_another_version_breaks_neither_metrics_nor_roles(
    gateway: Served, reply: dict[str, Any]
) -> None:
    partial = {"role": "DEV", "replica": "old", "counts": {"answered": 2}, "engines": [{"url": "http://e"}]}
    gateway.journal.replies["control.role.QA"] = [reply]
    gateway.journal.replies["control.role.DEV"] = [partial]
    figures = await gateway.client.get("/metrics")
    assert figures.status_code == 200
    assert 'agent_calls_total{outcome="answered",replica="old",role="DEV"} 2.0' in figures.text
    assert 'agent_hedges_total{replica="old",role="DEV"} 0.0' in figures.text
    live = {item["name"]: item["live"] for item in (await gateway.client.get("/roles")).json()["items"]}
    assert live["QA"] is None and live["DEV"]["replicas"] == 1
