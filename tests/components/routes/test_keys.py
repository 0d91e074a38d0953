import io
import json
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from typing import Any

import httpx
import pytest

from app.access.key_writer import KeyWriter
from app.access.keys import KeyBook, Pepper, Scope, created, key_id_of
from tests.components.access.keyed import PEPPER, bearer, make_key, revoke
from tests.components.routes.served import Served, served
from tests.story import NOW


@pytest.fixture
async def gateway() -> AsyncGenerator[Served]:
    async with served(key_pepper=PEPPER) as running:
        running.gateway["key_writer"] = KeyWriter(running.journal, Pepper(PEPPER))
        yield running


async def made(gateway: Served, key: str, **body: Any) -> dict[str, Any]:
    response = await gateway.client.post("/keys", json={"name": "ci", **body}, headers=bearer(key))
    assert (response.status_code, response.headers["cache-control"]) == (201, "no-store"), response.text
    return response.json()


async def listed(gateway: Served, key: str) -> dict[str, dict[str, Any]]:
    response = await gateway.client.get("/keys", headers=bearer(key))
    assert (response.status_code, response.headers["cache-control"]) == (200, "no-store"), response.text
    assert response.json()["writable"]
    return {each["key_id"]: each for each in response.json()["items"]}


async def status(gateway: Served, key: str, path: str = "/login") -> int:
    return (await gateway.client.get(path, headers=bearer(key))).status_code


def refused(response: httpx.Response) -> tuple[int, str]:
    problem = response.json()
    assert all(error["remedy"] for error in problem["errors"])
    return response.status_code, problem["code"]


async def test_a_made_key_works_at_once_and_its_secret_is_shown_once(gateway: Served, logged: io.StringIO) -> None:
    admin = await make_key(gateway.journal)
    new = await made(gateway, admin, scopes=["read"])
    assert (new["tenant"], new["scopes"], new["maker"], new["status"]) == ("acme", ["read"], key_id_of(admin), "good")
    assert new["key_id"] == key_id_of(new["key"])
    assert (await status(gateway, new["key"], "/roles"), await status(gateway, new["key"], "/keys")) == (200, 403)
    found = await gateway.client.get("/keys", headers=bearer(admin))
    secret = new["key"].rpartition("_")[2]
    assert list(await listed(gateway, admin)) == [key_id_of(admin), new["key_id"]] and secret not in found.text
    text = logged.getvalue()
    lines = [json.loads(line) for line in text.splitlines()]
    (line,) = [line for line in lines if line["event"] == "key_created"]
    assert (line["key_id"], line["by"]) == (new["key_id"], key_id_of(admin)) and secret not in text
    assert all(secret.encode() not in record.data for record in gateway.journal.records)


@pytest.mark.parametrize(
    ("own", "asked"), [(("admin",), ["read"]), (("admin", "read"), ["read", "submit"]), (("admin",), ["submit"])]
)
async def test_a_key_grants_nothing_that_its_maker_lacks(
    gateway: Served, own: Sequence[Scope], asked: list[str]
) -> None:
    admin = await make_key(gateway.journal, scopes=own)
    before = len(gateway.journal.records)
    response = await gateway.client.post("/keys", json={"name": "ci", "scopes": asked}, headers=bearer(admin))
    assert refused(response) == (403, "insufficient_scope")
    assert len(gateway.journal.records) == before
    assert (await made(gateway, admin, scopes=["admin"]))["scopes"] == ["admin"]


@pytest.mark.parametrize("lifetime", [86_400, None])
async def test_a_key_expires_no_later_than_its_maker(gateway: Served, lifetime: int | None) -> None:
    ends = NOW + timedelta(hours=1)
    new = await made(gateway, await make_key(gateway.journal, expires_at=ends), lifetime_seconds=lifetime)
    assert new["expires_at"] == ends.isoformat().replace("+00:00", "Z")
    forever = await made(gateway, await make_key(gateway.journal), lifetime_seconds=None)
    assert forever["expires_at"] is None


async def test_a_key_ends_with_the_one_that_made_it(gateway: Served) -> None:
    operator, admin = await make_key(gateway.journal), await make_key(gateway.journal)
    child = (await made(gateway, admin, scopes=["admin", "read"]))["key"]
    grandchild = (await made(gateway, child, scopes=["read"]))["key"]
    assert await status(gateway, grandchild) == 200
    await revoke(gateway.journal, admin)
    assert [await status(gateway, key) for key in (admin, child, grandchild, operator)] == [401, 401, 401, 200]
    shown = await listed(gateway, operator)
    assert [each["status"] for each in shown.values()] == ["good", "revoked", "revoked", "revoked"]


async def test_a_key_of_an_unknown_maker_opens_nothing() -> None:
    fact, _ = created(
        Pepper(PEPPER), name="n", tenant="acme", scopes=("read",), created_at=NOW, expires_at=None, maker="0" * 12
    )
    book = KeyBook()
    book.apply(fact)
    assert book.good(fact.key_id) is None


async def test_a_revocation_counts_at_once_and_may_be_repeated(gateway: Served) -> None:
    admin = await make_key(gateway.journal)
    new = await made(gateway, admin, scopes=["read"])
    for _ in range(2):
        response = await gateway.client.delete(f"/keys/{new['key_id']}", headers=bearer(admin))
        assert (response.status_code, response.content) == (204, b"")
    assert await status(gateway, new["key"]) == 401
    shown = (await listed(gateway, admin))[new["key_id"]]
    assert shown["status"] == "revoked" and shown["revoked_at"] is not None
    assert sum(record.subject.endswith(".revoked") for record in gateway.journal.records) == 1


async def test_keys_of_another_tenant_are_unknown(gateway: Served) -> None:
    admin, foreign = await make_key(gateway.journal), await make_key(gateway.journal, "rival")
    assert list(await listed(gateway, admin)) == [key_id_of(admin)]
    answers = [
        await gateway.client.delete(f"/keys/{key_id}", headers=bearer(admin))
        for key_id in (key_id_of(foreign), "0" * 12)
    ]
    assert [refused(each) for each in answers] == [(404, "not_found")] * 2
    assert answers[0].json()["detail"] == answers[1].json()["detail"]
    assert await status(gateway, foreign) == 200


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/name"),
        ({"name": " "}, "/name"),
        ({"name": "a\nb"}, "/name"),
        ({"name": "n" * 101}, "/name"),
        ({"name": "n", "scopes": []}, "/scopes"),
        ({"name": "n", "scopes": ["root"]}, "/scopes/0"),
        ({"name": "n", "lifetime_seconds": 0}, "/lifetime_seconds"),
        ({"name": "n", "tenant": "rival"}, "/tenant"),
    ],
)
async def test_a_bad_field_is_named_with_its_remedy(gateway: Served, body: dict[str, Any], pointer: str) -> None:
    response = await gateway.client.post("/keys", json=body, headers=bearer(await make_key(gateway.journal)))
    assert refused(response) == (422, "invalid_request")
    assert response.json()["errors"][0]["pointer"] == pointer


async def test_a_tenant_makes_ten_keys_a_minute(gateway: Served) -> None:
    admin, other = await make_key(gateway.journal), await make_key(gateway.journal, "rival")
    for _ in range(10):
        await made(gateway, admin)
    response = await gateway.client.post("/keys", json={"name": "ci"}, headers=bearer(admin))
    assert refused(response) == (429, "rate_limited") and int(response.headers["retry-after"]) > 0
    await made(gateway, other)


@pytest.mark.parametrize(("settings", "remedy"), [({}, "KEY_PEPPER"), ({"key_pepper": PEPPER}, "KEYS_NATS_URL")])
async def test_a_gateway_that_may_not_write_keys_names_the_remedy(settings: dict[str, Any], remedy: str) -> None:
    async with served(**settings) as gateway:
        headers = bearer(await make_key(gateway.journal)) if settings else {}
        known = len(gateway.journal.records)
        for asked in (
            gateway.client.post("/keys", json={"name": "ci"}, headers=headers),
            gateway.client.delete(f"/keys/{'0' * 12}", headers=headers),
        ):
            response = await asked
            assert refused(response) == (409, "keys_read_only")
            (fault,) = response.json()["errors"]
            assert remedy in fault["remedy"] and "deliberate keys" in fault["remedy"]
        shown = (await gateway.client.get("/keys", headers=headers)).json()
        assert (shown["writable"], len(shown["items"])) == (False, len(settings))
        assert len(gateway.journal.records) == known
