"""Deletion removes everything but a tombstone, on every gateway at once, until retention."""

import random
from typing import Any

import pytest

from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Completed, Deleted
from app.lifecycle.deliberations import sweep_once
from app.lifecycle.specify import deliberation_id
from tests.components.access.keyed import PEPPER, accepted, bearer, make_key, play
from tests.components.catalog.catalogs import catalog, entries_of
from tests.components.routes.listening import following, listening, types, whole
from tests.components.routes.served import Served, served
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.story import NOW, Story

GATEWAY = {"lists": True}
BODY = {"task": "Name a colour."}


async def ended(gateway: Served, **body: object) -> str:
    id = await gateway.accepted(**body)
    await gateway.play(id)
    return id


async def code_of(gateway: Served, path: str, method: str = "GET") -> tuple[int, str]:
    response = await gateway.client.request(method, path)
    return response.status_code, response.json()["code"]


def subjects(journal: InMemoryJournal) -> list[str]:
    return [record.subject for record in journal.records]


async def test_deleting_removes_every_fact_and_leaves_a_tombstone(gateway: Served) -> None:
    kept, gone = await ended(gateway), await ended(gateway)
    facts = len(await gateway.journal.facts("default", kept))
    response = await gateway.client.delete(f"/deliberations/{gone}")
    assert (response.status_code, response.content) == (204, b"")
    assert [subject for subject in subjects(gateway.journal) if gone in subject] == [
        f"deliberations.default.{gone}.deleted"
    ]
    assert len(await gateway.journal.facts("default", kept)) == facts
    for path in (f"/deliberations/{gone}", f"/deliberations/{gone}/events"):
        assert await code_of(gateway, path) == (410, "gone")
    assert await code_of(gateway, f"/deliberations/{gone}/cancel", "POST") == (410, "gone")
    page = await gateway.client.get(f"/deliberations/{gone}/events", headers={"Accept": "application/json"})
    assert page.status_code == 410 and "deleted" in page.json()["detail"]


async def test_delete_is_idempotent_and_unknown_ids_are_not_found(gateway: Served) -> None:
    id = await ended(gateway)
    for _ in range(3):
        assert (await gateway.client.delete(f"/deliberations/{id}")).status_code == 204
    assert len([each for each in subjects(gateway.journal) if id in each]) == 1
    assert await code_of(gateway, "/deliberations/never", "DELETE") == (404, "not_found")


@pytest.mark.parametrize("shown", ["", "?view=summary"])
async def test_a_change_under_an_outdated_etag_is_refused(gateway: Served, shown: str) -> None:
    path = f"/deliberations/{await gateway.accepted()}"
    outdated = (await gateway.client.get(f"{path}{shown}")).headers["etag"]
    await gateway.play(path.rpartition("/")[2])
    etag = (await gateway.client.get(f"{path}{shown}")).headers["etag"]
    for method, place in (("DELETE", path), ("POST", f"{path}/cancel")):
        for named in (outdated, f"W/{etag}", '"other"', ""):
            response = await gateway.client.request(method, place, headers={"If-Match": named})
            assert (response.status_code, response.json()["code"]) == (412, "precondition_failed")
            assert response.headers["etag"] in response.json()["errors"][0]["remedy"]
    for named in (f'"other", {etag}', "*"):
        assert (await gateway.client.post(f"{path}/cancel", headers={"If-Match": named})).status_code == 200
    assert (await gateway.client.delete(path, headers={"If-Match": etag})).status_code == 204


@pytest.mark.parametrize("stage", [None, 1])
async def test_an_unfinished_deliberation_cannot_be_deleted(gateway: Served, stage: int | None) -> None:
    id = await gateway.accepted()
    if stage is not None:
        await gateway.play(id, until_stage=stage)
    before = list(gateway.journal.records)
    assert await code_of(gateway, f"/deliberations/{id}", "DELETE") == (409, "still_live")
    await gateway.client.post(f"/deliberations/{id}/cancel")
    assert await code_of(gateway, f"/deliberations/{id}", "DELETE") == (409, "still_live")
    assert gateway.journal.records[: len(before)] == before
    assert (await gateway.client.get(f"/deliberations/{id}")).json()["links"]["delete"] is None


async def test_the_delete_link_appears_after_the_end(gateway: Served) -> None:
    id = await ended(gateway)
    body = (await gateway.client.get(f"/deliberations/{id}")).json()
    (item,) = (await gateway.client.get("/deliberations")).json()["items"]
    assert body["links"] == item["links"] and body["links"]["delete"] == f"/deliberations/{id}"
    assert (await gateway.client.delete(body["links"]["delete"])).status_code == 204


async def test_the_idempotency_key_of_a_deleted_deliberation_starts_nothing(gateway: Served) -> None:
    """The log refuses the key, so that another gateway and one that has just started answer the same."""
    id = (await gateway.post(BODY, Idempotency_Key="k")).json()["id"]
    await gateway.play(id)
    await gateway.client.delete(f"/deliberations/{id}")
    async with served(journal=gateway.journal, lists=True) as another:
        for each in (gateway, another):
            response = await each.post(BODY, Idempotency_Key="k")
            assert (response.status_code, response.json()["code"]) == (410, "gone")
            assert "use a new key" in response.json()["detail"]
            assert (await each.post(BODY, Idempotency_Key="l")).status_code == 202
    assert [each for each in subjects(gateway.journal) if id in each] == [f"deliberations.default.{id}.deleted"]


async def test_other_and_later_gateways_omit_a_deleted_deliberation(gateway: Served) -> None:
    id, kept = await ended(gateway), await ended(gateway)
    async with served(journal=gateway.journal, lists=True) as another:
        assert len((await another.client.get("/deliberations")).json()["items"]) == 2
        await gateway.client.delete(f"/deliberations/{id}")
        assert [item["id"] for item in (await another.client.get("/deliberations")).json()["items"]] == [kept]
    async with served(journal=gateway.journal, lists=True) as later:
        assert [item["id"] for item in (await later.client.get("/deliberations")).json()["items"]] == [kept]
        assert await code_of(later, f"/deliberations/{id}") == (410, "gone")
        assert (await later.client.delete(f"/deliberations/{id}")).status_code == 204


async def test_a_foreign_tenant_can_neither_delete_nor_see_a_deletion() -> None:
    journal = InMemoryJournal()
    own, foreign = await make_key(journal, "acme"), await make_key(journal, "other")
    async with served(journal=journal, key_pepper=PEPPER) as gateway:
        await until(lambda: bool(gateway.gateway["access"].keyring and gateway.gateway["access"].keyring.caught_up))
        id = await accepted(gateway, own)
        await play(gateway, "acme", id)
        for _ in range(2):
            refused = await gateway.client.delete(f"/deliberations/{id}", headers=bearer(foreign))
            unknown = await gateway.client.delete("/deliberations/never", headers=bearer(foreign))
            assert refused.status_code == unknown.status_code == 404
            assert (await gateway.client.get(f"/deliberations/{id}", headers=bearer(foreign))).status_code == 404
            assert (await gateway.client.delete(f"/deliberations/{id}", headers=bearer(own))).status_code == 204


@pytest.mark.parametrize("seed", range(10))
async def test_a_tombstone_applies_in_any_order_of_facts(seed: int) -> None:
    journal = InMemoryJournal()
    for story in (Story("a"), Story("b")):
        for fact in (story.accepted(), story.opened(), Completed(deliberation_id=story.id, ts=NOW)):
            await journal.append("default", fact)
    await journal.append("default", Deleted(deliberation_id="a", ts=NOW))
    heard = journal.records + random.Random(seed).choices(journal.records, k=5)
    random.Random(seed).shuffle(heard)
    kept = catalog()
    for record in heard:
        kept.apply(record)
    assert entries_of(kept) == [] and kept.find("default", "a") is None and kept.find("default", "b") is not None


async def test_an_interrupted_deletion_is_hidden_and_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = InMemoryJournal()
    async with served(journal=journal, lists=True) as gateway:
        id, kept = await ended(gateway), await ended(gateway)
        tombstone = Deleted(deliberation_id=id, ts=NOW)
        await gateway.append(tombstone)  # pyright: ignore[reportArgumentType]
        assert len([each for each in subjects(journal) if id in each]) > 2
        assert await code_of(gateway, f"/deliberations/{id}") == (410, "gone")
        assert [item["id"] for item in (await gateway.client.get("/deliberations")).json()["items"]] == [kept]
    monkeypatch.setattr("app.lifecycle.deliberations.SWEEP_S", 0.01)
    async with served(journal=journal, lists=True) as later:
        await until(
            lambda: [each for each in subjects(journal) if id in each] == [f"deliberations.default.{id}.deleted"]
        )
        assert (await later.client.get(f"/deliberations/{kept}")).status_code == 200


async def test_a_sweep_checks_each_tombstone_once_the_log_can_be_read() -> None:
    journal = InMemoryJournal()
    await journal.append("default", Story("a").opened())
    tombstone = (await journal.append("default", Deleted(deliberation_id="a", ts=NOW))).record
    journal.available = False
    with pytest.raises(JournalUnavailable):
        await sweep_once(journal, 0)
    journal.available = True
    assert await sweep_once(journal, 0) == tombstone.sequence
    assert subjects(journal) == ["deliberations.default.a.deleted"]
    await journal.append("default", Story("a").opened())
    assert await sweep_once(journal, tombstone.sequence) == tombstone.sequence
    assert len(journal.records) == 2, "it is checked no second time"


async def test_a_sweep_passes_over_tombstones_that_cannot_be_read() -> None:
    journal = InMemoryJournal()
    tombstone = (await journal.append("default", Deleted(deliberation_id="a", ts=NOW))).record
    await journal.write("deliberations.ACME.x.deleted", tombstone.data)
    last = (await journal.write("deliberations.default.b.deleted", b"{}")).record
    assert await sweep_once(journal, 0) == last.sequence


async def test_a_retry_completes_a_deletion_that_failed_without_a_log(gateway: Served) -> None:
    id = await ended(gateway)
    purge = gateway.journal.purge

    async def away(tenant: str, deliberation_id: str) -> None:
        raise JournalUnavailable("away")

    gateway.journal.purge = away  # pyright: ignore[reportAttributeAccessIssue]
    assert await code_of(gateway, f"/deliberations/{id}", "DELETE") == (503, "journal_unavailable")
    assert await code_of(gateway, f"/deliberations/{id}") == (410, "gone")
    gateway.journal.purge = purge  # pyright: ignore[reportAttributeAccessIssue]
    assert (await gateway.client.delete(f"/deliberations/{id}")).status_code == 204
    assert len([each for each in subjects(gateway.journal) if id in each]) == 1


async def test_a_deletion_ends_the_stream_of_its_viewer() -> None:
    story = Story("a")
    async with listening() as gateway:
        await gateway.write(*whole(story)[:-1])
        async with gateway.watching("a", after="0") as frames:
            await following(frames, 11)
            await gateway.journal.append("default", Deleted(deliberation_id="a", ts=NOW))
            assert types([frame async for frame in frames]) == ["deliberation.deleted"]
        assert (await gateway.page("a")).status_code == 410


@pytest.mark.parametrize(
    ("age_s", "expected"), [(0, (404, "not_found")), (3_599, (404, "not_found")), (3_601, (410, "gone"))]
)
async def test_an_id_with_an_issue_time_is_gone_after_retention(age_s: int, expected: tuple[int, str]) -> None:
    """Unknown and removed ids cannot be distinguished then, because nothing of either remains."""
    async with served(retention_s=3_600) as gateway:
        id = deliberation_id("default", None, gateway.clock.now())
        keyed = deliberation_id("default", "k", gateway.clock.now())
        gateway.clock.advance(age_s)
        assert await code_of(gateway, f"/deliberations/{id}") == expected
        assert await code_of(gateway, f"/deliberations/{id}/events") == expected
        assert await code_of(gateway, f"/deliberations/{id}", "DELETE") == expected
        assert await code_of(gateway, f"/deliberations/{keyed}") == (404, "not_found")


async def test_a_deliberation_past_its_retention_is_gone(gateway: Served) -> None:
    id = await ended(gateway)
    gateway.clock.advance(gateway.gateway["settings"].kept_s("default") + 1)
    gateway.journal.records = [record for record in gateway.journal.records if record.subject.endswith(".end")]
    assert await code_of(gateway, f"/deliberations/{id}") == (410, "gone")
    gateway.journal.records.clear()
    assert await code_of(gateway, f"/deliberations/{id}") == (410, "gone")


async def test_a_key_is_refused_while_old_facts_of_its_id_remain(gateway: Served) -> None:
    id = (await gateway.post(BODY, Idempotency_Key="k")).json()["id"]
    await gateway.play(id)
    left: Any = [record for record in gateway.journal.records if record.tokens[-1] != "accepted"]
    gateway.journal.records = list(left)
    response = await gateway.post(BODY, Idempotency_Key="k")
    assert (response.status_code, response.json()["code"]) == (410, "gone")
    gateway.journal.records = []
    assert (await gateway.post(BODY, Idempotency_Key="k")).status_code == 202
