"""`GET /status`: each broken installation by its first finding; tests/integration/cli/test_doctor.py has set-ups."""

from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import pytest
from pydantic import SecretStr

from app.api.findings import KINDS, Finding, as_finding, as_problem, finding, ordered
from app.api.installation import Installation, LogFigures, StreamFigures
from app.deliberation.errors import JournalUnavailable, StreamsDiffer
from tests.components.routes.replica_replies import REJECTED, ROLES, UNREACHABLE, agent, engine, replies, troubled
from tests.components.routes.served import COORDINATOR, Served, served
from tests.fakes import InMemoryJournal

OWN = {"product": version("deliberation-gateway"), "ray": "2.60.0", "python": "3.11.7"}
PROJECTOR: dict[str, Any] = {"replica": "archive-7", "counts": {}, "failure": "", "pending": 41}


def sound() -> dict[str, list[dict[str, Any]]]:
    of_roles = {f"control.role.{role}": [agent(role, versions=OWN, engines=[serving()])] for role in ROLES}
    own = {"control.coordinator": [{**COORDINATOR, "versions": OWN}], "control.archive": [PROJECTOR]}
    return {**replies(), **of_roles, **own}


def serving(**more: Any) -> dict[str, Any]:
    return engine("http://e1:8000", **{"version": "0.33.0", "structured": "json_schema", "prioritises": True, **more})


@pytest.fixture
async def gateway() -> AsyncGenerator[Served]:
    journal = InMemoryJournal(replies=sound())
    async with served(journal=journal, webhooks=True, lists=True) as running:
        figures(running)
        yield running


def figures(gateway: Served, server_version: str = "2.15.1", apart_s: float = 0.0, *stored: int) -> None:
    async def shown() -> LogFigures:
        at = gateway.clock.now() + timedelta(seconds=apart_s)
        streams = tuple(
            StreamFigures(
                name=f"S{number}", messages=1, bytes=size, first_sequence=1, last_sequence=1, first_at=at, last_at=at
            )
            for number, size in enumerate(stored)
        )
        return LogFigures(server_version=server_version, server_at=at, streams=streams, consumers=())

    gateway.journal.figures = shown  # pyright: ignore[reportAttributeAccessIssue]


def differing(gateway: Served, found: Exception | list[str]) -> None:
    async def differences() -> list[str]:
        if isinstance(found, Exception):
            raise found
        return found

    gateway.journal.differences = differences  # pyright: ignore[reportAttributeAccessIssue]


def answers(gateway: Served, subject: str, *found: dict[str, Any]) -> None:
    gateway.journal.replies[f"control.{subject}"] = list(found)


def of_dev(gateway: Served, **state: Any) -> None:
    answers(gateway, "role.DEV", agent("DEV", versions=OWN, engines=[serving(**state)]))


def declare(gateway: Served, **settings: Any) -> None:
    surveyor = gateway.gateway["surveyor"]
    surveyor.settings = surveyor.settings.model_copy(update=settings)


def stored(gateway: Served, *sizes: int) -> None:
    declare(gateway, nats_store_max=100 << 20)
    figures(gateway, "2.15.1", 0.0, *sizes)


def few(gateway: Served) -> None:
    roles = gateway.gateway["roles"]
    bounds = roles["DEV"].replicas.model_copy(update={"min": 2, "max": 2})
    gateway.gateway["surveyor"].roles = {**roles, "DEV": roles["DEV"].model_copy(update={"replicas": bounds})}


def full(gateway: Served) -> None:
    backlog, now = gateway.gateway["catalog"].backlog, gateway.clock.now()
    for number in range(gateway.gateway["settings"].queue_depth_max):
        backlog.hold(("default", f"d{number}"), {"DEV"}, now, begun_at=now)


def clusters(gateway: Served, *declared: str) -> None:
    """Declares labels, of which the coordinator takes the first."""
    declare(gateway, clusters=declared)
    answers(gateway, "coordinator", {**COORDINATOR, "versions": OWN, "clusters": declared[:1]})


OUT_OF_MEMORY = troubled("memory", "it answered 503: CUDA out of memory")
# What breaks the installation, the code of its first finding, and a part of what that says.
BROKEN: dict[str, tuple[Callable[[Served], object], str, str]] = {
    "no log": (lambda g: differing(g, JournalUnavailable("away")), "journal_unavailable", "away"),
    "a stream is missing": (lambda g: differing(g, ["KEYS is missing"]), "streams_differ", "KEYS is missing"),
    "a stream differs": (lambda g: differing(g, StreamsDiffer("X.max_age: …")), "streams_differ", "X.max_age"),
    "the log is being read": (lambda g: setattr(g.gateway["catalog"], "caught_up", False), "catalog_unread", "read"),
    "the gateway stops": (lambda g: g.gateway["feed"].drain(), "draining", "stopping"),
    "no coordinator": (lambda g: answers(g, "coordinator"), "coordinator_missing", "No coordinator answered"),
    "one coordinator of two": (
        lambda g: answers(g, "coordinator", {**COORDINATOR, "versions": OWN, "wanted": 2}),
        "coordinators_few",
        "1 of 2 answered",
    ),
    "a role without replicas": (lambda g: answers(g, "role.DEV"), "role_missing", "role DEV: no replica answers"),
    "a role with few replicas": (few, "replicas_few", "role DEV: 1 of 2 replicas answer"),
    "no projector": (lambda g: answers(g, "archive"), "archive_missing", "No projector answered"),
    "a projector that waits": (
        lambda g: answers(g, "archive", {**PROJECTOR, "failure": "the disk is full"}),
        "archive_waits",
        "the disk is full",
    ),
    "an archive far behind": (
        lambda g: answers(g, "archive", {**PROJECTOR, "pending": 20_000}),
        "archive_behind",
        "20000",
    ),
    "an engine that is away": (
        lambda g: of_dev(g, healthy=False, trouble=UNREACHABLE),
        "engine_unreachable",
        "Engine http://e1:8000 of DEV cannot be connected to",
    ),
    "an engine that refuses its key": (lambda g: of_dev(g, trouble=REJECTED), "engine_key_refused", "its key"),
    "a list of models of no use": (
        lambda g: of_dev(g, trouble=troubled("list", "it is no list")),
        "engine_list_unusable",
        "no list",
    ),
    "an engine out of memory": (lambda g: of_dev(g, trouble=OUT_OF_MEMORY), "engine_fails", "CUDA out of memory"),
    "an engine that hangs": (lambda g: of_dev(g, trouble=troubled("silent")), "engine_silent", "does not answer"),
    "an engine that tells to wait": (
        lambda g: of_dev(g, trouble=troubled("throttled", "it answered 429")),
        "engine_throttles",
        "429",
    ),
    "a model that is not served": (lambda g: of_dev(g, unlisted="m-9"), "model_unlisted", "the model m-9"),
    "a short context": (lambda g: of_dev(g, context_tokens=2_048), "context_short", "2048 tokens in all"),
    "no JSON Schema": (lambda g: of_dev(g, structured="prompt"), "schema_lacking", "takes no JSON Schema"),
    "no prefix cache": (lambda g: of_dev(g, prompt_tokens=30_000), "prefix_cache_idle", "none of 30000"),
    "no priorities": (lambda g: of_dev(g, prioritises=False), "priority_off", "refuses priorities"),
    "a simulator": (lambda g: of_dev(g, models=["simulated-8b"]), "simulated", "simulated-8b"),
    "no sender of webhooks": (lambda g: answers(g, "webhooks"), "webhooks_missing", "No webhook sender"),
    "a store near its bound": (lambda g: stored(g, 60 << 20, 20 << 20), "store_filling", "80 MiB of the 100"),
    "a label that no cluster takes": (
        lambda g: clusters(g, "eu", "us"),
        "cluster_missing",
        "No coordinator takes the label us",
    ),
    "a stranger's reply": (lambda g: answers(g, "role.DEV", {"role": "DEV"}), "reply_invalid", "role DEV"),
    "replicas of another version": (
        lambda g: answers(g, "role.DEV", agent("DEV", versions={**OWN, "product": "9.9.9"}, engines=[serving()])),
        "versions_differ",
        "9.9.9",
    ),
    "an archive of another version": (
        lambda g: answers(g, "archive", {**PROJECTOR, "versions": {**OWN, "product": "9.9.9", "ray": None}}),
        "versions_differ",
        "9.9.9",
    ),
    "nodes with two versions of Ray": (
        lambda g: answers(g, "role.DEV", agent("DEV", versions={**OWN, "ray": "2.40.0"}, engines=[serving()])),
        "versions_differ",
        "Ray 2.40.0 and 2.60.0",
    ),
    "an old nats-server": (lambda g: figures(g, server_version="2.12.0"), "server_old", "2.12.0"),
    "an old vLLM": (lambda g: of_dev(g, version="0.19.1"), "server_old", "0.19.1"),
    "a clock ahead": (lambda g: figures(g, apart_s=-60), "clock_differs", "60 s ahead of"),
    "a full queue": (full, "queue_full", "are unfinished"),
    "records that do not verify": (lambda g: setattr(g.journal, "refused", 3), "records_refused", "3 records"),
}


async def findings(gateway: Served) -> list[Finding]:
    gateway.gateway["surveyor"].forget()
    response = await gateway.client.get("/status")
    assert (response.status_code, response.headers["cache-control"]) == (200, "no-store"), response.text
    return list(Installation.model_validate_json(response.content).findings)


async def test_a_sound_installation_has_no_finding(gateway: Served) -> None:
    assert await findings(gateway) == []


@pytest.mark.parametrize("case", BROKEN)
async def test_a_broken_installation_is_named_by_its_first_finding(gateway: Served, case: str) -> None:
    broken, code, detail = BROKEN[case]
    broken(gateway)
    first = (await findings(gateway))[0]
    assert (first.code, detail in first.detail) == (code, True), first
    assert first.why == KINDS[code].why and first.remedy.endswith((".", "…"))


async def test_an_engine_is_a_warning_while_another_takes_the_calls(gateway: Served) -> None:
    away = engine("http://e2:8000", version="0.33.0", healthy=False, trouble=UNREACHABLE)
    answers(gateway, "role.DEV", agent("DEV", versions=OWN, engines=[serving(), away]))
    assert [(each.code, each.severity) for each in await findings(gateway)] == [("engine_unreachable", "warning")]


async def test_readiness_and_the_doctor_name_a_fault_alike(gateway: Served) -> None:
    answers(gateway, "coordinator")
    of_dev(gateway, healthy=False, trouble=UNREACHABLE)
    problems = (await gateway.client.get("/readyz")).json()["errors"]
    shown = await findings(gateway)
    assert [as_problem(shown[0]).model_dump()] == problems
    assert [each.code for each in shown] == ["coordinator_missing", "engine_unreachable"]


async def test_with_keys_the_doctor_asks_for_the_scope_admin_and_names_engines() -> None:
    journal = InMemoryJournal(replies=sound())
    async with served(journal=journal, key_pepper=SecretStr("p" * 32)) as gateway:
        assert (await gateway.client.get("/status")).status_code == 401


def test_causes_stand_before_effects_and_errors_before_warnings() -> None:
    mixed = [finding(code, "d", "r") for code in reversed(list(KINDS))]
    shown = ordered([*mixed, *mixed])
    assert len(shown) == len(KINDS)
    severities = [each.severity for each in shown]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    codes = [each.code for each in shown if each.severity == "error"]
    assert codes.index("journal_unavailable") < codes.index("coordinator_missing") < codes.index("engine_refuses")


def test_a_problem_of_readiness_becomes_the_finding_that_it_was() -> None:
    found = finding("archive_missing", "d", "r")
    assert as_finding(as_problem(found)) == found
    assert as_finding(as_problem(found).model_copy(update={"code": "of a newer version"})) is None


def test_each_kind_says_why_in_a_sentence() -> None:
    assert [code for code, kind in KINDS.items() if not kind.why.endswith(".") or kind.part == ""] == []
