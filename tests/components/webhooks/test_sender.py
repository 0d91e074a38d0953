"""The sender over a real nats-server and real receivers: deliveries, their order, retries and records."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from app.api.schemas import dump
from app.api.webhook_payloads import EVENTS
from app.deliberation.facts import CancelRequested, Deleted
from app.log.streams import ATTEMPTS_CONSUMER, WEBHOOKS_CONSUMER
from app.observability.trace_context import DeliberationTrace
from app.webhooks.attempts import AttemptFailed, DeliveryKey, RedeliveryRequested
from tests.components.webhooks.receiving import Behaviour, receiving
from tests.components.webhooks.sending import SECRET, Deliberation, declared, sending, submit
from tests.conditions import until, until_empty
from tests.conftest import NatsServer
from tests.otlp import KeptSpans
from tests.story import NOW

WHOLE = ["deliberation.accepted", "stage.opened", *["call.finished"] * 2, "stage.closed", "deliberation.completed"]


async def test_delivers_a_signed_end_once_and_records_it(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver, sending(own_nats_server):
        deliberation = await submit(journal, receiver.url("/hook?a=b"))
        await deliberation.run()
        await deliberation.finished()
        await until_empty(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
        (request,) = receiver.received
        body = request.checked(SECRET)
        assert (request.path, body["type"], body["data"]["deliberation_id"]) == (
            "/hook?a=b", "deliberation.completed", deliberation.id,
        )  # fmt: skip
        ((delivery_id, delivery),) = (await deliberation.deliveries()).items()
        assert request.id == delivery_id
        assert delivery.ended is not None and delivery.ended.attempt is not None
        assert (delivery.ended.ending, delivery.ended.attempt.status_code) == ("delivered", 204)
        assert not delivery.failed


async def test_a_deliberation_with_a_label_is_delivered_too(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server, clusters=("eu",)) as journal, receiving() as receiver:
        async with sending(own_nats_server):
            receiver.script["/hook"].append(500)
            deliberations = [
                await submit(journal, receiver.url(), events=EVENTS, cluster=each) for each in ("eu", None)
            ]
            for each in deliberations:
                await each.run()
                await each.finished(len(WHOLE))
            await until_empty(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
    bodies = [request.checked(SECRET) for request in receiver.received]
    for each in deliberations:
        types = {body["type"] for body in bodies if body["data"]["deliberation_id"] == each.id}
        assert types == set(WHOLE)


async def test_each_attempt_is_a_span_below_the_workflow(own_nats_server: NatsServer) -> None:
    spans = KeptSpans()
    async with declared(own_nats_server) as journal, receiving() as receiver, sending(own_nats_server) as sender:
        sender.worker.tracer = spans
        receiver.script["/hook"].append(500)
        deliberation = await submit(journal, receiver.url())
        await deliberation.run()
        await deliberation.finished()
    workflow = DeliberationTrace.of(deliberation.id, None).workflow
    assert [(span.name, span.kind, span.error) for span in spans.spans] == [
        ("webhook", "client", "http_status"),
        ("webhook", "client", None),
    ]
    assert {(span.ref.trace_id, span.parent_id) for span in spans.spans} == {(workflow.trace_id, workflow.span_id)}
    assert [span.attributes["http.response.status_code"] for span in spans.spans] == [500, 204]
    assert spans.spans[0].attributes["server.address"] == "127.0.0.1"


async def test_delivers_every_subscribed_event_in_log_order(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver, sending(own_nats_server):
        some = await submit(journal, receiver.url("/some"), events=["stage.closed", "deliberation.cancelling"])
        every = await submit(journal, receiver.url("/every"), events=EVENTS)
        await some.append(some.story.opened(), some.story.closed())
        await some.append(CancelRequested(deliberation_id=some.id, ts=NOW))
        await every.run()
        await some.end()
        await asyncio.gather(every.finished(6), some.finished(2))
        await until_empty(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
    bodies = [request.checked(SECRET) for request in receiver.at("/every")]
    assert [body["type"] for body in bodies] == WHOLE
    places = [int(body["id"].rpartition("-")[2]) for body in bodies]
    assert places == sorted(places)
    assert [r.checked(SECRET)["type"] for r in receiver.at("/some")] == ["stage.closed", "deliberation.cancelling"]


async def test_delivers_events_from_before_the_sender_started(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver:
        ended, living = [await submit(journal, receiver.url(path), events=EVENTS) for path in ("/ended", "/live")]
        await ended.run()
        async with sending(own_nats_server):
            await receiver.until(6, "/ended")
            await receiver.until(1, "/live")
            await living.run()
            await living.finished(6)
    for path in ("/ended", "/live"):
        assert [request.checked(SECRET)["type"] for request in receiver.at(path)] == WHOLE


@pytest.mark.parametrize("failure", [500, 404, 302, 429, "die", "hang", b"nonsense\r\n\r\n"])
async def test_retries_every_failure_with_the_same_id(own_nats_server: NatsServer, failure: Behaviour) -> None:
    async with (
        declared(own_nats_server) as journal,
        receiving() as receiver,
        sending(own_nats_server, webhook_timeout_s=0.5),
    ):
        receiver.script["/hook"].extend([failure, failure])
        deliberation = await submit(journal, receiver.url())
        await deliberation.end()
        (delivery,) = await deliberation.finished()
        await until_empty(journal, "WEBHOOKS", ATTEMPTS_CONSUMER)
    assert sorted(delivery.failed) == [1, 2] and delivery.succeeded
    assert len(receiver.received) == 3
    assert len({(request.id, request.body) for request in receiver.received}) == 1
    assert all(request.checked(SECRET) for request in receiver.received)
    times = [each.attempt.at for each in delivery.failed.values()]
    assert delivery.failed[1].next_attempt_at <= times[1]


async def test_410_ends_all_deliveries_of_that_deliberation_only(own_nats_server: NatsServer) -> None:
    async with (
        declared(own_nats_server) as journal,
        receiving() as receiver,
        sending(own_nats_server, webhook_retries_s="1") as sender,
    ):
        receiver.script["/gone"].extend([500, 410])
        gone = await submit(journal, receiver.url("/gone"), events=EVENTS)
        other = await submit(journal, receiver.url("/other"), events=EVENTS)
        await gone.run()
        await other.run()
        await other.finished(6)
        await gone.finished(2)
        await until_empty(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
        await until_empty(journal, "WEBHOOKS", ATTEMPTS_CONSUMER)
        endings = Counter(each.ended.ending for each in (await gone.deliveries()).values() if each.ended)
        assert endings == {"stopped": 2}
        assert len(receiver.at("/gone")) == 2 and len(receiver.at("/other")) == 6
        assert sender.worker.counts["delivered"] == 6


async def test_ends_as_exhausted_after_the_last_attempt(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving(500) as receiver, sending(own_nats_server):
        deliberation = await submit(journal, receiver.url())
        await deliberation.end()
        (delivery,) = await deliberation.finished()
        await until_empty(journal, "WEBHOOKS", ATTEMPTS_CONSUMER)
    assert len(receiver.received) == 4
    assert sorted(delivery.failed) == [1, 2, 3]
    assert delivery.ended is not None and delivery.ended.ending == "exhausted" and not delivery.succeeded


async def test_a_failed_delivery_delays_no_later_event(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver:
        receiver.script["/hook"].append(500)
        async with sending(own_nats_server, webhook_retries_s="1"):
            deliberation = await submit(journal, receiver.url(), events=EVENTS)
            await deliberation.run()
            await deliberation.finished(6)
    first, *rest = [request.checked(SECRET)["type"] for request in receiver.received]
    assert (first, rest) == ("deliberation.accepted", [*WHOLE[1:], "deliberation.accepted"])


async def test_a_hanging_receiver_delays_no_other_receiver(own_nats_server: NatsServer) -> None:
    bounds: dict[str, Any] = {
        "webhook_timeout_s": 60,
        "webhooks_in_flight_per_host_max": 3,
        "webhooks_in_flight_max": 8,
    }
    async with declared(own_nats_server) as journal, receiving("hang") as dead, receiving() as alive:
        async with sending(own_nats_server, **bounds):
            stuck = [await submit(journal, dead.url()) for _ in range(40)]
            for deliberation in stuck:
                await deliberation.end()
            await until(lambda: dead.open == 3)
            well = [await submit(journal, alive.url()) for _ in range(40)]
            for deliberation in well:
                await deliberation.end()
            await asyncio.gather(*(deliberation.finished() for deliberation in well))
            assert len(alive.received) == 40
            assert dead.open_max == 3 and alive.open_max <= 3


async def test_senders_share_the_work_and_deliver_each_event_once(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver:
        async with sending(own_nats_server) as one, sending(own_nats_server) as two, sending(own_nats_server) as three:
            every = [await submit(journal, receiver.url()) for _ in range(60)]
            for deliberation in every:
                await deliberation.end()
            await asyncio.gather(*(deliberation.finished() for deliberation in every))
            await until_empty(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
            shares = [sender.worker.counts["delivered"] for sender in (one, two, three)]
    assert sum(shares) == 60 and all(shares)
    assert len({request.id for request in receiver.received}) == len(receiver.received) == 60


async def test_a_killed_nats_server_loses_no_delivery(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server, ack_wait_s=2) as journal, receiving() as receiver, sending(own_nats_server):
        receiver.script["/hook"].extend([500] * 10)
        every = [await submit(journal, receiver.url()) for _ in range(20)]
        for deliberation in every[:10]:
            await deliberation.end()
        await receiver.until(3)
        own_nats_server.kill()
        own_nats_server.start()
        await until(lambda: journal.client.is_connected)
        for deliberation in every[10:]:
            await deliberation.end()
        await asyncio.gather(*(deliberation.finished(timeout_s=60) for deliberation in every))
    assert len({request.id for request in receiver.received if request.checked(SECRET)}) == 20


async def redeliver(deliberation: Deliberation, delivery_id: str, number: int) -> None:
    fact = f"deliberations.default.{deliberation.id}.end"
    request = RedeliveryRequested(fact=fact, number=number, at=datetime.now(UTC))
    await deliberation.journal.write(
        DeliveryKey("default", deliberation.id, delivery_id).subject(request), dump(request)
    )


async def test_each_redelivery_request_gets_one_attempt(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver, sending(own_nats_server):
        deliberation = await submit(journal, receiver.url())
        await deliberation.end()
        await deliberation.finished()
        receiver.script["/hook"].append(500)
        for number in (1, 1, 2):
            await redeliver(deliberation, receiver.received[0].id, number)
        await receiver.until(3)
        await until_empty(journal, "WEBHOOKS", ATTEMPTS_CONSUMER)
        delivery = await deliberation.delivery()
    assert len(receiver.received) == 3
    assert len({(request.id, request.body) for request in receiver.received}) == 1
    statuses = {number: each.attempt and each.attempt.status_code for number, each in delivery.redelivered.items()}
    assert Counter(statuses.values()) == {500: 1, 204: 1}
    assert delivery.pending_redelivery is None


async def test_a_successful_redelivery_ends_the_schedule(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver:
        receiver.script["/hook"].append(500)
        async with sending(own_nats_server, webhook_retries_s="2"):
            deliberation = await submit(journal, receiver.url())
            await deliberation.end()
            (failed,) = await receiver.until(1)
            await redeliver(deliberation, failed.id, 1)
            await deliberation.finished()
            await until_empty(journal, "WEBHOOKS", ATTEMPTS_CONSUMER)
    assert len(receiver.received) == 2


async def purge(deliberation: Deliberation) -> None:
    subject = json.dumps({"filter": f"deliberations.default.{deliberation.id}.>"}).encode()
    assert (await deliberation.journal.request("$JS.API.STREAM.PURGE.DELIBERATIONS", subject))["success"]


async def test_a_deleted_deliberation_is_not_delivered(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving(500) as receiver:
        async with sending(own_nats_server, webhook_retries_s="0.5,0.5"):
            deliberation = await submit(journal, receiver.url())
            await deliberation.end()
            await receiver.until(1)
            await until_empty(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
            await purge(deliberation)
            (delivery,) = await deliberation.finished()
    assert delivery.ended is not None and (delivery.ended.ending, delivery.ended.attempt) == ("expired", None)
    assert len(receiver.received) == 1


async def test_events_that_waited_for_a_slow_receiver_are_not_sent_after_a_deletion(
    own_nats_server: NatsServer,
) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver:
        receiver.script["/hook"].append("hang")
        async with sending(own_nats_server, webhook_timeout_s=1, webhook_retries_s="60"):
            deliberation = await submit(journal, receiver.url(), events=EVENTS)
            await deliberation.run()
            await receiver.until(1)
            await journal.append("default", Deleted(deliberation_id=deliberation.id, ts=datetime.now(UTC)))
            await until_empty(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
    assert len(receiver.received) == 1


async def test_a_410_to_a_retry_stops_the_events_that_wait(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver:
        receiver.script["/hook"].extend([500, "hang", 410])
        async with sending(own_nats_server, webhook_timeout_s=2, webhook_retries_s="0.1,60"):
            deliberation = await submit(journal, receiver.url(), events=EVENTS)
            await deliberation.run()
            await receiver.until(3)
            await until_empty(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
    assert len(receiver.received) == 3


async def test_a_deliberation_with_a_reused_id_has_deliveries_of_its_own(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving(500) as receiver:
        async with sending(own_nats_server, webhook_retries_s="0.5"):
            deliberation = await submit(journal, receiver.url())
            await deliberation.end()
            (first,) = await receiver.until(1)
            await until_empty(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
            await purge(deliberation)
            again = Deliberation(journal, deliberation.story)
            await again.append(deliberation.facts[0].model_copy(update={"ts": datetime.now(UTC)}))
            await again.append(again.story.completed().model_copy(update={"ts": datetime.now(UTC)}))
            await deliberation.finished(2)
    assert {request.id for request in receiver.received} > {first.id}
    assert sum(request.id == first.id for request in receiver.received) == 1


async def test_never_connects_to_a_name_with_a_private_address(own_nats_server: NatsServer) -> None:
    lookups: list[str] = []

    async def lookup(host: str, port: int) -> Sequence[str]:
        lookups.append(host)
        return ["127.0.0.1"]

    async with declared(own_nats_server) as journal, receiving() as receiver:
        async with sending(own_nats_server, lookup=lookup, webhook_hosts="", webhook_ports=f"{receiver.port}"):
            deliberation = await submit(journal, f"https://rebinding.example:{receiver.port}/")
            await deliberation.end()
            (delivery,) = await deliberation.finished()
    assert {each.attempt.problem and each.attempt.problem.code for each in delivery.failed.values()} == {
        "address_refused"
    }
    assert lookups == ["rebinding.example"] * 4
    assert receiver.open_max == 0


async def test_refuses_a_host_that_is_no_longer_listed(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver:
        async with sending(own_nats_server, webhook_hosts="", webhook_retries_s="0"):
            deliberation = await submit(journal, receiver.url())
            await deliberation.end()
            (delivery,) = await deliberation.finished()
    assert delivery.failed[1].attempt.problem is not None
    assert delivery.failed[1].attempt.problem.code == "url_refused"
    assert receiver.open_max == 0


async def test_the_url_is_in_the_acceptance_only(own_nats_server: NatsServer) -> None:
    with structlog.testing.capture_logs() as logged:
        async with declared(own_nats_server) as journal, receiving() as receiver, sending(own_nats_server):
            receiver.script["/hidden-path?token=hidden"].extend([500, "die"])
            deliberation = await submit(journal, receiver.url("/hidden-path?token=hidden"))
            await deliberation.end()
            await deliberation.finished()
            records = await deliberation.records()
    assert "hidden" not in repr(logged) and len(logged) >= 3
    assert not any(b"hidden" in record.data for record in records)


async def test_an_unreadable_record_stays_queued_and_delays_nothing(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver, sending(own_nats_server):
        await journal.write("webhooks.default.d1.dlv_1.failed.1", b"not a record")
        await journal.write("deliberations.default.d2.accepted", b'{"type":"x","webhook":{}}')
        deliberation = await submit(journal, receiver.url())
        await deliberation.end()
        await deliberation.finished()
        info = await journal.request(f"$JS.API.CONSUMER.INFO.WEBHOOKS.{ATTEMPTS_CONSUMER}")
        assert info["num_ack_pending"] == 1, "not acknowledged, so that a newer version can process it"


async def test_skips_an_attempt_that_another_sender_has_recorded(own_nats_server: NatsServer) -> None:
    async with declared(own_nats_server) as journal, receiving() as receiver:
        deliberation = await submit(journal, receiver.url())
        async with sending(own_nats_server, webhook_retries_s="30"):
            receiver.script["/hook"].append(500)
            await deliberation.end()
            await receiver.until(1)
            await until_empty(journal, "DELIBERATIONS", WEBHOOKS_CONSUMER)
            (failed,) = (await deliberation.delivery()).failed.values()
        due = AttemptFailed(fact=failed.fact, number=2, attempt=failed.attempt, next_attempt_at=NOW)
        key = DeliveryKey("default", deliberation.id, receiver.received[0].id)
        await journal.write(key.subject(due), dump(due))
        async with sending(own_nats_server):
            await deliberation.finished()
    assert len(receiver.received) == 2
