"""Lists of several gateways over one archive, while projectors, the database and the log come and go."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from app.archive.database.store import Store
from app.deliberation.facts import Accepted, decode
from app.log.journal import JetStreamJournal
from app.log.stream_settings import StreamSettings
from app.log.streams import apply
from app.main import lifespan_of
from app.routes.dependencies import Gateway, SystemClock
from app.settings import Settings
from tests.components.routes.served import APP, answering, played
from tests.conditions import until
from tests.conftest import NatsServer
from tests.integration.archive.conftest import migrated
from tests.integration.archive.postgres import PostgresServer
from tests.integration.archive.projecting import projecting, until_copied

QUERIES = (
    "",
    "?limit=3",
    "?status=completed",
    "?status=pending",
    "?metadata.team=blue",
    "?role=QA&strategy=single",
    "?bench=false",
)


@asynccontextmanager
async def gateway_of(server: NatsServer, database_url: str) -> AsyncGenerator[tuple[Gateway, httpx.AsyncClient]]:
    settings = Settings.model_validate({"nats_url": server.url, "database_url": database_url})
    async with lifespan_of(settings, None, SystemClock())(APP) as gateway, answering(gateway) as client:
        await until(lambda: gateway["catalog"].caught_up)
        yield gateway, client


async def listed(client: httpx.AsyncClient, query: str) -> list[dict[str, Any]]:
    path, found = f"/deliberations{query}", list[dict[str, Any]]()
    while path:
        response = await client.get(path)
        assert response.status_code == 200, response.text
        found += response.json()["items"]
        path = response.headers.get("link", "").partition("<")[2].partition(">")[0]
    return found


async def end(journal: JetStreamJournal, deliberation_id: str) -> None:
    accepted = decode((await journal.facts("default", deliberation_id))[0].data)
    assert isinstance(accepted, Accepted)
    for fact in played(accepted, now=SystemClock().now):
        await journal.append("default", fact)


async def until_listed(client: httpx.AsyncClient, expected: list[tuple[str, str]]) -> None:
    found = list[tuple[str, str]]()
    async with asyncio.timeout(30):
        while found != expected:
            found = [(item["id"], item["status"]) for item in await listed(client, "")]
            await asyncio.sleep(0.02)


async def test_two_gateways_and_a_third_that_starts_show_the_same_lists_of_all_changes(
    journal: JetStreamJournal,
    store: Store,
    database_url: str,
    own_nats_server: NatsServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.archive.projector.LATE_S", 0.2)
    draw, states = random.Random(11), dict[str, str]()
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(gateway_of(own_nats_server, database_url)) for _ in range(2)]
        clients = [client for _, client in servers]
        copying = await stack.enter_async_context(AsyncExitStack())
        await copying.enter_async_context(projecting(journal, store))
        for step in range(120):
            client = draw.choice(clients)
            running = [id for id, status in states.items() if status == "pending"]
            ended = [id for id, status in states.items() if status == "completed"]
            action = draw.choice(["submit", "submit", "end", "end", "delete"])
            if action == "end" and running:
                id = draw.choice(running)
                await end(journal, id)
                states[id] = "completed"
            elif action == "delete" and ended:
                id = draw.choice(ended)
                deleted = await client.delete(f"/deliberations/{id}")
                assert deleted.status_code == 204, deleted.text
                del states[id]
                assert id not in [item["id"] for item in await listed(draw.choice(clients), "")], "at once"
            else:
                team, role = draw.choice(["blue", "red"]), draw.choice(["DEV", "QA"])
                body = {"task": f"Step {step}", "role": role, "num_agents": 1, "strategy": "single",
                        "metadata": {"team": team}}  # fmt: skip
                states[(await client.post("/deliberations", json=body)).json()["id"]] = "pending"
            if step in (40, 80):
                # The projector dies for some steps.
                await copying.aclose()
            if step in (60, 100):
                await copying.enter_async_context(projecting(journal, store))
            if step % 10 == 9 and not (40 <= step < 60 or 80 <= step < 100):
                await until_listed(client, list(reversed(states.items())))
        await until_listed(clients[0], list(reversed(states.items())))
        await until_copied(journal)
        async with gateway_of(own_nats_server, database_url) as (_, third):
            for query in QUERIES:
                first, second, later = [await listed(each, query) for each in (*clients, third)]
                assert first == second == later, query


async def test_a_client_finds_its_own_write_in_a_list(
    journal: JetStreamJournal, store: Store, database_url: str, own_nats_server: NatsServer
) -> None:
    async with gateway_of(own_nats_server, database_url) as (_, client), projecting(journal, store):
        for _ in range(5):
            accepted = (await client.post("/deliberations", json={"task": "t"})).json()
            found = await client.get(f"/deliberations?limit=1&after={accepted['last_event_id']}")
            assert [item["id"] for item in found.json()["items"]] == [accepted["id"]]
            assert 0 <= found.json()["behind_s"] < 2


async def test_without_its_database_work_goes_on_and_lists_return_with_it(
    journal: JetStreamJournal, own_nats_server: NatsServer, postgres: PostgresServer
) -> None:
    url = postgres.database("lists")
    async with (
        migrated(url) as database,
        gateway_of(own_nats_server, url) as (_, client),
        projecting(journal, Store(database)),
    ):
        before = (await client.post("/deliberations", json={"task": "t"})).json()["id"]
        await until_listed(client, [(before, "pending")])
        postgres.kill()
        refused = await client.get("/deliberations")
        accepted = await client.post("/deliberations", json={"task": "t"}, headers={"Idempotency-Key": "k"})
        again = await client.post("/deliberations", json={"task": "t"}, headers={"Idempotency-Key": "k"})
        read = await client.get(f"/deliberations/{before}")
        postgres.start()
        assert (refused.status_code, refused.json()["code"]) == (503, "archive_unavailable")
        assert (accepted.status_code, read.status_code) == (202, 200)
        assert again.headers["idempotency-replayed"] == "true"
        await until_listed(client, [(accepted.json()["id"], "pending"), (before, "pending")])


async def test_a_list_goes_on_through_a_replaced_log(
    journal: JetStreamJournal, store: Store, database_url: str, own_nats_server: NatsServer
) -> None:
    """What was archived of an earlier log comes after all of the later one, and cursors lead there."""
    async with gateway_of(own_nats_server, database_url) as (gateway, client):
        old = [(await client.post("/deliberations", json={"task": "t"})).json()["id"] for _ in range(3)]
        for each in old:
            await end(journal, each)
        await client.post("/deliberations", json={"task": "lost with its log"})
        epoch = gateway["catalog"].epoch
        async with projecting(journal, store):
            await until_copied(journal)
    await journal.request("$JS.API.STREAM.DELETE.DELIBERATIONS")
    await apply(journal, StreamSettings())
    async with gateway_of(own_nats_server, database_url) as (gateway, client):
        assert gateway["catalog"].epoch != epoch
        new = [(await client.post("/deliberations", json={"task": "t"})).json()["id"] for _ in range(2)]
        async with projecting(journal, store):
            await until_copied(journal)
        for limit in (1, 2, 3, 10):
            assert [item["id"] for item in await listed(client, f"?limit={limit}")] == [*reversed(new), *reversed(old)]
