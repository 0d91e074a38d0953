"""Each container is killed while councils run: Docker starts it again, and nothing that was accepted is lost."""

import asyncio

import httpx
import pytest

from tests.containers.docker import RESTART_S, Project, until
from tests.containers.load import Load
from tests.containers.services import RUNNING

ENDS_AFTER = 4


@pytest.mark.parametrize("service", RUNNING)
async def test_a_killed_container_starts_again_and_every_accepted_council_ends(
    stack: Project, client: httpx.AsyncClient, service: str
) -> None:
    load = Load(client, service)
    running = asyncio.create_task(load.run())
    try:
        await until(lambda: load.in_flight == load.clients)
        restarts = await asyncio.to_thread(stack.kill, service)
        await until(lambda: stack.is_restarted(service, restarts))
        before = len(load.ends)
        await until(lambda: len(load.ends) >= before + ENDS_AFTER or running.done())
    finally:
        load.enough.set()
        await asyncio.wait_for(running, RESTART_S)
    assert len(set(load.accepted.values())) == len(load.accepted), "no submission was accepted twice"
    assert set(load.ends) == set(load.accepted.values()), "nothing accepted is lost"
    assert {end["status"] for end in load.ends.values()} == {"completed"}
    listed = await client.get("/deliberations", params={"after": "now", "limit": 100})
    assert set(load.ends) <= {item["id"] for item in listed.json()["items"]}, "the archive has them"
