"""The sender over a real nats-server and real receivers: what is told, to whom, in which order, what comes of it."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
import structlog

from app.api.webhook_payloads import delivery_id
from app.deliberation.facts import CancelRequested
from app.log.streams import ATTEMPTS_CONSUMER, WEBHOOKS_CONSUMER
from app.webhooks.attempts import AttemptFailed, DeliveryEnded, DeliveryKey, RedeliveryRequested, encoded
from tests.components.webhooks.receiving import Behaviour, receiving
from tests.components.webhooks.sending import EVERYTHING, SECRET, Told, declared, emptied, sending, taken_on
from tests.conditions import until
from tests.conftest import NatsServer
from tests.story import NOW

WHOLE = [
    "deliberation.accepted",
    "stage.opened",
    "call.finished",
    "call.finished",
    "stage.closed",
    "deliberation.completed",
]


async def test_an_end_is_told_once_signed_and_written_down(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver, sending(own_nats_server):
        told = await taken_on(journal, receiver.url("/hook?a=b"))
        await told.live()
        await told.settled()
        await emptied(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
        (request,) = receiver.received
        body = request.checked(SECRET)
        assert (request.path, body["type"], body["data"]["deliberation_id"]) == (
            "/hook?a=b", "deliberation.completed", told.id,
        )  # fmt: skip
        ((delivery_id, delivery),) = (await told.deliveries()).items()
        assert request.id == delivery_id
        assert delivery.ended is not None and delivery.ended.attempt is not None
        assert (delivery.ended.ending, delivery.ended.attempt.status_code) == ("delivered", 204)
        assert not delivery.failed


async def test_every_wanted_event_is_told_in_the_order_of_the_log(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver, sending(own_nats_server):
        some = await taken_on(journal, receiver.url("/some"), events=["stage.closed", "deliberation.cancelling"])
        every = await taken_on(journal, receiver.url("/every"), events=EVERYTHING)
        await some.append(some.story.opened(), some.story.closed())
        await some.append(CancelRequested(deliberation_id=some.id, ts=NOW))
        await every.live()
        await some.end()
        await asyncio.gather(every.settled(6), some.settled(2))
        await emptied(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
    bodies = [request.checked(SECRET) for request in receiver.at("/every")]
    assert [body["type"] for body in bodies] == WHOLE
    places = [int(body["id"].rpartition("-")[2]) for body in bodies]
    assert places == sorted(places)
    assert [r.checked(SECRET)["type"] for r in receiver.at("/some")] == ["stage.closed", "deliberation.cancelling"]


async def test_what_happened_before_any_sender_ran_is_told(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver:
        ended, living = [await taken_on(journal, receiver.url(path), events=EVERYTHING) for path in ("/ended", "/live")]
        await ended.live()
        async with sending(own_nats_server):
            await receiver.until(6, "/ended")
            await receiver.until(1, "/live")
            await living.live()
            await living.settled(6)
    for path in ("/ended", "/live"):
        assert [request.checked(SECRET)["type"] for request in receiver.at(path)] == WHOLE


async def test_deliberations_without_a_webhook_cost_one_acknowledgement(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, sending(own_nats_server):
        for _ in range(20):
            told = await taken_on(journal, "https://hooks.example/")
            plain = told.story.accepted().model_copy(update={"deliberation_id": f"{told.id[:20]}-plain"})
            await journal.append("default", plain)
            await told.end()
        await emptied(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
        records = await journal.last(["webhooks.>"])
        assert records and not any("-plain" in record.subject for record in records)


@pytest.mark.parametrize("failure", [500, 404, 302, 429, "die", "hang", b"nonsense\r\n\r\n"])
async def test_whatever_is_no_success_is_tried_again_under_the_same_id(
    own_nats_server: NatsServer, failure: Behaviour
) -> None:
    async with (
        declared(own_nats_server) as journal,
        receiving() as receiver,
        sending(own_nats_server, webhook_timeout_s=0.5),
    ):
        receiver.script["/hook"].extend([failure, failure])
        told = await taken_on(journal, receiver.url())
        await told.end()
        (delivery,) = await told.settled()
        await emptied(journal, "WEBHOOKS", ATTEMPTS_CONSUMER)
    assert sorted(delivery.failed) == [1, 2] and delivery.succeeded
    assert len(receiver.received) == 3
    assert len({(request.id, request.body) for request in receiver.received}) == 1
    assert all(request.checked(SECRET) for request in receiver.received)
    times = [each.attempt.at for each in delivery.failed.values()]
    assert delivery.failed[1].next_attempt_at <= times[1]


async def test_a_receiver_that_is_gone_is_told_nothing_more_of_the_deliberation(own_nats_server: NatsServer) -> None:
    async with (
        declared(own_nats_server) as journal,
        receiving() as receiver,
        sending(own_nats_server, webhook_retries_s="1") as sender,
    ):
        receiver.script["/gone"].extend([500, 410])
        gone = await taken_on(journal, receiver.url("/gone"), events=EVERYTHING)
        other = await taken_on(journal, receiver.url("/other"), events=EVERYTHING)
        await gone.live()
        await other.live()
        await other.settled(6)
        await gone.settled(2)
        await emptied(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
        await emptied(journal, "WEBHOOKS", ATTEMPTS_CONSUMER)
        endings = Counter(each.ended.ending for each in (await gone.deliveries()).values() if each.ended)
        assert endings == {"stopped": 2}
        assert len(receiver.at("/gone")) == 2 and len(receiver.at("/other")) == 6
        assert sender.deliverer.counts["delivered"] == 6


async def test_a_sender_that_begins_anew_knows_that_the_receiver_is_gone(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver:
        told = await taken_on(journal, receiver.url(), events=EVERYTHING)
        (accepted,) = await journal.last([f"deliberations.default.{told.id}.accepted"])
        place = DeliveryKey("default", told.id, delivery_id(accepted))
        gone = DeliveryEnded(fact=accepted.subject, ending="stopped", attempt=None)
        await journal.write(place.subject(gone), encoded(gone))
        await told.live()
        async with sending(own_nats_server):
            await emptied(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
    assert receiver.received == []


async def test_after_the_last_attempt_it_ends_and_says_so(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving(500) as receiver, sending(own_nats_server):
        told = await taken_on(journal, receiver.url())
        await told.end()
        (delivery,) = await told.settled()
        await emptied(journal, "WEBHOOKS", ATTEMPTS_CONSUMER)
    assert len(receiver.received) == 4
    assert sorted(delivery.failed) == [1, 2, 3]
    assert delivery.ended is not None and delivery.ended.ending == "exhausted" and not delivery.succeeded


async def test_a_failed_event_holds_up_none_of_those_after_it(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver:
        receiver.script["/hook"].append(500)
        async with sending(own_nats_server, webhook_retries_s="1"):
            told = await taken_on(journal, receiver.url(), events=EVERYTHING)
            await told.live()
            await told.settled(6)
    first, *rest = [request.checked(SECRET)["type"] for request in receiver.received]
    assert (first, rest) == ("deliberation.accepted", [*WHOLE[1:], "deliberation.accepted"])


async def test_a_receiver_that_hangs_holds_up_nobody_else(own_nats_server: NatsServer) -> None:
    bounds = {"webhook_timeout_s": 60, "webhooks_in_flight_per_host_max": 3, "webhooks_in_flight_max": 8}
    async with declared(own_nats_server) as journal, receiving("hang") as dead, receiving() as alive:
        async with sending(own_nats_server, **bounds):
            stuck = [await taken_on(journal, dead.url()) for _ in range(40)]
            for told in stuck:
                await told.end()
            await until(lambda: dead.open == 3)
            well = [await taken_on(journal, alive.url()) for _ in range(40)]
            for told in well:
                await told.end()
            await asyncio.gather(*(told.settled() for told in well))
            assert len(alive.received) == 40
            assert dead.open_max == 3 and alive.open_max <= 3


async def test_many_senders_share_the_work_and_tell_each_event_once(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver:
        async with sending(own_nats_server) as one, sending(own_nats_server) as two, sending(own_nats_server) as three:
            every = [await taken_on(journal, receiver.url()) for _ in range(60)]
            for told in every:
                await told.end()
            await asyncio.gather(*(told.settled() for told in every))
            await emptied(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
            shares = [sender.deliverer.counts["delivered"] for sender in (one, two, three)]
    assert sum(shares) == 60 and all(shares)
    assert len({request.id for request in receiver.received}) == len(receiver.received) == 60


async def test_a_log_that_is_killed_on_the_way_loses_no_delivery(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server, ack_wait_s=2) as journal, receiving() as receiver, sending(own_nats_server):
        receiver.script["/hook"].extend([500] * 10)
        every = [await taken_on(journal, receiver.url()) for _ in range(20)]
        for told in every[:10]:
            await told.end()
        await receiver.until(3)
        own_nats_server.kill()
        own_nats_server.start()
        await until(lambda: journal.client.is_connected)
        for told in every[10:]:
            await told.end()
        await asyncio.gather(*(told.settled(timeout_s=60) for told in every))
    assert len({request.id for request in receiver.received if request.checked(SECRET)}) == 20


async def test_whoever_asks_gets_one_attempt_more_and_asking_twice_is_asking_once(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver, sending(own_nats_server):
        told = await taken_on(journal, receiver.url())
        await told.end()
        await told.settled()
        place = DeliveryKey("default", told.id, receiver.received[0].id)
        receiver.script["/hook"].append(500)
        for number in (1, 1, 2):
            asked = RedeliveryRequested(
                fact=f"deliberations.default.{told.id}.end", number=number, at=datetime.now(UTC)
            )
            await journal.write(place.subject(asked), encoded(asked))
        await receiver.until(3)
        await emptied(journal, "WEBHOOKS", ATTEMPTS_CONSUMER)
        delivery = await told.delivery()
    assert len(receiver.received) == 3
    assert len({(request.id, request.body) for request in receiver.received}) == 1
    statuses = {number: each.attempt and each.attempt.status_code for number, each in delivery.redelivered.items()}
    assert Counter(statuses.values()) == {500: 1, 204: 1}
    assert delivery.awaited is None


async def test_what_was_taken_when_asked_for_is_not_repeated_by_schedule(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver:
        receiver.script["/hook"].append(500)
        async with sending(own_nats_server, webhook_retries_s="2"):
            told = await taken_on(journal, receiver.url())
            await told.end()
            (failed,) = await receiver.until(1)
            place = DeliveryKey("default", told.id, failed.id)
            asked = RedeliveryRequested(fact=f"deliberations.default.{told.id}.end", number=1, at=datetime.now(UTC))
            await journal.write(place.subject(asked), encoded(asked))
            await told.settled()
            await emptied(journal, "WEBHOOKS", ATTEMPTS_CONSUMER)
    assert len(receiver.received) == 2


async def purge(told: Told) -> None:
    subject = json.dumps({"filter": f"deliberations.default.{told.id}.>"}).encode()
    assert (await told.journal.request("$JS.API.STREAM.PURGE.DELIBERATIONS", subject))["success"]


async def test_what_was_deleted_is_told_to_nobody(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving(500) as receiver:
        async with sending(own_nats_server, webhook_retries_s="0.5,0.5"):
            told = await taken_on(journal, receiver.url())
            await told.end()
            await receiver.until(1)
            await emptied(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
            await purge(told)
            (delivery,) = await told.settled()
    assert delivery.ended is not None and (delivery.ended.ending, delivery.ended.attempt) == ("expired", None)
    assert len(receiver.received) == 1


async def test_a_deliberation_that_took_anothers_id_is_not_told_in_its_place(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving(500) as receiver:
        async with sending(own_nats_server, webhook_retries_s="0.5"):
            told = await taken_on(journal, receiver.url())
            await told.end()
            (first,) = await receiver.until(1)
            await emptied(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
            await purge(told)
            again = Told(journal, told.story)
            await again.append(told.facts[0].model_copy(update={"ts": datetime.now(UTC)}))
            await again.append(again.story.completed().model_copy(update={"ts": datetime.now(UTC)}))
            await told.settled(2)
    assert {request.id for request in receiver.received} > {first.id}
    assert sum(request.id == first.id for request in receiver.received) == 1


async def test_a_name_that_turns_out_to_be_private_is_never_connected_to(own_nats_server: NatsServer) -> None:
    asked: list[str] = []

    async def lookup(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async with declared(own_nats_server) as journal, receiving() as receiver:
        async with sending(own_nats_server, lookup=lookup, webhook_hosts="", webhook_ports=f"{receiver.port}"):
            told = await taken_on(journal, f"https://rebinding.example:{receiver.port}/")
            await told.end()
            (delivery,) = await told.settled()
    assert {each.attempt.problem and each.attempt.problem.code for each in delivery.failed.values()} == {
        "address_refused"
    }
    assert asked == ["rebinding.example"] * 4
    assert receiver.open_max == 0


async def test_a_host_that_is_no_longer_listed_is_no_longer_told(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver:
        async with sending(own_nats_server, webhook_hosts="", webhook_retries_s="0"):
            told = await taken_on(journal, receiver.url())
            await told.end()
            (delivery,) = await told.settled()
    assert delivery.failed[1].attempt.problem is not None
    assert delivery.failed[1].attempt.problem.code == "url_refused"
    assert receiver.open_max == 0


async def test_the_url_stands_in_the_acceptance_alone(own_nats_server: NatsServer) -> None:
    with structlog.testing.capture_logs() as logged:
        async with declared(own_nats_server) as journal, receiving() as receiver, sending(own_nats_server):
            receiver.script["/hidden-path?token=hidden"].extend([500, "die"])
            told = await taken_on(journal, receiver.url("/hidden-path?token=hidden"))
            await told.end()
            await told.settled()
            records = await told.records()
    assert "hidden" not in repr(logged) and len(logged) >= 3
    assert not any(b"hidden" in record.data for record in records)


async def test_what_is_no_record_is_kept_and_holds_up_nothing(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver, sending(own_nats_server):
        await journal.write("webhooks.default.d1.dlv_1.failed.1", b"not a record")
        await journal.write("deliberations.default.d2.accepted", b'{"type":"x","webhook":{}}')
        told = await taken_on(journal, receiver.url())
        await told.end()
        await told.settled()
        info = await journal.request(f"$JS.API.CONSUMER.INFO.WEBHOOKS.{ATTEMPTS_CONSUMER}")
        assert info["num_ack_pending"] == 1, "not acknowledged, so that a version that knows it can take it"


async def test_an_attempt_that_another_sender_has_made_meanwhile_is_not_made(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver:
        told = await taken_on(journal, receiver.url())
        async with sending(own_nats_server, webhook_retries_s="30"):
            receiver.script["/hook"].append(500)
            await told.end()
            await receiver.until(1)
            await emptied(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
            (failed,) = (await told.delivery()).failed.values()
        due = AttemptFailed(fact=failed.fact, number=2, attempt=failed.attempt, next_attempt_at=NOW)
        place = DeliveryKey("default", told.id, receiver.received[0].id)
        await journal.write(place.subject(due), encoded(due))
        async with sending(own_nats_server):
            await told.settled()
    assert len(receiver.received) == 2


async def test_a_sender_tells_what_it_does_and_what_waits(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving(503) as receiver:
        async with sending(own_nats_server, webhook_retries_s="60") as sender:
            every = [await taken_on(journal, receiver.url()) for _ in range(3)]
            for told in every:
                await told.end()
            await taken_on(journal, receiver.url())
            async with asyncio.timeout(20):
                while (told_of := await sender.describe())["queues"] != {
                    "webhooks": {"new": 0, "taken": 1},
                    "attempts": {"new": 0, "taken": 3},
                } or told_of["held"] != {"webhooks": 1, "attempts": 0}:
                    await asyncio.sleep(0.02)
    assert told_of["counts"] == {"failed": 3}
    assert (told_of["in_flight"], told_of["waiting"]) == (0, 0)
