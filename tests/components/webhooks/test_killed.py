"""`python -m app.webhooks` under SIGKILL, SIGTERM and invalid settings: no delivery is lost."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter

import pytest

from app.api.webhook_payloads import EVENTS
from tests.components.webhooks.receiving import receiving
from tests.components.webhooks.sending import SECRET, SenderProcess, declared, submit
from tests.conditions import until
from tests.conftest import NatsServer, free_port

DELIBERATIONS = 40


@pytest.mark.parametrize("senders", [1, 2])
async def test_sigkill_loses_no_delivery_and_repeats_keep_their_id(own_nats_server: NatsServer, senders: int) -> None:
    """Four kills while every event is delivered to a receiver that refuses each seventh request."""
    draw = random.Random(7)
    processes = [SenderProcess(own_nats_server) for _ in range(senders)]
    async with declared(own_nats_server, ack_wait_s=2) as journal, receiving() as receiver:
        for number in range(DELIBERATIONS):
            receiver.script[f"/{number}"].extend([500 if (number + turn) % 7 == 0 else 204 for turn in range(6)])
        try:
            for process in processes:
                await process.start()
            every = [
                await submit(journal, receiver.url(f"/{number}"), events=EVENTS) for number in range(DELIBERATIONS)
            ]
            for kill in range(4):
                # Below the sixty events that follow, so the target is always reached.
                target = len(receiver.received) + draw.randrange(5, 40)
                for deliberation in every[kill * 10 : kill * 10 + 10]:
                    await deliberation.run()
                await until(lambda target=target: len(receiver.received) >= target, 60)
                victim = processes[kill % senders]
                victim.kill(signal.SIGKILL)
                await victim.start()
            for deliberation in every:
                await deliberation.finished(6, timeout_s=120)
        finally:
            for process in processes:
                process.stop()
        found = [each for deliberation in every for each in (await deliberation.deliveries()).values()]
    endings = Counter(each.ended and each.ended.ending for each in found)
    assert endings == {"delivered": 6 * DELIBERATIONS}, "recorded once each"
    bodies: dict[str, set[bytes]] = {}
    for request in receiver.received:
        request.checked(SECRET)
        bodies.setdefault(request.id, set()).add(request.body)
    assert len(bodies) == 6 * DELIBERATIONS, "no delivery is lost or has two ids"
    assert all(len(different) == 1 for different in bodies.values())
    for number, deliberation in enumerate(every):
        first = list(dict.fromkeys(json.loads(request.body)["id"] for request in receiver.at(f"/{number}")))
        assert first == sorted(first, key=lambda cursor: int(cursor.rpartition("-")[2])), (
            f"first attempts of {deliberation.id} are in order"
        )


async def test_sigterm_finishes_attempts_and_returns_queued_items(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving("hang") as receiver:
        first = SenderProcess(own_nats_server, WEBHOOK_TIMEOUT="3")
        await first.start()
        deliberation = await submit(journal, receiver.url())
        waiting = await submit(journal, receiver.url("/later"))
        await deliberation.end()
        await receiver.until(1)
        assert await asyncio.to_thread(first.kill, signal.SIGTERM) == 0
        (failed,) = (await deliberation.delivery()).failed.values()
        assert failed.attempt.problem is not None and failed.attempt.problem.code == "timeout"
        receiver.otherwise = 204
        second = SenderProcess(own_nats_server)
        await second.start()
        try:
            await waiting.end()
            # Well below the 30 s after which a dead sender's items would be redelivered.
            await waiting.finished(timeout_s=10)
            await deliberation.finished(timeout_s=10)
        finally:
            second.stop()


async def test_waits_for_an_unreachable_log_and_stops_on_sigterm(own_nats_server: NatsServer) -> None:
    own_nats_server.kill()
    process = SenderProcess(own_nats_server)
    starting = asyncio.create_task(process.start())
    try:
        await until(lambda: process.process is not None)
        own_nats_server.start()
        async with declared(own_nats_server) as journal, receiving() as receiver:
            await asyncio.wait_for(starting, 30)
            deliberation = await submit(journal, receiver.url())
            await deliberation.end()
            await deliberation.finished(timeout_s=60)
        assert await asyncio.to_thread(process.kill, signal.SIGTERM) == 0
    finally:
        process.stop()


@pytest.mark.parametrize(
    ("secrets", "said"), [("", "WEBHOOK_SECRETS"), ("short", "WEBHOOK_SECRETS"), ("s" * 31 + "," + "x" * 40, "32")]
)
def test_refuses_to_start_without_a_valid_secret_and_hides_it(secrets: str, said: str) -> None:
    environment = {**os.environ, "WEBHOOK_SECRETS": secrets}
    ended = subprocess.run(
        [sys.executable, "-m", "app.webhooks"], env=environment, capture_output=True, text=True, timeout=30
    )
    assert ended.returncode == 2
    assert said in ended.stderr and "short" not in ended.stderr.replace("too_short", "")


def test_answers_health_checks() -> None:
    port = free_port()
    command = (
        "import asyncio, urllib.request as u\n"
        "from app.observability.process import health_server\n"
        "async def main():\n"
        f"    async with health_server('127.0.0.1', {port}) as port:\n"
        "        answer = await asyncio.to_thread(u.urlopen, f'http://127.0.0.1:{port}/healthz', timeout=5)\n"
        "        print(answer.status, answer.read())\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=30)
    assert ended.stdout.strip() == "200 b'ok\\n'", ended.stderr
