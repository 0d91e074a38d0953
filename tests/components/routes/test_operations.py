import asyncio
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from app.deliberation.errors import JournalUnavailable, StreamsDiffer
from app.deliberation.facts import Unreachable
from app.deliberation.fold import apply, begin
from app.deliberation.strategies import STRATEGIES
from app.observability.process_counts import CoordinatorCounts, DurationHistogram
from app.observability.replica_status import AgentStatus
from app.routes.roles import live_role
from tests.components.routes.served import COORDINATOR, SENDER, Served, served
from tests.fakes import InMemoryJournal
from tests.story import NOW, Story


async def test_roles_show_their_declaration_and_live_replicas(gateway: Served) -> None:
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
                "unreachable": None,
                "list_problem": "",
                "key_rejected": None,
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
    journal = InMemoryJournal(replies={"control.coordinator": [COORDINATOR]})
    async with served(journal=journal, webhooks=True) as gateway:
        without = await gateway.client.get("/readyz")
        figures = (await gateway.client.get("/metrics")).text.splitlines()
        assert "webhook_senders 0.0" in figures
        journal.replies["control.webhooks"] = [SENDER]
        ready = (await gateway.client.get("/readyz")).json()
        assert "webhook_senders 1.0" in (await gateway.client.get("/metrics")).text.splitlines()
        journal.replies.clear()
        assert await missing(gateway) == ["coordinator"], "a degraded part is not a fault"
    assert (without.status_code, without.json()["status"]) == (200, "ready")
    (problem,) = without.json()["degraded"]
    assert problem["pointer"] == "webhooks" and "python -m app.webhooks" in problem["remedy"]
    assert "webhooks" not in without.json()["checks"]
    assert "webhooks" in ready["checks"] and ready["degraded"] == []


UNREACHABLE = {"since": "2026-01-02T03:04:05+00:00", "cause": "connection refused"}


@pytest.mark.parametrize("pepper", [None, SecretStr("p" * 32)])
async def test_an_unreachable_engine_degrades_readiness_and_is_named_in_development_mode(
    pepper: SecretStr | None,
) -> None:
    url = "http://user:secret@e1:8000"
    dead = {"url": url, "healthy": False, "circuit": "open", "unreachable": UNREACHABLE}
    of_roles = {f"control.role.{role}": [{"role": role, "replica": "a", "engines": [dead]}] for role in ("DEV", "QA")}
    journal = InMemoryJournal(replies={"control.coordinator": [COORDINATOR], **of_roles})
    async with served(journal=journal, key_pepper=pepper) as gateway:
        response = await gateway.client.get("/readyz")
    assert (response.status_code, response.json()["status"]) == (200, "ready")
    (problem,) = response.json()["degraded"]
    assert (problem["pointer"], "secret" in response.text) == ("engines", False)
    what = "An engine" if pepper else "Engine http://e1:8000"
    assert problem["detail"] == f"{what} of DEV, QA cannot be connected to since 03:04:05 UTC: connection refused"
    assert "VLLM_URL" in problem["remedy"]


REMEDY = "correct the key in /run/secrets/hosted, which is read anew within seconds"
REJECTED = {"since": "2026-01-02T03:04:05+00:00", "status": 401, "remedy": REMEDY}


@pytest.mark.parametrize("pepper", [None, SecretStr("p" * 32)])
async def test_a_refused_key_degrades_readiness_and_its_remedy_is_named_in_development_mode(
    pepper: SecretStr | None,
) -> None:
    refusing = {"url": "http://e1:8000", "name": "hosted", "healthy": True, "key_rejected": REJECTED}
    replies = [{"role": "DEV", "replica": "a", "engines": [refusing]}]
    journal = InMemoryJournal(replies={"control.coordinator": [COORDINATOR], "control.role.DEV": replies})
    async with served(journal=journal, key_pepper=pepper) as gateway:
        response = await gateway.client.get("/readyz")
    (problem,) = response.json()["degraded"]
    what = "An engine" if pepper else "Engine http://e1:8000"
    assert problem["detail"] == f"{what} of DEV refuses its key"
    assert ("/run/secrets" in problem["remedy"]) is (pepper is None)


def test_a_role_shows_the_earliest_outage_of_its_replicas() -> None:
    later = {**UNREACHABLE, "since": "2026-01-02T03:09:00+00:00"}
    replicas = [
        AgentStatus.model_validate(
            {"role": "QA", "replica": name, "engines": [{"url": "http://e1:8000", "unreachable": outage}]}
        )
        for name, outage in (("a", None), ("b", later), ("c", UNREACHABLE), ("d", None))
    ]
    role = live_role(replicas)
    assert role is not None and role.engines[0].unreachable == Unreachable.model_validate(UNREACHABLE)


async def missing(gateway: Served) -> list[str]:
    response = await gateway.client.get("/readyz")
    assert response.status_code == 503
    problem = response.json()
    assert (problem["code"], response.headers["retry-after"]) == ("not_ready", "2")
    assert all(error["remedy"] for error in problem["errors"])
    return [error["pointer"] for error in problem["errors"]]


async def test_every_missing_dependency_is_named(gateway: Served) -> None:
    gateway.journal.replies.clear()
    assert await missing(gateway) == ["coordinator"]
    gateway.journal.available = False
    assert await missing(gateway) == ["journal", "coordinator"]
    gateway.gateway["catalog"].caught_up = False
    assert await missing(gateway) == ["journal", "catalog", "coordinator"]
    gateway.journal.available = True
    gateway.journal.replies["control.coordinator"] = [COORDINATOR]
    gateway.gateway["catalog"].caught_up = True
    gateway.gateway["feed"].drain()
    assert await missing(gateway) == ["draining"]


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
    counts.take_end(state, story.completed())
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
