"""Questions by request and reply on a real nats-server, and the example service over a real Redis."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
from nats.aio.msg import Msg

from app.deliberation.announcements import announcement
from app.deliberation.facts import Failed
from app.deliberation.specification import StoryContext
from app.lifecycle.context import SUBJECT
from app.log.journal import JetStreamJournal
from app.log.stream_settings import PUBLICATIONS, StreamSettings
from app.log.streams import apply
from tests.conditions import until_empty
from tests.conftest import NatsServer
from tests.integration.context.redis_server import context_service, decided, redis_server
from tests.integration.planning.conftest import (
    TRANSITIONED,
    acceptances,
    announce,
    moved,
    plan_event,
    taking,
    until_taken,
)


@pytest.fixture
async def redis_url(tmp_path: Path) -> AsyncIterator[str]:
    async with redis_server(tmp_path) as url:
        yield url


async def asked(journal: JetStreamJournal, *, tenant: str = "default", max_tokens: int = 8_192) -> dict[str, Any]:
    question = {"tenant": tenant, "story_id": "story-1", "options": {"max_tokens": max_tokens}}
    return json.loads(await journal.ask(SUBJECT, json.dumps(question).encode(), timeout_s=5))


async def until_learnt(journal: JetStreamJournal) -> None:
    await until_empty(journal, "ORCHESTRATOR_EVENTS", "context")


async def accepted_with(journal: JetStreamJournal, url: str, **settings: Any) -> tuple[StoryContext | None, list[str]]:
    async with taking(url, context=True, **settings) as consumer:
        await announce(journal, moved(), TRANSITIONED)
        await announce(journal, plan_event(roles=["DEV"]))
        await until_taken(journal)
        assert sum(consumer.contexts.values()) == 1
    (fact,) = await acceptances(journal)
    return fact.specification.context, [each.id for each in fact.specification.evidence]


async def test_without_a_service_a_plan_starts_at_once(journal: JetStreamJournal, own_nats_server: NatsServer) -> None:
    before_s = time.monotonic()
    context, evidence = await accepted_with(journal, own_nats_server.url, context_timeout_s=30)
    assert time.monotonic() - before_s < 25
    assert context is not None and (context.status, evidence) == ("unanswered", [])
    assert context.detail == "nothing listens on context.get"


async def test_a_service_that_hangs_delays_a_plan_once(journal: JetStreamJournal, own_nats_server: NatsServer) -> None:
    heard: list[bytes] = []

    async def hang(message: Msg) -> None:
        heard.append(message.data)

    await journal.client.subscribe(SUBJECT, cb=hang)
    async with taking(own_nats_server.url, context=True, context_timeout_s=0.3) as consumer:
        await announce(journal, plan_event(roles=["DEV", "QA", "ARCHITECT", "DEVOPS"]))
        await until_taken(journal)
        assert consumer.contexts == {"unanswered": 4}
    details = [fact.specification.context.detail for fact in await acceptances(journal) if fact.specification.context]
    assert len(heard) == 1 and len(details) == 4
    assert details[0] == "no reply on context.get within 0.3 s" and details[1].endswith("a moment ago")


async def test_the_question_has_the_fields_of_old_and_the_first_reply_counts(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    heard: list[dict[str, Any]] = []

    async def reply(message: Msg) -> None:
        heard.append(json.loads(message.data))
        await message.respond(b'{"context_text": "Log in by a link.", "version_hash": "9f2c"}')

    await journal.client.subscribe(SUBJECT, cb=reply)
    context, evidence = await accepted_with(journal, own_nats_server.url)
    (fact,) = await acceptances(journal)
    assert context == StoryContext(story_id="story-1", status="given", version="9f2c")
    assert evidence == ["context:story"] and fact.specification.evidence[0].text == "Log in by a link."
    assert heard == [
        {
            "task_id": fact.deliberation_id,
            "tenant": "default",
            "case_id": None,
            "story_id": "story-1",
            "phase": "BUILD",
            "role": "DEV",
            "options": {"max_tokens": 8_192},
        }
    ]
    # No stream stores the question, so none answers it with an acknowledgement.
    state = await journal.request("$JS.API.STREAM.INFO.CONTEXT_EVENTS")
    assert state["state"]["messages"] == 0


async def test_the_example_keeps_each_decision_once_though_it_is_killed(
    journal: JetStreamJournal, own_nats_server: NatsServer, redis_url: str
) -> None:
    async with context_service(own_nats_server.url, redis_url) as first:
        for number in range(1, 4):
            await journal.announce(decided(f"d{number}", content=f"Decision {number}", minute=number))
        await until_learnt(journal)
        first.kill()
        await first.wait()
    await journal.announce(decided("d4", content="Decision 4", minute=4))
    await journal.announce(decided("d5", tenant="rival", content="A secret"))
    await journal.announce(announcement("default", Failed(deliberation_id="d6", ts=datetime.now(UTC)), None))
    # The same announcement once more, as a consumer group may get it.
    again = decided("d1", content="Decision 1", minute=1)
    await journal.request(f"orchestration.deliberation.{again.status}", again.model_dump_json().encode())
    async with context_service(own_nats_server.url, redis_url), context_service(own_nats_server.url, redis_url):
        await until_learnt(journal)
        whole, short = await asked(journal), await asked(journal, max_tokens=50)
        foreign, unknown = await asked(journal, tenant="rival"), await asked(journal, tenant="third")
    store = redis.from_url(redis_url)
    assert await store.hlen("story:default:story-1") == 4
    await store.aclose()
    text = whole["context_text"]
    assert [text.count(f"Decision {number}") for number in range(1, 6)] == [1, 1, 1, 1, 0]
    assert text.index("Decision 4") < text.index("Decision 1") and "Task d2 (DEV)" in text
    assert whole.keys() == {"context_text", "blocks", "token_count", "version_hash"}
    assert whole["blocks"] == {"system": "", "context": text, "tools": "", "history": ""}
    assert len(short["context_text"]) <= 150 and "Decision 4" in short["context_text"]
    assert "A secret" in foreign["context_text"] and "A secret" not in text
    assert unknown["context_text"] == ""

    query = json.dumps({"last_by_subj": "context.updated"}).encode()
    stored = (await journal.request("$JS.API.STREAM.MSG.GET.CONTEXT_EVENTS", query))["message"]
    updated = json.loads(base64.b64decode(stored["data"]))
    assert updated.keys() == {"tenant", "story_id", "task_id", "version_hash"} and updated["story_id"] == "story-1"


async def test_the_example_keeps_a_bounded_number_of_decisions(
    journal: JetStreamJournal, own_nats_server: NatsServer, redis_url: str
) -> None:
    async with context_service(own_nats_server.url, redis_url):
        for number in range(25):
            await journal.announce(decided(f"d{number}", content="x" * 5_000, minute=number))
        await until_learnt(journal)
        found = await asked(journal, max_tokens=100_000)
    assert found["context_text"].count("## Task") == 20 and "Task d24" in found["context_text"]
    assert len(found["context_text"]) < 20 * 2_100


async def test_the_example_goes_on_after_an_error_of_the_log(
    journal: JetStreamJournal, own_nats_server: NatsServer, redis_url: str
) -> None:
    """Its consumer is deleted and declared again, and the server is killed and started again."""
    async with context_service(own_nats_server.url, redis_url) as running:
        await journal.request("$JS.API.CONSUMER.DELETE.ORCHESTRATOR_EVENTS.context")
        assert running.stdout is not None
        async with asyncio.timeout(20):
            assert (await running.stdout.readline()).startswith(b"not learnt: ")
        await apply(journal, StreamSettings(publications=PUBLICATIONS))
        await journal.announce(decided("d1", content="Decision 1"))
        await until_learnt(journal)
        own_nats_server.kill()
        own_nats_server.start()
        again = await JetStreamJournal.connect(own_nats_server.url, name="tests", timeout_s=20)
        await again.announce(decided("d2", content="Decision 2"))
        await until_learnt(again)
        found = await asked(again)
        await again.close()
        assert running.returncode is None
    assert "Decision 1" in found["context_text"] and "Decision 2" in found["context_text"]
