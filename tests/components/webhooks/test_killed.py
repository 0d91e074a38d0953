"""`python -m app.webhooks` killed on the way, stopped in order, and refused: whatever happens, no delivery is lost."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter

import pytest

from tests.components.webhooks.receiving import receiving
from tests.components.webhooks.sending import EVERYTHING, SECRET, SenderProcess, declared, taken_on
from tests.conditions import until
from tests.conftest import NatsServer, free_port

DELIBERATIONS = 40


@pytest.mark.parametrize("senders", [1, 2])
async def test_sigkill_in_the_middle_loses_none_and_repeats_only_under_the_same_id(
    own_nats_server: NatsServer, senders: int
) -> None:
    """Killed four times while a receiver, that is slow and refuses every seventh request, is told of everything."""
    draw = random.Random(7)
    processes = [SenderProcess(own_nats_server) for _ in range(senders)]
    async with declared(own_nats_server, ack_wait_s=2) as journal, receiving() as receiver:
        for number in range(DELIBERATIONS):
            receiver.script[f"/{number}"].extend([500 if (number + turn) % 7 == 0 else 204 for turn in range(6)])
        try:
            for process in processes:
                await process.start()
            every = [
                await taken_on(journal, receiver.url(f"/{number}"), events=EVERYTHING)
                for number in range(DELIBERATIONS)
            ]
            for kill in range(4):
                # Counted before there is more to tell, of which there are sixty: so it is always reached.
                target = len(receiver.received) + draw.randrange(5, 40)
                for told in every[kill * 10 : kill * 10 + 10]:
                    await told.live()
                await until(lambda target=target: len(receiver.received) >= target, 60)
                victim = processes[kill % senders]
                victim.kill(signal.SIGKILL)
                await victim.start()
            for told in every:
                await told.settled(6, timeout_s=120)
        finally:
            for process in processes:
                process.stop()
        found = [each for told in every for each in (await told.deliveries()).values()]
    endings = Counter(each.ended and each.ended.ending for each in found)
    assert endings == {"delivered": 6 * DELIBERATIONS}, "recorded once each"
    bodies: dict[str, set[bytes]] = {}
    for request in receiver.received:
        request.checked(SECRET)
        bodies.setdefault(request.id, set()).add(request.body)
    assert len(bodies) == 6 * DELIBERATIONS, "none was lost, and none has two ids"
    assert all(len(different) == 1 for different in bodies.values())
    for number, told in enumerate(every):
        first = list(dict.fromkeys(json.loads(request.body)["id"] for request in receiver.at(f"/{number}")))
        assert first == sorted(first, key=lambda cursor: int(cursor.rpartition("-")[2])), f"in order, of {told.id}"


async def test_a_request_to_stop_lets_an_attempt_end_and_gives_the_rest_back_at_once(
    own_nats_server: NatsServer,
) -> None:
    async with declared(own_nats_server) as journal, receiving("hang") as receiver:
        first = SenderProcess(own_nats_server, WEBHOOK_TIMEOUT="3")
        await first.start()
        told = await taken_on(journal, receiver.url())
        waiting = await taken_on(journal, receiver.url("/later"))
        await told.end()
        await receiver.until(1)
        assert await asyncio.to_thread(first.kill, signal.SIGTERM) == 0
        (failed,) = (await told.delivery()).failed.values()
        assert failed.attempt.problem is not None and failed.attempt.problem.code == "timeout"
        receiver.otherwise = 204
        second = SenderProcess(own_nats_server)
        await second.start()
        try:
            await waiting.end()
            # Long before the half minute after which what a dead one held would be handed out again.
            await waiting.settled(timeout_s=10)
            await told.settled(timeout_s=10)
        finally:
            second.stop()


async def test_a_sender_waits_for_a_log_that_is_not_there_and_stops_when_told(own_nats_server: NatsServer) -> None:
    own_nats_server.kill()
    process = SenderProcess(own_nats_server)
    starting = asyncio.create_task(process.start())
    try:
        await until(lambda: process.process is not None)
        own_nats_server.start()
        async with declared(own_nats_server) as journal, receiving() as receiver:
            await asyncio.wait_for(starting, 30)
            told = await taken_on(journal, receiver.url())
            await told.end()
            await told.settled(timeout_s=60)
        assert await asyncio.to_thread(process.kill, signal.SIGTERM) == 0
    finally:
        process.stop()


@pytest.mark.parametrize(
    ("secrets", "said"), [("", "WEBHOOK_SECRETS"), ("short", "WEBHOOK_SECRETS"), ("s" * 31 + "," + "x" * 40, "32")]
)
def test_without_a_good_secret_it_does_not_begin_and_does_not_tell_it(secrets: str, said: str) -> None:
    environment = {**os.environ, "WEBHOOK_SECRETS": secrets}
    ended = subprocess.run(
        [sys.executable, "-m", "app.webhooks"], env=environment, capture_output=True, text=True, timeout=30
    )
    assert ended.returncode == 2
    assert said in ended.stderr and "short" not in ended.stderr.replace("too_short", "")


def test_it_says_that_it_lives() -> None:
    port = free_port()
    command = (
        "import asyncio, urllib.request as u\n"
        "from app.webhooks.sender.service import _living\n"
        "async def main():\n"
        f"    async with _living('127.0.0.1', {port}) as port:\n"
        "        answer = await asyncio.to_thread(u.urlopen, f'http://127.0.0.1:{port}/healthz', timeout=5)\n"
        "        print(answer.status, answer.read())\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=30)
    assert ended.stdout.strip() == "200 b'ok\\n'", ended.stderr
