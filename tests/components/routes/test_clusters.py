"""Labels of clusters over HTTP: requests that name one, and what is told of one that no coordinator takes."""

from typing import Any

import pytest
from pydantic import ValidationError

from app.deliberation.facts import Accepted, decode
from app.settings import Settings
from tests.components.routes.served import ANSWERING, COORDINATOR, Served, served
from tests.fakes import InMemoryJournal

BODY = {"task": "Name a colour.", "strategy": "single"}


def answering(*clusters: tuple[str, ...]) -> InMemoryJournal:
    replies = [{**COORDINATOR, "replica": f"c{number}", "clusters": each} for number, each in enumerate(clusters)]
    return InMemoryJournal(replies={**ANSWERING, "control.coordinator": replies})


async def submit(gateway: Served, key: str | None = None, **body: Any) -> tuple[int, dict[str, Any]]:
    headers = {"Idempotency-Key": key} if key else {}
    response = await gateway.client.post("/deliberations", json={**BODY, **body}, headers=headers)
    return response.status_code, response.json()


async def test_a_request_with_a_label_is_accepted_for_its_clusters_also_while_none_takes_it() -> None:
    async with served(journal=answering(()), clusters=("eu",)) as gateway:
        status, found = await submit(gateway, cluster="eu")
        acceptance = gateway.journal.records[-1]
        fact = decode(acceptance.data)
        assert (status, acceptance.subject) == (202, f"deliberations.default.{found['id']}.accepted-eu")
        assert isinstance(fact, Accepted) and fact.specification.cluster == "eu"
        await gateway.play(found["id"])
        assert (await gateway.client.get(f"/deliberations/{found['id']}")).json()["status"] == "completed"


@pytest.mark.parametrize(("declared", "remedy"), [(("eu", "us"), "Give one of eu, us"), ((), "set CLUSTERS")])
async def test_an_undeclared_label_is_refused_by_its_field(declared: tuple[str, ...], remedy: str) -> None:
    async with served(clusters=declared) as gateway:
        status, problem = await submit(gateway, cluster="mars")
        (error,) = problem["errors"]
        assert (status, error["pointer"], error["code"]) == (422, "/cluster", "unknown_cluster")
        assert remedy in error["remedy"] and not gateway.journal.records


async def test_the_label_of_a_tenant_holds_for_its_requests_and_for_no_other() -> None:
    async with served(clusters=("eu", "us"), tenant_clusters={"default": "eu"}) as gateway:
        for body in ({}, {"cluster": "eu"}):
            assert (await submit(gateway, **body))[0] == 202
            assert gateway.journal.records[-1].tokens[-1] == "accepted-eu"
        status, problem = await submit(gateway, cluster="us")
        (error,) = problem["errors"]
        assert (status, error["pointer"], error["code"]) == (422, "/cluster", "foreign_cluster")
        plan = {"story_id": "s1", "plan_id": "p1", "approved_by": "po", "timestamp": "2026-01-01T00:00:00Z"}
        plans = [await gateway.client.post("/plans", json={**plan, "roles": ["DEV"]}) for _ in range(2)]
        assert ["idempotency-replayed" in each.headers for each in plans] == [False, True]
        assert [each.tokens[-1] for each in gateway.journal.records] == ["accepted-eu"] * 3


def test_a_tenant_is_bound_to_declared_labels_alone() -> None:
    bound = Settings(clusters=("eu",), tenant_clusters="acme=eu, globex=eu")  # pyright: ignore[reportArgumentType] -- as in the environment
    assert bound.tenant_clusters == {"acme": "eu", "globex": "eu"}
    with pytest.raises(ValidationError, match="CLUSTERS does not declare mars"):
        Settings(clusters=("eu",), tenant_clusters={"acme": "mars"})


async def test_a_key_repeats_a_request_with_a_label_and_refuses_another_label() -> None:
    async with served(clusters=("eu", "us")) as gateway:
        _, first = await submit(gateway, "k", cluster="eu")
        await gateway.play(first["id"])
        status, again = await submit(gateway, "k", cluster="eu")
        assert (status, again["id"]) == (202, first["id"])
        for body in ({"cluster": "us"}, {}):
            status, problem = await submit(gateway, "k", **body)
            assert (status, problem["code"]) == (409, "idempotency_conflict")


async def test_readiness_and_metrics_name_a_label_that_no_coordinator_takes() -> None:
    async with served(journal=answering(("eu",), ("eu", "asia")), clusters=("asia", "eu", "us")) as gateway:
        ready = (await gateway.client.get("/readyz")).json()
        (problem,) = ready["degraded"]
        assert (problem["code"], problem["detail"]) == ("cluster_missing", "No coordinator takes the label us")
        assert ready["status"] == "ready" and "clusters" not in ready["checks"]
        lines = (await gateway.client.get("/metrics")).text.splitlines()
        counts = [f'cluster_coordinators{{cluster="{name}"}} {n}.0' for name, n in (("asia", 1), ("eu", 2), ("us", 0))]
        assert set(counts) <= set(lines)
        shown = (await gateway.client.get("/status")).json()["coordinators"]
        assert [each["clusters"] for each in shown] == [["eu"], ["eu", "asia"]]
