"""GET /cluster: what parts tell of themselves put together, what does not answer told, and nothing that breaks it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest

from app.api.cluster_schemas import Cluster, ConsumerFigures, LogFigures, MissingPart, StreamFigures
from app.deliberation.errors import JournalUnavailable
from app.log.stats import log_figures
from app.testing import InMemoryJournal
from tests.components.access.keyed import PEPPER, bearer, make_key
from tests.components.routes.served import SENDER, Served, served
from tests.conditions import until

VERSIONS = {"product": "0.1.0", "ray": "2.60.0", "python": "3.11.7"}
COORDINATOR: dict[str, Any] = {
    "replica": "host-1",
    "node": "host",
    "application": "deliberations",
    "deployment": "Coordinator",
    "wanted": 1,
    "versions": VERSIONS,
    "in_flight": 7,
    "slots": 1_024,
    "roles": ["DEV"],
    "gates": [{"roles": ["DEV"], "begun": 5, "bound": 16, "waiting": 2}],
}
ROLES = ("DEV", "QA", "ARCHITECT", "DEVOPS", "DATA")
LOG = LogFigures(
    server_version="2.15.1",
    streams=(
        StreamFigures(
            name="DELIBERATIONS",
            messages=3,
            bytes=99,
            first_sequence=1,
            last_sequence=3,
            first_at=datetime(2026, 1, 1, tzinfo=UTC),
            last_at=None,
        ),
    ),
    consumers=(
        ConsumerFigures(stream="DELIBERATIONS", name="coordinator", lag=4, unacknowledged=7, redelivered=1, pulls=1),
    ),
)


def engine(url: str, **more: Any) -> dict[str, Any]:
    told = {"url": url, "healthy": True, "circuit": "closed", "in_flight": 0, "models": ["m-1"], "version": "0.32.0"}
    return {**told, **more}


def agent(role: str, number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "replica": f"host-{role}-{number}",
        "node": "host",
        "application": "deliberations",
        "deployment": f"Agent:{role}",
        "wanted": 1,
        "versions": VERSIONS,
        "role": role,
        "model": "m-1",
        "simulated": False,
        "engines": [engine("http://e1:8000")],
        "in_flight": 0,
        "concurrency": 256,
        "counts": {"answered": 1},
        **more,
    }


def replies() -> dict[str, list[dict[str, Any]]]:
    """Of an installation in which everybody answers."""
    of_roles = {f"control.role.{role}": [agent(role)] for role in ROLES}
    return {"control.coordinator": [deepcopy(COORDINATOR)], "control.webhooks": [SENDER], **of_roles}


async def told_log() -> LogFigures:
    return LOG


@pytest.fixture
async def gateway() -> AsyncGenerator[Served, None]:
    async with served(journal=InMemoryJournal(replies=replies()), webhooks=True) as running:
        running.gateway["log_told"] = told_log
        yield running


async def cluster(gateway: Served) -> dict[str, Any]:
    """A new answer, in the shape that is declared."""
    gateway.gateway["cluster"].forget()
    response = await gateway.client.get("/cluster")
    assert (response.status_code, response.headers["cache-control"]) == (200, "no-store"), response.text
    Cluster.model_validate_json(response.content)
    return response.json()


def missing(told: dict[str, Any]) -> list[str]:
    return [each["part"] for each in told["missing"]]


async def test_where_everybody_answers_nothing_is_missing_and_all_is_told(gateway: Served) -> None:
    told = await cluster(gateway)
    assert told["missing"] == []
    assert told["versions"]["nats_server"] == "2.15.1" and told["versions"]["replicas"] == [VERSIONS]
    assert told["versions"]["engines"] == ["0.32.0"]
    (application,) = told["applications"]
    assert application["name"] == "deliberations"
    assert [each["name"] for each in application["deployments"]] == [
        "Coordinator",
        *(f"Agent:{role}" for role in ROLES),
    ]
    assert application["deployments"][0] == {"name": "Coordinator", "answered": 1, "wanted": 1, "product": ["0.1.0"]}
    (coordinator,) = told["coordinators"]
    assert (coordinator["id"], coordinator["in_hand"], coordinator["bound"]) == ("host-1", 7, 1_024)
    assert coordinator["turns"] == COORDINATOR["gates"]
    assert [each["role"] for each in told["agents"]] == list(ROLES)
    assert told["streams"][0]["messages"] == 3 and told["consumers"][0]["lag"] == 4
    assert told["webhooks"][0]["held"] == SENDER["held"]


async def test_an_engine_is_told_once_with_the_load_of_all_and_the_worst_of_what_they_see(gateway: Served) -> None:
    gateway.journal.replies["control.role.DEV"] = [
        agent(
            "DEV",
            in_flight=9,
            engines=[engine("http://user:secret@e1:8000", in_flight=4), engine("http://e2:8000", in_flight=2)],
        )
    ]
    failing = engine("http://e1:8000", in_flight=3, healthy=False, circuit="half_open", models=["m-2 simulated"])
    gateway.journal.replies["control.role.QA"] = [agent("QA", engines=[failing])]
    gateway.gateway["cluster"].forget()
    response = await gateway.client.get("/cluster")
    assert "secret" not in response.text
    told = response.json()
    engines = {each["url"]: each for each in told["engines"]}
    assert list(engines) == ["http://e1:8000", "http://e2:8000"]
    first = engines["http://e1:8000"]
    assert (first["in_flight"], first["circuit"], first["healthy"], first["simulated"]) == (7, "half_open", False, True)
    assert first["roles"] == sorted(ROLES) and first["models"] == ["m-1", "m-2 simulated"]
    assert engines["http://e2:8000"]["roles"] == ["DEV"] and engines["http://e2:8000"]["healthy"]
    dev = told["agents"][0]
    assert (dev["running"], dev["waiting"], dev["concurrency"]) == (9, 3, 256)


@pytest.mark.parametrize(
    ("seen", "worst"),
    [
        (("closed", "closed"), "closed"),
        (("closed", "half_open"), "half_open"),
        (("half_open", "open"), "open"),
        (("open", "closed"), "open"),
    ],
)
async def test_of_what_replicas_see_of_an_engine_the_worst_is_told(
    gateway: Served, seen: tuple[str, str], worst: str
) -> None:
    for role, circuit in zip(ROLES, (*seen, *["closed"] * 3), strict=True):
        gateway.journal.replies[f"control.role.{role}"] = [agent(role, engines=[engine("http://e", circuit=circuit)])]
    (told,) = (await cluster(gateway))["engines"]
    assert told["circuit"] == worst


async def test_the_queue_is_what_is_accepted_and_unfinished_and_what_more_is_taken_on(gateway: Served) -> None:
    begun = await gateway.accepted()
    await gateway.play(begun, until_stage=1)
    await gateway.accepted(role="QA")
    await gateway.play(await gateway.accepted())
    gateway.clock.advance(3)
    queue = (await cluster(gateway))["queue"]
    assert (queue["depth"], queue["waiting"], queue["in_hand"], queue["head_waited_s"]) == (2, 1, 1, 3.0)
    roles = {each["role"]: each for each in queue["roles"]}
    assert {name: each["depth"] for name, each in roles.items() if each["depth"]} == {"DEV": 1, "QA": 1}
    backlog = gateway.gateway["catalog"].backlog
    assert roles["QA"]["admitted"] == backlog.depth_max and roles["QA"]["ended_per_s"] is None
    for number in range(20):
        backlog.hold(("default", f"d{number}"), {"DEV"}, gateway.clock.now(), begun_at=gateway.clock.now())
        backlog.drop(("default", f"d{number}"), done_at=gateway.clock.now())
    assert (await cluster(gateway))["queue"]["ended_per_s"] > 1


@pytest.mark.parametrize(
    ("silence", "expected"),
    [
        (("control.coordinator",), ["coordinator"]),
        (("control.role.QA",), ["role QA"]),
        (("control.webhooks",), ["webhooks"]),
        (tuple(replies()), ["coordinator", *sorted(f"role {role}" for role in ROLES), "webhooks"]),
    ],
)
async def test_whoever_does_not_answer_is_named_and_the_rest_is_told(
    gateway: Served, silence: tuple[str, ...], expected: list[str]
) -> None:
    for subject in silence:
        del gateway.journal.replies[subject]
    told = await cluster(gateway)
    assert missing(told) == expected
    assert all("answered within 0.5 s" in each["detail"] for each in told["missing"])
    assert told["queue"]["depth"] == 0 and told["streams"]
    assert len(told["agents"]) == len(ROLES) - sum("role" in subject for subject in silence)


async def test_fewer_coordinators_than_serve_wants_are_told(gateway: Served) -> None:
    gateway.journal.replies["control.coordinator"] = [{**COORDINATOR, "replica": f"c{n}", "wanted": 3} for n in (2, 1)]
    told = await cluster(gateway)
    assert told["missing"] == [{"part": "coordinator", "detail": "2 of 3 answered within 0.5 s"}]
    assert [each["id"] for each in told["coordinators"]] == ["c1", "c2"]
    assert told["applications"][0]["deployments"][0]["wanted"] == 3


async def test_while_webhooks_are_off_nobody_is_missed() -> None:
    async with served(journal=InMemoryJournal(replies=replies())) as gateway:
        told = await cluster(gateway)
    assert told["webhooks"] is None and missing(told) == []


async def test_replicas_of_another_version_are_read_as_far_as_they_go(gateway: Served) -> None:
    gateway.journal.replies["control.role.DEV"] = [{"role": "DEV", "replica": "old", "more": [1]}]
    newer = {**VERSIONS, "product": "0.2.0"}
    gateway.journal.replies["control.role.QA"] = [agent("QA", 1), agent("QA", 2, versions=newer)]
    gateway.gateway["roles"] = {
        name: role.model_copy(update={"replicas": role.replicas.model_copy(update={"max": 4})})
        for name, role in gateway.gateway["roles"].items()
    }
    told = await cluster(gateway)
    old = next(each for each in told["agents"] if each["id"] == "old")
    assert old["versions"] == {"product": None, "ray": None, "python": None} and old["engines"] == []
    deployments = {each["name"]: each for each in told["applications"][0]["deployments"]}
    assert "Agent:DEV" not in deployments and deployments["Agent:QA"]["product"] == ["0.1.0", "0.2.0"]
    assert newer in told["versions"]["replicas"] and told["missing"] == []


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"role": "QA"},
        agent("QA", engines=[1]),
        agent("QA", engines=[engine("http://[")]),
        agent("QA", in_flight="many"),
        agent("QA", engines=[engine("http://e", circuit="ajar")]),
        agent("QA", versions="1"),
    ],
)
async def test_a_reply_that_cannot_be_read_is_told_and_breaks_nothing(gateway: Served, reply: dict[str, Any]) -> None:
    gateway.journal.replies["control.role.QA"] = [reply]
    told = await cluster(gateway)
    assert missing(told) == ["role QA"] and "cannot be read" in told["missing"][0]["detail"]
    assert [each["role"] for each in told["agents"]] == [role for role in ROLES if role != "QA"]


async def _away() -> LogFigures:
    raise JournalUnavailable("the log cannot be reached")


async def _hangs() -> LogFigures:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(("log", "detail"), [(_away, "cannot be reached"), (_hangs, "No answer within")])
async def test_a_log_that_is_away_or_hangs_is_told_first_and_waited_for_no_longer_than_its_bound(
    gateway: Served, log: Callable[[], Any], detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.routes.cluster.LOG_TIMEOUT_S", 0.05)
    gateway.gateway["log_told"] = log
    gateway.journal.replies.clear()
    async with asyncio.timeout(5):
        told = await cluster(gateway)
    assert missing(told)[0] == "log" and detail in told["missing"][0]["detail"]
    assert told["streams"] == told["agents"] == [] and told["versions"]["nats_server"] is None


async def test_while_the_log_is_being_read_it_is_told_that_the_queue_is_not_known(gateway: Served) -> None:
    gateway.gateway["catalog"].backlog_known = False
    assert missing(await cluster(gateway)) == ["catalog"]


async def test_all_who_ask_within_a_moment_cost_one_question(gateway: Served) -> None:
    asked: list[int] = []
    answering = asyncio.Event()

    async def slow() -> LogFigures:
        asked.append(1)
        await answering.wait()
        return LOG

    gateway.gateway["log_told"] = slow
    gateway.gateway["cluster"].forget()
    async with asyncio.TaskGroup() as group:
        viewers = [group.create_task(gateway.client.get("/cluster")) for _ in range(20)]
        await until(lambda: bool(asked))
        answering.set()
    assert len(asked) == 1 and len({viewer.result().content for viewer in viewers}) == 1


async def test_it_is_for_whoever_runs_the_installation_and_names_no_tenant() -> None:
    async with served(journal=InMemoryJournal(replies=replies()), key_pepper=PEPPER) as gateway:
        ring = gateway.gateway["access"].keyring
        assert ring is not None
        await until(lambda: ring.caught_up)
        chief = await make_key(gateway.journal, "acme", ("submit", "read"))
        operator = await make_key(gateway.journal, "house", ("admin",))
        posted = await gateway.client.post("/deliberations", json={"task": "A secret plan."}, headers=bearer(chief))
        assert posted.status_code == 202
        assert (await gateway.client.get("/cluster")).status_code == 401
        assert (await gateway.client.get("/cluster", headers=bearer(chief))).status_code == 403
        told = await gateway.client.get("/cluster", headers=bearer(operator))
    assert told.status_code == 200 and told.json()["queue"]["depth"] == 1
    assert not any(word in told.text for word in ("acme", "secret plan", posted.json()["id"]))


class Server:
    """A server of the log that has what it is given."""

    server_version = "2.15.1"

    def __init__(self, replies: dict[str, Any]) -> None:
        self.replies = replies

    async def request(self, subject: str, payload: bytes = b"") -> dict[str, Any]:
        absent = {"error": {"code": 404, "description": "not found"}}
        return json.loads(json.dumps(self.replies.get(subject.removeprefix("$JS.API."), absent)))


async def test_streams_and_consumers_that_the_server_lacks_are_missing_and_an_empty_stream_has_no_moments() -> None:
    state = {"messages": 0, "bytes": 0, "first_seq": 8, "last_seq": 7}
    moments = {"first_ts": "0001-01-01T00:00:00Z", "last_ts": "2026-01-01T00:00:00.123456789Z"}
    full = {"state": {**state, **moments, "messages": 2, "bytes": 10, "first_ts": "2026-01-01T00:00:00Z"}}
    consumer = {"num_pending": 1, "num_ack_pending": 2, "num_redelivered": 3, "num_waiting": 4}
    server = Server(
        {"STREAM.INFO.A": full, "STREAM.INFO.B": {"state": {**state, **moments}}, "CONSUMER.INFO.A.c": consumer}
    )
    told = await log_figures(server, ["A", "B", "C"], [("A", "c"), ("C", "d")])
    assert [(each.name, each.messages, each.first_at is None) for each in told.streams] == [
        ("A", 2, False),
        ("B", 0, True),
    ]
    (known,) = told.consumers
    assert (known.lag, known.unacknowledged, known.redelivered, known.pulls) == (1, 2, 3, 4)
    assert told.missing == (
        MissingPart(part="stream C", detail="not found"),
        MissingPart(part="consumer C.d", detail="not found"),
    )
