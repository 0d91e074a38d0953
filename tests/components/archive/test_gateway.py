"""A gateway answers from the archive what has left the log, with the same bytes and the same event ids."""

import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from app.archive.database.connection import Database
from app.archive.database.migrate import migrate
from app.archive.database.store import Store, Written
from app.catalog.projection import state_of
from app.settings import ARCHIVE_RETENTION_S
from tests.components.routes.served import Served, served


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
    """Copy a deliberation as a projector does, then let its facts leave the log."""
    database = await Database.connect(database_url)
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
async def test_events_are_replayed_with_the_same_ids(gateway: Served, database_url: str, media: str) -> None:
    id = await ended(gateway)
    url, headers = (
        f"/deliberations/{id}/events?after=0&deltas=false&types=stage.opened,deliberation.completed",
        {"Accept": media},
    )
    before = await gateway.client.get(url, headers=headers)
    await archive(gateway, database_url, id)

    after = await gateway.client.get(url, headers=headers)

    assert after.status_code == 200
    assert ids_in(after.text, media) == ids_in(before.text, media) != []


def ids_in(text: str, media: str) -> list[str]:
    if media == "application/json":
        return [item["id"] for item in json.loads(text)["items"]]
    blocks = [block.splitlines() for block in text.split("\n\n")]
    return [block[0] for block in blocks if len(block) == 3 and block[0].startswith("id: ")]


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


async def test_what_neither_the_log_nor_the_archive_has_is_not_found(gateway: Served) -> None:
    response = await gateway.client.get("/deliberations/nothing-of-this-name")

    assert response.status_code == 404


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
