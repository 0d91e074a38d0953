import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from app.api.installation import ConsumerFigures, Installation, LogFigures, StreamFigures
from app.cli.status import parts_table
from app.deliberation.errors import JournalUnavailable
from app.deliberation.roles import Role
from app.log.gateway_log import log_figures
from tests.components.routes.replica_replies import (
    COORDINATOR_AT_WORK,
    ROLES,
    VERSIONS,
    agent,
    engine,
    replies,
    troubled,
)
from tests.components.routes.served import SENDER, Served, served
from tests.conditions import until
from tests.fakes import InMemoryJournal

NO_VERSIONS = {"product": None, "ray": None, "python": None}
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


def wider(gateway: Served, most: int) -> Mapping[str, Role]:
    """The roles of the gateway with up to `most` replicas."""
    return {
        name: role.model_copy(update={"replicas": role.replicas.model_copy(update={"max": most})})
        for name, role in gateway.gateway["roles"].items()
    }


async def fixed_figures() -> LogFigures:
    return LOG


@pytest.fixture
async def gateway() -> AsyncGenerator[Served, None]:
    async with served(journal=InMemoryJournal(replies=replies()), webhooks=True) as running:
        running.journal.figures = fixed_figures  # pyright: ignore[reportAttributeAccessIssue]
        yield running


async def status(gateway: Served) -> dict[str, Any]:
    gateway.gateway["surveyor"].forget()
    response = await gateway.client.get("/status")
    assert (response.status_code, response.headers["cache-control"]) == (200, "no-store"), response.text
    Installation.model_validate_json(response.content)
    return response.json()


def codes(shown: dict[str, Any]) -> list[str]:
    return [fault["code"] for fault in shown["findings"]]


async def test_shows_every_part_when_all_answer(gateway: Served) -> None:
    shown = await status(gateway)
    assert codes(shown) == ["server_old"], "of the engines in this file"
    assert shown["versions"]["nats_server"] == "2.15.1" and shown["versions"]["replicas"] == [VERSIONS, NO_VERSIONS]
    assert shown["versions"]["engines"] == ["0.32.0"]
    (application,) = shown["applications"]
    assert application["name"] == "deliberations"
    names = [each["name"] for each in application["deployments"]]
    assert names == ["Coordinator", *(f"Agent:{role}" for role in ROLES)]
    assert application["deployments"][0] == {"name": "Coordinator", "answered": 1, "wanted": 1, "product": ["0.1.0"]}
    (coordinator,) = shown["coordinators"]
    assert (coordinator["id"], coordinator["in_hand"], coordinator["bound"]) == ("host-1", 7, 1_024)
    assert coordinator["turns"] == COORDINATOR_AT_WORK["gates"]
    assert [each["role"] for each in shown["agents"]] == list(ROLES)
    assert shown["streams"][0]["messages"] == 3 and shown["consumers"][0]["lag"] == 4
    assert shown["webhooks"][0]["held"] == SENDER["held"]


async def test_projectors_show_how_far_behind_they_are_and_what_they_wait_for() -> None:
    projector = {"replica": "archive-7", "counts": {"written": 3}, "failure": "the disk is full", "pending": 41}
    journal = InMemoryJournal(replies={**replies(), "control.archive": [projector]})
    async with served(journal=journal, lists=True) as gateway:
        gateway.journal.figures = fixed_figures  # pyright: ignore[reportAttributeAccessIssue]
        shown = await status(gateway)
        ready = (await gateway.client.get("/readyz")).json()
        text = Console(width=80)
        with text.capture() as captured:
            text.print(parts_table(Installation.model_validate(shown)))
        gateway.journal.replies["control.archive"] = []
        without = await status(gateway)
    view = {name: value for name, value in projector.items() if name != "replica"}
    assert shown["projectors"] == [{"id": "archive-7", **view}]
    assert codes(shown)[0] == "archive_waits"
    assert [(each["pointer"], each["detail"]) for each in ready["degraded"]] == [("archive", "the disk is full")]
    assert "3 copied, 41 facts behind; waits: the disk is full" in " ".join(captured.get().split())
    assert (without["projectors"], codes(without)[0]) == ([], "archive_missing")


async def test_an_engine_appears_once_with_total_load_and_worst_circuit(gateway: Served) -> None:
    gateway.journal.replies["control.role.DEV"] = [
        agent(
            "DEV",
            in_flight=9,
            engines=[engine("http://user:secret@e1:8000", in_flight=4), engine("http://e2:8000", in_flight=2)],
        )
    ]
    failing = engine("http://e1:8000", in_flight=3, healthy=False, circuit="half_open", models=["m-2 simulated"])
    gateway.journal.replies["control.role.QA"] = [agent("QA", engines=[failing])]
    gateway.gateway["surveyor"].forget()
    response = await gateway.client.get("/status")
    assert "secret" not in response.text
    shown = response.json()
    engines = {each["url"]: each for each in shown["engines"]}
    assert list(engines) == ["http://e1:8000", "http://e2:8000"]
    first = engines["http://e1:8000"]
    assert (first["in_flight"], first["circuit"], first["healthy"], first["simulated"]) == (7, "half_open", False, True)
    assert first["roles"] == sorted(ROLES) and first["models"] == ["m-1", "m-2 simulated"]
    assert engines["http://e2:8000"]["roles"] == ["DEV"] and engines["http://e2:8000"]["healthy"]
    dev = shown["agents"][0]
    assert (dev["running"], dev["waiting"], dev["concurrency"]) == (9, 3, 256)


async def test_an_engines_trouble_is_told_once_with_its_own_words_and_the_remedy_of_its_cause(gateway: Served) -> None:
    words = "it answered 503: CUDA out of memory"
    for role in ROLES:
        troubles = [troubled("memory", words, since=f"2026-01-02T03:0{minute}:00Z") for minute in (5, 4)]
        failing = [engine("http://e2:8000", healthy=False, circuit="open", trouble=trouble) for trouble in troubles]
        gateway.journal.replies[f"control.role.{role}"] = [
            agent(role, number, engines=[view]) for number, view in enumerate(failing)
        ]
    gateway.gateway["surveyor"].roles = wider(gateway, most=2)
    shown = await status(gateway)
    (told,) = [fault for fault in shown["findings"] if fault["part"] == "engines"]
    assert told["code"] == "engine_fails" and "--max-model-len" in told["remedy"]
    which = f"Engine http://e2:8000 of {', '.join(sorted(ROLES))}"
    assert told["detail"] == f"{which} is out of memory: {words}, since 03:04:00 UTC"
    (load,) = shown["engines"]
    assert (load["trouble"]["cause"], load["trouble"]["detail"]) == ("memory", f"is out of memory: {words}")
    (role,) = [role for role in (await gateway.client.get("/roles")).json()["items"] if role["name"] == "QA"]
    assert role["live"]["engines"][0]["trouble"] == load["trouble"]


async def test_an_engine_shows_the_last_answers_of_all_its_replicas_and_its_first_trouble(gateway: Served) -> None:
    troubles = [
        troubled("errors", why, since=f"2026-01-02T03:0{minute}:00Z")
        for why, minute in (("it answered 500", 5), ("it answered 502", 4))
    ]
    url = "http://e2:8000"
    dev = engine(url, trouble=troubles[0], recent=[[100, 80, 40], [500, 100, 0]])
    gateway.journal.replies["control.role.DEV"] = [agent("DEV", waiting=2, engines=[dev])]
    qa = engine(url, trouble=troubles[1], recent=[[300, 20, 10], [None, 0, 0]])
    gateway.journal.replies["control.role.QA"] = [agent("QA", waiting=1, engines=[qa])]
    shown = {each["url"]: each for each in (await status(gateway))["engines"]}
    assert (shown[url]["waiting"], shown[url]["cached_share"], shown[url]["ttft_s"]) == (3, 0.25, 0.3)
    assert shown[url]["trouble"] == troubles[1]
    idle = shown["http://e1:8000"]
    assert (idle["waiting"], idle["cached_share"], idle["ttft_s"], idle["trouble"]) == (0, None, None, None)
    (role,) = [each for each in (await gateway.client.get("/roles")).json()["items"] if each["name"] == "QA"]
    assert role["live"]["engines"][0]["trouble"] == troubles[1]


async def test_parts_show_how_many_answer_and_since_when_the_newest_runs(gateway: Served) -> None:
    for number, started in enumerate(("2026-01-02T03:00:00Z", "2026-01-02T04:00:00Z")):
        gateway.journal.replies["control.coordinator"].append(
            {**COORDINATOR_AT_WORK, "replica": f"c{number}", "started_at": started}
        )
    parts = {part["part"]: (part["replicas"], part["started_at"]) for part in (await status(gateway))["parts"]}
    assert list(parts) == ["gateway", "coordinator", *(f"role {role}" for role in ROLES), "webhooks"]
    assert parts["coordinator"] == (3, "2026-01-02T04:00:00Z") and parts["role QA"] == (1, None)


async def test_the_queue_shows_its_depth_and_limits(gateway: Served) -> None:
    begun = await gateway.accepted()
    await gateway.play(begun, until_stage=1)
    await gateway.accepted(role="QA")
    await gateway.play(await gateway.accepted())
    gateway.clock.advance(3)
    queue = (await status(gateway))["queue"]
    assert (queue["depth"], queue["waiting"], queue["in_hand"], queue["head_waited_s"]) == (2, 1, 1, 3.0)
    roles = {each["role"]: each for each in queue["roles"]}
    assert {name: each["depth"] for name, each in roles.items() if each["depth"]} == {"DEV": 1, "QA": 1}
    backlog = gateway.gateway["catalog"].backlog
    assert roles["QA"]["admitted"] == backlog.depth_max and roles["QA"]["ended_per_s"] is None
    for number in range(20):
        backlog.hold(("default", f"d{number}"), {"DEV"}, gateway.clock.now(), begun_at=gateway.clock.now())
        backlog.drop(("default", f"d{number}"), done_at=gateway.clock.now())
    assert (await status(gateway))["queue"]["ended_per_s"] > 1


@pytest.mark.parametrize(
    ("silence", "expected"),
    [
        (("control.coordinator",), ["coordinator_missing"]),
        (("control.role.DEV",), ["role_missing"]),
        (("control.webhooks",), ["webhooks_missing"]),
        (tuple(replies()), ["coordinator_missing", "role_missing", "webhooks_missing"]),
    ],
)
async def test_silent_parts_are_missing_and_the_others_shown(
    gateway: Served, silence: tuple[str, ...], expected: list[str]
) -> None:
    for subject in silence:
        del gateway.journal.replies[subject]
    shown = await status(gateway)
    assert [code for code in codes(shown) if code.endswith("_missing")] == expected
    assert shown["queue"]["depth"] == 0 and shown["streams"]
    assert len(shown["agents"]) == len(ROLES) - sum("role" in subject for subject in silence)


async def test_replies_of_another_version_are_read_partially(gateway: Served) -> None:
    gateway.journal.replies["control.role.DEV"] = [{"role": "DEV", "replica": "old", "more": [1]}]
    newer = {**VERSIONS, "product": "0.2.0"}
    gateway.journal.replies["control.role.QA"] = [agent("QA", 1), agent("QA", 2, versions=newer)]
    gateway.gateway["surveyor"].roles = wider(gateway, most=4)
    shown = await status(gateway)
    old = next(each for each in shown["agents"] if each["id"] == "old")
    assert old["versions"] == NO_VERSIONS and old["engines"] == []
    deployments = {each["name"]: each for each in shown["applications"][0]["deployments"]}
    assert "Agent:DEV" not in deployments and deployments["Agent:QA"]["product"] == ["0.1.0", "0.2.0"]
    assert newer in shown["versions"]["replicas"] and "reply_invalid" not in codes(shown)


async def test_a_role_that_starts_at_its_first_use_is_not_missing_before_it(gateway: Served) -> None:
    del gateway.journal.replies["control.role.QA"]
    shown = await status(gateway)
    assert "role_missing" not in codes(shown) and "QA" not in {agent["role"] for agent in shown["agents"]}


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
        agent("QA", engines=[engine("http://e", completion_tokens=10**400)]),
        agent("QA", engines=[engine("http://e", answers=-1)]),
    ],
)
async def test_an_invalid_reply_is_reported(gateway: Served, reply: dict[str, Any]) -> None:
    gateway.journal.replies["control.role.QA"] = [reply]
    shown = await status(gateway)
    (told,) = [fault for fault in shown["findings"] if fault["code"] == "reply_invalid"]
    assert told["detail"].startswith("role QA: a reply is not valid")
    assert [each["role"] for each in shown["agents"]] == [role for role in ROLES if role != "QA"]


async def _away() -> LogFigures:
    raise JournalUnavailable("the log cannot be reached")


async def _hangs() -> LogFigures:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(("log", "detail"), [(_away, "cannot be reached"), (_hangs, "no figures within")])
async def test_an_unavailable_log_is_reported_first_within_its_timeout(
    gateway: Served, log: Callable[[], Any], detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.operations.survey.LOG_TIMEOUT_S", 0.05)
    gateway.journal.figures = log  # pyright: ignore[reportAttributeAccessIssue]
    gateway.journal.replies.clear()
    async with asyncio.timeout(5):
        shown = await status(gateway)
    assert codes(shown)[0] == "journal_unavailable" and detail in shown["findings"][0]["detail"]
    assert shown["streams"] == shown["agents"] == [] and shown["versions"]["nats_server"] is None


async def test_the_queue_is_missing_until_the_log_is_read(gateway: Served) -> None:
    gateway.gateway["catalog"].caught_up = False
    assert codes(await status(gateway))[0] == "catalog_unread"


async def test_concurrent_requests_share_one_answer(gateway: Served) -> None:
    asked: list[int] = []
    answering = asyncio.Event()

    async def slow() -> LogFigures:
        asked.append(1)
        await answering.wait()
        return LOG

    gateway.journal.figures = slow  # pyright: ignore[reportAttributeAccessIssue]
    gateway.gateway["surveyor"].forget()
    async with asyncio.TaskGroup() as group:
        viewers = [group.create_task(gateway.client.get("/status")) for _ in range(20)]
        await until(lambda: bool(asked))
        answering.set()
    assert len(asked) == 1 and len({viewer.result().content for viewer in viewers}) == 1


class Server:
    server_version = "2.15.1"

    def __init__(self, replies: dict[str, Any]) -> None:
        self.replies = replies

    async def request(self, subject: str, payload: bytes = b"") -> dict[str, Any]:
        absent = {"error": {"code": 404, "description": "not found"}}
        return json.loads(json.dumps(self.replies.get(subject.removeprefix("$JS.API."), absent)))


async def test_absent_streams_are_left_out_and_empty_ones_have_no_times() -> None:
    state = {"messages": 0, "bytes": 0, "first_seq": 8, "last_seq": 7}
    moments = {"first_ts": "0001-01-01T00:00:00Z", "last_ts": "2026-01-01T00:00:00.123456789Z"}
    full = {"state": {**state, **moments, "messages": 2, "bytes": 10, "first_ts": "2026-01-01T00:00:00Z"}}
    consumer = {"num_pending": 1, "num_ack_pending": 2, "num_redelivered": 3, "num_waiting": 4}
    server = Server(
        {"STREAM.INFO.A": full, "STREAM.INFO.B": {"state": {**state, **moments}}, "CONSUMER.INFO.A.c": consumer}
    )
    shown = await log_figures(server, ["A", "B", "C"], [("A", "c"), ("C", "d")])
    streams = [(each.name, each.messages, each.first_at is None) for each in shown.streams]
    assert streams == [("A", 2, False), ("B", 0, True)]
    (known,) = shown.consumers
    assert (known.lag, known.unacknowledged, known.redelivered, known.pulls) == (1, 2, 3, 4)
