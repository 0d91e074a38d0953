import os
import signal

from tests.components.webhooks.receiving import receiving
from tests.conditions import until
from tests.e2e.conftest import Stack
from tests.e2e.deliveries import all_delivered, secret_of


async def test_a_councils_events_reach_the_receiver_signed_and_are_in_the_log_of_deliveries(stack: Stack) -> None:
    async with receiving() as receiver:
        events = ["deliberation.accepted", "stage.opened", "stage.closed", "call.finished", "deliberation.completed"]
        receiver.script["/hook?team=1"].append(503)
        webhook = {"url": receiver.url("/hook?team=1", host="localhost"), "events": events, "metadata": {"a": "b"}}
        id = await stack.submit(num_agents=2, webhook=webhook)
        ended = await stack.until(id, status="completed")
        found = await all_delivered(stack, id, 60)
        page = await stack.client.get(
            f"/deliberations/{id}/events",
            params={"after": "0", "deltas": "false"},
            headers={"Accept": "application/json"},
        )
        received = {body["id"]: body for body in (request.checked(secret_of(stack)) for request in receiver.received)}
    logged = [event for event in page.json()["items"] if event["type"] in events]
    assert [received[event["id"]]["data"] for event in logged] == [
        {key: value for key, value in event.items() if key != "id"} for event in logged
    ]
    assert len(received) == len(found) == len(logged)
    assert found[0]["attempts"][0]["status_code"] == 503 and found[0]["attempts"][1]["status_code"] == 204
    last = max(received.values(), key=lambda body: int(body["id"].rpartition("-")[2]))
    assert last["data"]["verdict"] == ended["verdict"]
    assert {body["metadata"]["a"] for body in received.values()} == {"b"}


async def test_a_sender_that_is_killed_on_the_way_is_started_again_and_nothing_is_lost(stack: Stack) -> None:
    async with receiving() as receiver:
        webhook = {"url": receiver.url(), "events": ["stage.opened", "stage.closed", "deliberation.completed"]}
        ids = [await stack.submit(num_agents=2, seed=number, webhook=webhook) for number in range(8)]
        await receiver.until(6)
        before = stack.child("webhooks")
        os.kill(before["pid"], signal.SIGKILL)
        await until(lambda: stack.child("webhooks")["attempt"] > before["attempt"], 60)
        for id in ids:
            await stack.until(id, status="completed")
        # The killed sender's unacknowledged deliveries are redelivered after some seconds.
        found = [await all_delivered(stack, id, 120) for id in ids]
        bodies: dict[str, set[bytes]] = {}
        for request in receiver.received:
            request.checked(secret_of(stack))
            bodies.setdefault(request.id, set()).add(request.body)
    assert bodies.keys() == {delivery["id"] for each in found for delivery in each}
    assert all(len(different) == 1 for different in bodies.values())
