"""A gateway answers from the archive what has left the log, with the same bytes and the same event ids."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from app.archive.database.connection import Database
from app.archive.database.migrate import migrate
from app.archive.database.rows import Written
from app.archive.database.store import Archived, RowFilter, Store
from app.archive.transfer import export_archive, import_archive
from app.deliberation.announcements import announcement
from app.deliberation.facts import Completed, Deleted
from app.deliberation.fold import state_of
from app.log.stream_settings import DAY_S
from app.settings import ARCHIVE_RETENTION_S
from tests.components.routes.served import Served, served
from tests.fakes import InMemoryJournal


@pytest.fixture
async def database_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'archive.db'}"
    await migrate(url)
    return url


@pytest.fixture
async def gateway(database_url: str) -> AsyncIterator[Served]:
    async with served(database_url=database_url) as serving:
        yield serving


async def archive(serving: Served, database_url: str, deliberation_id: str) -> None:
    database = Database(database_url)
    records = await serving.journal.facts("default", deliberation_id)
    state = state_of(records)
    assert state is not None
    written = Written("default", deliberation_id, at=state.accepted.ts, state=state, records=records)
    await Store(database).write((await serving.journal.state()).epoch, [written])
    await database.close()
    leave_the_log(serving, deliberation_id)


def leave_the_log(serving: Served, deliberation_id: str) -> None:
    serving.journal.records[:] = [each for each in serving.journal.records if each.tokens[2] != deliberation_id]


async def ended(serving: Served, **headers: str) -> str:
    response = await serving.post({"task": "Name a colour."}, **headers)
    await serving.play(response.json()["id"])
    return response.json()["id"]


async def test_the_resource_has_the_same_bytes_and_validator(gateway: Served, database_url: str) -> None:
    id = await ended(gateway)
    before = await gateway.client.get(f"/deliberations/{id}")
    await archive(gateway, database_url, id)

    after = await gateway.client.get(f"/deliberations/{id}")
    known = await gateway.client.get(f"/deliberations/{id}", headers={"If-None-Match": before.headers["etag"]})

    assert after.status_code == 200 and after.content == before.content
    assert after.headers["etag"] == before.headers["etag"] and known.status_code == 304
    created, kept_until = (datetime.fromisoformat(after.json()[name]) for name in ("created_at", "retention_until"))
    assert kept_until - created == timedelta(seconds=ARCHIVE_RETENTION_S)


@pytest.mark.parametrize("media", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("query", ["types=stage.opened,deliberation.completed", "types=call.finished&text=answer"])
async def test_events_are_replayed_with_the_same_ids_and_answers(
    gateway: Served, database_url: str, media: str, query: str
) -> None:
    id = await ended(gateway)
    url = f"/deliberations/{id}/events?after=0&deltas=false&{query}"
    before = await gateway.client.get(url, headers={"Accept": media})
    await archive(gateway, database_url, id)

    after = await gateway.client.get(url, headers={"Accept": media})

    assert after.status_code == 200
    assert ids_in(after.text, media) == ids_in(before.text, media) != []
    if "text=answer" in query:
        assert '"text":"draft ' in before.text and '"text":"draft ' in after.text


def ids_in(text: str, media: str) -> list[str]:
    if media == "application/json":
        return [item["id"] for item in json.loads(text)["items"]]
    blocks = [block.splitlines() for block in text.split("\n\n")]
    return [block[0] for block in blocks if len(block) == 3 and block[0].startswith("id: ")]


async def test_a_page_ends_after_an_event_beyond_its_bytes(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.streaming.streams.PAGE_BYTES", 1)
    id = await ended(gateway)
    found, after, over = list[str](), "0", False
    while not over:
        url = f"/deliberations/{id}/events?after={after}&deltas=false"
        page = (await gateway.client.get(url, headers={"Accept": "application/json"})).json()
        assert len(page["items"]) == 1
        found += [item["id"] for item in page["items"]]
        after, over = page["next"], page["ended"]

    monkeypatch.undo()
    whole = await gateway.client.get(f"/deliberations/{id}/events?deltas=false", headers={"Accept": "application/json"})
    assert found == [item["id"] for item in whole.json()["items"]]


async def test_a_stream_resumes_behind_a_cursor_and_is_over_behind_the_last(gateway: Served, database_url: str) -> None:
    id = await ended(gateway)
    page = (await gateway.client.get(f"/deliberations/{id}/events", headers={"Accept": "application/json"})).json()
    await archive(gateway, database_url, id)
    ids = [item["id"] for item in page["items"]]

    resumed = await gateway.client.get(
        f"/deliberations/{id}/events", headers={"Accept": "text/event-stream", "Last-Event-ID": ids[2]}
    )
    over = await gateway.client.get(
        f"/deliberations/{id}/events", headers={"Accept": "text/event-stream", "Last-Event-ID": ids[-1]}
    )

    assert ids_in(resumed.text, "text/event-stream") == [f"id: {each}" for each in ids[3:]]
    assert over.status_code == 204


async def test_cancelling_an_archived_deliberation_answers_with_it(gateway: Served, database_url: str) -> None:
    id = await ended(gateway)
    await archive(gateway, database_url, id)

    response = await gateway.client.post(f"/deliberations/{id}/cancel")

    assert response.status_code == 200 and response.json()["status"] == "completed"


async def test_a_deletion_reaches_the_archive_at_once(gateway: Served, database_url: str) -> None:
    id = await ended(gateway)
    await archive(gateway, database_url, id)

    deleted = await gateway.client.delete(f"/deliberations/{id}")
    leave_the_log(gateway, id)
    again = [await gateway.client.request(method, f"/deliberations/{id}") for method in ("GET", "DELETE")]

    assert deleted.status_code == 204
    assert [response.status_code for response in again] == [410, 410]
    assert all("has been deleted" in response.json()["detail"] for response in again)


async def test_a_deletion_of_what_the_archive_alone_holds_erases_its_announcement(
    gateway: Served, database_url: str
) -> None:
    ids = [await ended(gateway) for _ in range(2)]
    for id in ids:
        end = Completed(deliberation_id=id, ts=gateway.clock.now())
        await gateway.journal.announce(announcement("default", end, None))
        await archive(gateway, database_url, id)
        leave_the_log(gateway, id)

    assert (await gateway.client.delete(f"/deliberations/{ids[0]}")).status_code == 204
    assert list(gateway.journal.announced) == [ids[1]]


@pytest.mark.parametrize("database", ["holds it still", "is away"])
async def test_a_tombstone_in_the_log_hides_what_the_archive_holds_still(tmp_path: Path, database: str) -> None:
    """A DELETE broke off after its tombstone, or the database was away."""
    url = f"sqlite:///{tmp_path / 'archive.db'}"
    if database == "holds it still":
        await migrate(url)
    async with served(database_url=url) as gateway:
        id = await ended(gateway)
        if database == "holds it still":
            await archive(gateway, url, id)
        await gateway.journal.append("default", Deleted(deliberation_id=id, ts=gateway.clock.now()))
        answers = [
            await gateway.client.get(f"/deliberations/{id}"),
            await gateway.client.get(f"/deliberations/{id}/events", headers={"Accept": "application/json"}),
            await gateway.client.get(f"/deliberations/{id}/events", headers={"Accept": "text/event-stream"}),
            await gateway.client.post(f"/deliberations/{id}/cancel"),
        ]
        following = await gateway.post({"task": "Go on.", "follows": [id]})

    assert [answer.status_code for answer in answers] == [410] * 4
    assert following.status_code == 422 and "has been deleted" in following.json()["errors"][0]["detail"]


async def test_a_wait_for_a_forgotten_deliberation_ends_at_once() -> None:
    async with served(lists=True) as serving:
        id = await ended(serving, idempotency_key='"k3"')
        serving.gateway["catalog"]._past.clear()  # pyright: ignore[reportPrivateUsage]
        async with asyncio.timeout(10):
            repeated = await serving.post({"task": "Name a colour."}, idempotency_key='"k3"', prefer="wait=30")

    assert repeated.status_code == 200 and repeated.json()["id"] == id


async def test_a_list_says_how_far_the_archive_is_behind_and_waits_for_an_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.lifecycle.lists.AFTER_S", 0.2)
    async with served(lists=True, lagging=True) as serving:
        new = (await serving.client.get("/deliberations")).json()
        accepted = (await serving.post({"task": "Name a colour."})).json()
        missing = await serving.client.get("/deliberations", params={"after": accepted["last_event_id"]})
        monkeypatch.setattr("app.lifecycle.lists.AFTER_S", 60.0)
        waiting = asyncio.create_task(
            serving.client.get("/deliberations", params={"after": accepted["last_event_id"], "limit": 1})
        )
        await serving.copied()
        found = await waiting
        present = await serving.client.get("/deliberations", params={"after": "now"})
        serving.clock.advance(7)
        behind = [(await serving.client.get(path)).json()["behind_s"] for path in ("/deliberations", "/stats")]
        foreign = await serving.client.get("/deliberations", params={"after": "other-1"})
        malformed = await serving.client.get("/deliberations", params={"after": "x"})

    assert new == {"items": [], "next_cursor": None, "behind_s": None}
    assert (missing.status_code, missing.json()["code"]) == (503, "archive_unavailable")
    assert missing.headers["retry-after"] == "2" and accepted["last_event_id"] in missing.json()["detail"]
    assert [item["id"] for item in found.json()["items"]] == [accepted["id"]] and found.json()["behind_s"] == 0
    assert present.json() == found.json() and behind == [7, 7]
    for refused in (foreign, malformed):
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_cursor"), refused.text
        assert refused.json()["errors"][0]["pointer"] == "after"


async def test_a_list_shows_what_each_cost_who_won_and_whether_something_is_lacking(
    gateway: Served, database_url: str
) -> None:
    id = await ended(gateway)
    resource = (await gateway.client.get(f"/deliberations/{id}")).json()
    await gateway.post({"task": "Name a number."})
    await gateway.copied()

    running, done = (await gateway.client.get("/deliberations")).json()["items"]

    assert done["usage"] == {name: resource["usage"][name] for name in done["usage"]} and done["usage"]["calls"] > 0
    assert done["winner"] == resource["verdict"]["winner"] and done["winner"] is not None
    assert done["degraded"] is (resource["degraded"] is not None) and done["progress"] is None
    assert [running[name] for name in ("usage", "winner", "degraded", "progress")] == [None] * 4


async def test_lists_need_no_log(gateway: Served, database_url: str) -> None:
    id = await ended(gateway)
    await archive(gateway, database_url, id)
    gateway.journal.available = False
    listed = await gateway.client.get("/deliberations")
    counted = await gateway.client.get("/stats?from=2025-12-01T00:00:00Z")

    assert [item["id"] for item in listed.json()["items"]] == [id] and counted.json()["completed"] == 1


async def test_a_key_of_an_archived_deliberation_starts_nothing_anew(gateway: Served, database_url: str) -> None:
    id = await ended(gateway, idempotency_key='"k1"')
    await archive(gateway, database_url, id)
    async with served(journal=gateway.journal, database_url=database_url) as restarted:
        response = await restarted.post({"task": "Name a colour."}, idempotency_key='"k1"')

    assert response.status_code == 410 and "use a new key" in response.json()["detail"]


async def test_without_its_database_only_what_left_the_log_is_missing(tmp_path: Path) -> None:
    async with served(database_url=f"sqlite:///{tmp_path}/missing/archive.db") as gateway:
        id = await ended(gateway)
        kept = await gateway.client.get(f"/deliberations/{id}")
        accepted = await gateway.post({"task": "Name a colour."}, idempotency_key='"k2"')
        leave_the_log(gateway, id)
        left = await gateway.client.get(f"/deliberations/{id}")

    assert kept.status_code == 200 and accepted.status_code == 202
    assert left.status_code == 503 and left.json()["type"].endswith("archive_unavailable")
    assert left.headers["retry-after"] == "2"


async def test_a_value_that_the_database_refuses_is_answered_as_a_defect(
    gateway: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Store.read

    async def of_a_surrogate(store: Store, tenant: str, _: str) -> Archived | None:
        return await read(store, tenant, "\ud800")

    monkeypatch.setattr(Store, "read", of_a_surrogate)
    answered = await gateway.client.get("/deliberations/nothing-of-this-name")

    assert answered.status_code == 500 and answered.headers["content-type"] == "application/problem+json"
    assert answered.json()["code"] == "internal_error" and "surrogate" not in answered.text


async def test_each_tenant_is_told_its_own_retention(database_url: str) -> None:
    async with served(database_url=database_url, archive_retentions_s={"default": 7 * DAY_S}) as gateway:
        id = await ended(gateway)
        await archive(gateway, database_url, id)
        body = (await gateway.client.get(f"/deliberations/{id}")).json()
        stream = await gateway.client.get(
            f"/deliberations/{id}/events", headers={"Accept": "text/event-stream", "Last-Event-ID": "0"}
        )

    kept_until = datetime.fromisoformat(body["created_at"]) + timedelta(days=7)
    opened = json.loads(stream.text.split("data: ")[1].splitlines()[0])
    assert datetime.fromisoformat(body["retention_until"]) == kept_until
    assert datetime.fromisoformat(opened["retention_until"]) == kept_until


async def test_a_deliberation_is_gone_after_the_retention_of_its_tenant(database_url: str) -> None:
    """A row is gone for clients at once, although the archive's process removes it up to a minute later."""
    async with served(database_url=database_url, archive_retentions_s={"default": 7 * DAY_S}) as gateway:
        id = await ended(gateway)
        await archive(gateway, database_url, id)
        statuses = list[list[int]]()
        for seconds in (2 * DAY_S, 5 * DAY_S - 1, 2):
            gateway.clock.advance(seconds)
            paths = (f"/deliberations/{id}", f"/deliberations/{id}/events?after=0")
            statuses.append([(await gateway.client.get(path)).status_code for path in paths])

    assert statuses == [[200, 200], [200, 200], [410, 410]]


async def test_deliveries_are_gone_with_the_facts_of_the_log(gateway: Served, database_url: str) -> None:
    id = await ended(gateway)
    await archive(gateway, database_url, id)

    response = await gateway.client.get(f"/deliberations/{id}/deliveries")

    assert response.status_code == 410 and "have left the log" in response.json()["detail"]


async def test_a_gateway_over_an_import_answers_as_the_one_over_the_export(
    gateway: Served, database_url: str, tmp_path: Path
) -> None:
    ids = [await ended(gateway, idempotency_key=f'"k{number}"') for number in range(4)]
    await gateway.client.delete(f"/deliberations/{ids[3]}")
    for id in ids[:3]:
        await archive(gateway, database_url, id)
    leave_the_log(gateway, ids[3])
    imported_url = f"sqlite:///{tmp_path / 'imported.db'}"
    await migrate(imported_url)
    source, target = Database(database_url), Database(imported_url)
    await import_archive(Store(target), export_archive(Store(source), RowFilter(), Counter()), gateway.clock.now())
    await source.close()
    await target.close()

    before = [await answers(gateway, id) for id in ids]
    journal = InMemoryJournal(epoch="another", replies=gateway.journal.replies)
    async with served(journal=journal, database_url=imported_url) as other:
        after = [await answers(other, id) for id in ids]
        again = await other.post({"task": "Name a colour."}, idempotency_key='"k1"')

    assert after == before and [statuses[0] for statuses, *_ in before] == [200, 200, 200, 410]
    assert again.status_code == 410


async def answers(serving: Served, id: str) -> tuple[list[int], bytes, str | None, list[str]]:
    found = await serving.client.get(f"/deliberations/{id}")
    stream = await serving.client.get(f"/deliberations/{id}/events?after=0", headers={"Accept": "text/event-stream"})
    statuses = [found.status_code, stream.status_code]
    if found.status_code == 410:
        return statuses, b"", None, []
    return statuses, found.content, found.headers["etag"], ids_in(stream.text, "text/event-stream")


async def test_pages_of_a_search_follow_each_other(gateway: Served, database_url: str) -> None:
    ids = [await ended(gateway) for _ in range(3)]
    for id in ids:
        await archive(gateway, database_url, id)
    first = await gateway.client.get("/deliberations", params={"q": "colour", "limit": 2})
    second = await gateway.client.get(first.headers["link"].partition(">")[0].removeprefix("<"))
    foreign = [
        await gateway.client.get("/deliberations", params=params)
        for params in ({"q": "colour", "cursor": "MTp4OjE"}, {"cursor": "MTp4OjE"})
    ]

    items = [*first.json()["items"], *second.json()["items"]]
    assert [item["id"] for item in items] == ids[::-1] and second.json()["next_cursor"] is None
    assert [response.status_code for response in foreign] == [400, 400]


@pytest.mark.parametrize(
    ("q", "remedy"),
    [
        ("", "Give at least one word"),
        ("-cat", "Give at least one word"),
        ("?!", "Give at least one word"),
        ("ab*", "Give 3 letters"),
        ("a OR -b", "leave out at the end"),
        ("red " + " ".join(f"-wa{letter}*" for letter in "abcde"), "Write some of them out"),
        ("waa* OR wab* OR wac* OR wad* OR wae*", "Write some of them out"),
        ("a" * 257, "Give at most 256 characters"),
    ],
)
async def test_a_search_without_words_names_the_remedy(gateway: Served, q: str, remedy: str) -> None:
    response = await gateway.client.get("/deliberations", params={"q": q})

    (fault,) = response.json()["errors"]
    assert response.status_code == 422 and fault["pointer"] == "q" and remedy in fault["remedy"]


async def test_a_search_without_a_database_answers_503_with_the_remedy(tmp_path: Path) -> None:
    async with served(database_url=f"sqlite:///{tmp_path}/missing/archive.db") as away:
        unreachable = await away.client.get("/deliberations", params={"q": "colour"})
    async with served() as without:
        unset = await without.client.get("/deliberations", params={"q": "colour"})

    assert [response.json()["code"] for response in (unreachable, unset)] == ["archive_unavailable"] * 2
    assert "DATABASE_URL" in unreachable.json()["detail"] and "DATABASE_URL" in unset.json()["detail"]
