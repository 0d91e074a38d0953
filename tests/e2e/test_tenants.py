import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import DELIBERATE, TASK, Stack

pytestmark = pytest.mark.e2e

PEPPER = "end-to-end-pepper-of-forty-characters-or-so"
BODY = {"task": TASK, "num_agents": 2, "rounds": 0}


@dataclass
class Asking:
    process: subprocess.Popen[bytes]
    log: Path
    url: str


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("DELIBERATE_API_KEY", "DELIBERATE_URL")}
    return {**kept, "KEY_PEPPER": PEPPER, **more}


def events_in(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


async def listening(log: Path, process: subprocess.Popen[bytes]) -> str:
    async with asyncio.timeout(60):
        while True:
            for event in events_in(log):
                if event["event"] == "gateway_listening":
                    return f"http://127.0.0.1:{event['port']}"
            assert process.poll() is None, "the gateway ended before it listened"
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
async def gateways(running: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[Asking]]:
    started: list[Asking] = []
    # The first one may write keys.
    for number, more in enumerate(({"KEYS_NATS_URL": running.nats_url("keys")}, {})):
        log = tmp_path_factory.mktemp("gateway") / f"{number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "app.main"],
                env=environment(**running.of_log(), PORT="0", LOG_LEVEL="debug", **more),
                stdout=output,
                stderr=output,
            )
        started.append(Asking(process, log, await listening(log, process)))
    async with httpx.AsyncClient() as client, asyncio.timeout(60):
        for gateway in started:
            while (await client.get(f"{gateway.url}/readyz")).status_code != 200:
                await asyncio.sleep(0.1)
    yield started
    for gateway in started:
        gateway.process.terminate()
    for gateway in started:
        assert gateway.process.wait(timeout=30) == 0


def deliberate(stack: Stack, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(DELIBERATE), *arguments],
        env=environment(**stack.of_log("keys"), **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def make_key(running: Stack) -> Iterator[Any]:
    def make(tenant: str, *scopes: str) -> str:
        options = [option for scope in scopes for option in ("--scope", scope)]
        made = deliberate(running, "keys", "create", f"of {tenant}", "--tenant", tenant, *options)
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    yield make


def bearer(key: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", **{name.replace("_", "-"): value for name, value in more.items()}}


async def test_two_tenants_deliberate_on_the_same_agents_and_see_nothing_of_each_other(
    stack: Stack, gateways: list[Asking], make_key: Any
) -> None:
    keys = {tenant: make_key(tenant) for tenant in ("e2e-acme", "e2e-rival")}
    ids: dict[str, str] = {}
    async with httpx.AsyncClient(timeout=70) as client:
        first, second = (gateway.url for gateway in gateways)

        async def deliberated(tenant: str) -> None:
            headers = bearer(keys[tenant], Idempotency_Key="order-1", Prefer="wait=60")
            response = await client.post(f"{first}/deliberations", json=BODY, headers=headers)
            assert (response.status_code, response.json()["status"]) == (200, "completed"), response.text
            ids[tenant] = response.json()["id"]

        async with asyncio.TaskGroup() as group:
            for tenant in keys:
                group.create_task(deliberated(tenant))
        assert len(set(ids.values())) == 2, "one idempotency key is two deliberations"
        for own, other in (("e2e-acme", "e2e-rival"), ("e2e-rival", "e2e-acme")):
            for url in (first, second):
                for path in ("", "/events?after=0"):
                    asked = f"{url}/deliberations/{ids[other]}{path}"
                    assert (await client.get(asked, headers=bearer(keys[own]))).status_code == 404
                stopped = await client.post(f"{url}/deliberations/{ids[other]}/cancel", headers=bearer(keys[own]))
                assert stopped.status_code == 404
                listed = (await client.get(f"{url}/deliberations?after=now", headers=bearer(keys[own]))).json()
                assert [item["id"] for item in listed["items"]] == [ids[own]]
                read = await client.get(f"{url}/deliberations/{ids[own]}", headers=bearer(keys[own]))
                assert read.json()["verdict"]["winner"]
        for id in ids.values():
            assert (await stack.client.get(f"/deliberations/{id}")).status_code == 404, "nor does the tenant `default`"
    records = [record async for record in stack.journal.read("deliberations.*.*.accepted", 0)]
    assert {(r.tokens[1], r.tokens[2]) for r in records} >= set(ids.items())


async def test_a_revocation_is_heard_by_every_gateway_within_a_second(
    stack: Stack, gateways: list[Asking], make_key: Any
) -> None:
    key = make_key("e2e-acme")
    await stack.script(duration_ms=5_000, faults=[], behaviour="normal")
    async with httpx.AsyncClient(timeout=30) as client:
        made = await client.post(f"{gateways[0].url}/deliberations", json=BODY, headers=bearer(key))
        events = f"{gateways[1].url}/deliberations/{made.json()['id']}/events?after=0"
        async with client.stream("GET", events, headers=bearer(key)) as stream:
            chunks = stream.aiter_bytes()
            assert b"stream.opened" in await anext(chunks)
            revoking = await asyncio.create_subprocess_exec(
                str(DELIBERATE), "keys", "revoke", key.split("_")[1], env=environment(**stack.of_log("keys"))
            )
            assert await revoking.wait() == 0
            began_s = perf_counter()
            for gateway in gateways:
                while (await client.get(f"{gateway.url}/roles", headers=bearer(key))).status_code != 401:
                    assert perf_counter() - began_s < 1
            async with asyncio.timeout(1):
                async for _ in chunks:
                    pass
        again = await client.get(events, headers=bearer(key))
        assert (again.status_code, again.json()["code"]) == (401, "unauthenticated")
        assert "revoked" in again.json()["detail"]
    other = make_key("e2e-acme")
    async with httpx.AsyncClient(timeout=30) as client:
        path = f"{gateways[0].url}/deliberations/{made.json()['id']}/cancel"
        assert (await client.post(path, headers=bearer(other, Prefer="wait=30"))).status_code == 200


async def test_a_key_is_made_over_http_where_the_gateway_may_write_keys_and_ends_with_its_maker(
    stack: Stack, gateways: list[Asking], make_key: Any
) -> None:
    first, second = (gateway.url for gateway in gateways)
    admin = make_key("e2e-acme", "admin", "read")
    async with httpx.AsyncClient(timeout=30) as client, asyncio.timeout(30):

        async def until_answered(key: str, status: int) -> None:
            for url in (first, second):
                while (await client.get(f"{url}/login", headers=bearer(key))).status_code != status:
                    await asyncio.sleep(0.01)

        await until_answered(admin, 200)
        refused = await client.post(f"{second}/keys", json={"name": "ci"}, headers=bearer(admin))
        assert (refused.status_code, refused.json()["code"]) == (409, "keys_read_only")
        made = await client.post(f"{first}/keys", json={"name": "ci", "scopes": ["read"]}, headers=bearer(admin))
        assert made.status_code == 201, made.text
        key = made.json()["key"]
        await until_answered(key, 200)
        listed = json.loads(deliberate(stack, "keys", "list", "--tenant", "e2e-acme", "--json").stdout)["items"]
        assert {each["maker"] for each in listed if each["name"] == "ci"} == {admin.split("_")[1]}
        gone = await client.delete(f"{first}/keys/{admin.split('_')[1]}", headers=bearer(admin))
        assert gone.status_code == 204
        await until_answered(key, 401)
    for gateway in gateways:
        assert key.rpartition("_")[2] not in gateway.log.read_text()


async def test_a_browser_logs_in_and_watches_with_its_cookie_through_either_gateway(
    stack: Stack, gateways: list[Asking], make_key: Any
) -> None:
    key = make_key("e2e-acme")
    async with httpx.AsyncClient(timeout=30, base_url=gateways[0].url) as client:
        assert (await client.post("/login", json={"key": key})).status_code == 200
        made = await client.post("/deliberations", json=BODY)
        assert made.status_code == 403, "no page of this site asked"
        made = await client.post("/deliberations", json=BODY, headers={"Origin": gateways[0].url})
        path = f"/deliberations/{made.json()['id']}/events"
        # Cookies know no ports: what one gateway signed, the other believes.
        async with client.stream("GET", f"{gateways[1].url}{path}") as stream:
            text = b"".join([chunk async for chunk in stream.aiter_bytes()]).decode()
        assert "event: deliberation.completed" in text
        assert (await client.post("/logout", headers={"Origin": gateways[0].url})).status_code == 204
        assert (await client.get("/login")).status_code == 401


async def test_without_keys_a_gateway_refuses_to_listen_for_others(running: Stack) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "KEY_PEPPER"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app.main",
        env={**kept, "HOST": "0.0.0.0", "PORT": "0", **running.of_log()},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert b"KEY_PEPPER" in err and b"deliberate keys create" in err and b"Traceback" not in err
