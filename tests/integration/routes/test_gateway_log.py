import asyncio

import httpx

from app.deliberation.facts import Completed
from app.log.journal import JetStreamJournal
from app.log.stream_settings import StreamSettings
from app.log.streams import apply
from tests.conditions import until
from tests.conftest import NatsServer
from tests.integration.routes.running_gateways import gateway_on
from tests.story import NOW

BODY = {"task": "Name a colour."}


async def missing(client: httpx.AsyncClient) -> set[str]:
    return {error["pointer"] for error in (await client.get("/readyz")).json()["errors"]}


async def test_a_gateway_waits_for_a_log_that_starts_later(own_nats_server: NatsServer) -> None:
    own_nats_server.kill()
    async with gateway_on(own_nats_server, startup_wait_s=0.05) as (gateway, client):
        assert (await client.get("/healthz")).status_code == 200
        assert {"journal", "catalog"} <= await missing(client)
        for response in (await client.post("/deliberations", json=BODY), await client.get("/deliberations/d1")):
            assert (response.status_code, response.headers["retry-after"]) == (503, "2")
            assert response.json()["code"] == "journal_unavailable"

        own_nats_server.start()
        journal = await JetStreamJournal.connect(own_nats_server.url, name="tests")
        await until(
            lambda: not isinstance(gateway["journal"], JetStreamJournal) or gateway["journal"].client.is_connected
        )
        assert "streams" in await missing(client)
        await apply(journal, StreamSettings())
        await until(lambda: gateway["catalog"].caught_up)
        assert await missing(client) == {"coordinator", "roles"}
        assert (await client.post("/deliberations", json=BODY)).status_code == 202
        await journal.close()


async def test_a_killed_log_loses_nothing_and_the_next_request_works(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    async with gateway_on(own_nats_server) as (gateway, client):
        await until(lambda: gateway["catalog"].caught_up)
        before = (await client.post("/deliberations", json=BODY, headers={"Idempotency-Key": "k"})).json()
        own_nats_server.kill()
        refused = await client.post("/deliberations", json=BODY)
        assert (refused.status_code, refused.json()["code"]) == (503, "journal_unavailable")

        own_nats_server.start()
        async with asyncio.timeout(20):
            while (again := await client.post("/deliberations", json=BODY)).status_code != 202:
                assert again.status_code == 503
        assert (await client.get(f"/deliberations/{before['id']}")).json() == before
        replayed = await client.post("/deliberations", json=BODY, headers={"Idempotency-Key": "k"})
        assert (replayed.headers["idempotency-replayed"], replayed.json()) == ("true", before)
        await journal.append("default", Completed(deliberation_id=before["id"], ts=NOW))
        assert await gateway["catalog"].ended("default", before["id"], 20)
        assert gateway["catalog"].find("default", again.json()["id"]) is not None


async def test_a_long_poll_ends_with_the_next_fact(journal: JetStreamJournal, own_nats_server: NatsServer) -> None:
    async with gateway_on(own_nats_server) as (gateway, client):
        await until(lambda: gateway["catalog"].caught_up)
        id = (await client.post("/deliberations", json=BODY)).json()["id"]
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            waiting = group.create_task(client.get(f"/deliberations/{id}", headers={"Prefer": "wait=60"}))
            await until(lambda: gateway["feed"].watched == 1)
            await journal.append("default", Completed(deliberation_id=id, ts=NOW))
        assert waiting.result().json()["status"] == "completed"
