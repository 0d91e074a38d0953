import asyncio
import base64
import json
from datetime import UTC, datetime

from app.deliberation.calls import FactProblem, StageRequest, Usage
from app.deliberation.facts import CancelRequested, encode
from app.log.journal import JetStreamJournal
from tests.conftest import NatsServer
from tests.integration.coordinator.announcements import AGENT, announced, raw, told_of
from tests.integration.coordinator.coordinator_replicas import Replica, Role, accepted, always, answered, until_done
from tests.story import Story

USAGE = Usage(prompt_tokens=70, completion_tokens=5, cached_tokens=32, calls=2)
PROBLEM = FactProblem(code="engine_rejected", detail="The engine answered 400.", retryable=False)


class Refusing(Role):
    async def remote(self, payload: bytes) -> None:
        request = StageRequest.model_validate_json(payload)
        if request.deliberation_id != "failed":
            await asyncio.Event().wait()
        for call in request.calls:
            update = {"text": None, "problem": PROBLEM, "usage": USAGE, "duration_ms": 7, "finish_reason": None}
            await self.journal.append(request.tenant, answered(request, call).model_copy(update=update))


async def test_every_field_of_ends_without_a_verdict_and_of_a_failed_outcome(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    for id in ("failed", "cancelled"):
        await journal.append("acme", accepted(id))
    await journal.append("acme", accepted("timeout", timeout_s=2))

    replica = await Replica.start(own_nats_server.url, Refusing(journal, always))
    await journal.append("acme", CancelRequested(deliberation_id="cancelled", ts=datetime.now(UTC), reason="enough"))
    await until_done(journal, 60)
    await replica.stop()

    failed = {"results": [{**AGENT, "status": "failed", "content": None, "usage": USAGE.model_dump()}]}
    failed["results"][0] |= {"duration_ms": 7, "problem": PROBLEM.model_dump()}
    for id, more in (("failed", failed), ("cancelled", {}), ("timeout", {})):
        told, end = await told_of(journal, id)
        assert told == announced(end, id, id, **more)
        assert (end["problem"] is None) == (id == "cancelled")

    response, _ = await raw(journal, "AGENT_RESPONSES", "agent.response.failed.failed.s1-dev-001")
    fact = (await journal.last(["deliberations.acme.failed.call.s1-dev-001.finished"]))[0]
    assert response == {
        "task_id": "failed",
        "call_id": "s1-dev-001",
        "tenant": "acme",
        **AGENT,
        "status": "failed",
        "proposal": None,
        "error": PROBLEM.detail,
        "error_type": PROBLEM.code,
        "diversity": False,
        "usage": USAGE.model_dump(),
        "duration_ms": 7,
        "timestamp": json.loads(fact.data)["ts"],
    }


async def test_results_and_streamed_texts_are_the_bytes_of_the_log(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    await journal.append("acme", accepted("d1"))

    replica = await Replica.start(own_nats_server.url, Role(journal, always))
    delta = Story("d1").delta("dev-001", 0, "bl")
    await journal.publish_view("acme", delta)
    async with asyncio.timeout(30):
        await until_done(journal)
        (fact,) = await journal.last(["deliberations.acme.d1.call.s1-dev-001.finished"])
        expected = {
            "AGENT_RESULTS": ("agent.results.d1", fact.data),
            "VLLM_STREAMING": ("vllm.streaming.d1", encode(delta)),
        }
        found = dict[str, bytes]()
        while found.keys() != expected.keys():
            for stream, (subject, _) in expected.items():
                query = json.dumps({"last_by_subj": subject}).encode()
                reply = await journal.request(f"$JS.API.STREAM.MSG.GET.{stream}", query)
                if "message" in reply:
                    found[stream] = base64.b64decode(reply["message"]["data"])
    await replica.stop()
    assert found == {stream: data for stream, (_, data) in expected.items()}
    assert json.loads(found["VLLM_STREAMING"])["text"] == "bl" and json.loads(found["AGENT_RESULTS"])["text"]
