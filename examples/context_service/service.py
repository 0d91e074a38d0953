"""Keep each story's decisions in ValKey or Redis, and answer what a council should know of the story.

    NATS_URL=$(cat .deliberate/nats_urls/context) python examples/context_service/service.py

It consumes the announced ends, answers `context.get`, and publishes `context.updated`. Needs nats-py and redis, and a
server at REDIS_URL. Several may run: they share the consumer and the questions.
"""

import asyncio
import hashlib
import json
import os
from contextlib import suppress
from typing import Any

import nats
import redis.asyncio as redis
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from redis.exceptions import RedisError

STREAM, CONSUMER = "ORCHESTRATOR_EVENTS", "context"  # `deliberate streams apply` declares both
DECISIONS_MAX, CONTENT_CHARS_MAX = 20, 2_000
KEPT_S = 90 * 86_400
BYTES_PER_TOKEN = 3
HEAD = "Decided by earlier councils for this story, the newest first:"


def key_of(tenant: str, story_id: str) -> str:
    """The hash of a story's decisions. A tenant has no colon, so no two stories share one."""
    return f"story:{tenant}:{story_id}"


def decision_of(end: dict[str, Any]) -> dict[str, str] | None:
    """What to remember of an announced end; None where nothing was decided, or for no story."""
    verdict = end["verdict"]
    if end["status"] != "completed" or "story_id" not in end["metadata"] or verdict is None or not verdict["content"]:
        return None
    title = " ".join((end["task"] or "").split())[:200]
    return {
        "ts": end["ts"],
        "title": f"{title} ({', '.join(end['roles'])})",
        "content": verdict["content"][:CONTENT_CHARS_MAX],
    }


async def decisions(store: redis.Redis, key: str) -> list[tuple[str, dict[str, str]]]:
    """A story's decisions by the id of their deliberation, the newest first."""
    found = [(task_id, json.loads(each)) for task_id, each in (await store.hgetall(key)).items()]
    return sorted(found, key=lambda named: named[1]["ts"], reverse=True)


async def context(store: redis.Redis, tenant: str, story_id: str, max_tokens: int) -> dict[str, Any]:
    """The fields of `GetTaskContext`: as many decisions as fit."""
    blocks, left = list[str](), max_tokens * BYTES_PER_TOKEN - len(HEAD)
    for _, each in await decisions(store, key_of(tenant, story_id)):
        block = f"\n\n## {each['title']}\n\n{each['content']}"
        left -= len(block.encode())
        if left < 0:
            break
        blocks.append(block)
    text = HEAD + "".join(blocks) if blocks else ""
    return {
        "context_text": text,
        "blocks": {"system": "", "context": text, "tools": "", "history": ""},
        "token_count": len(text.encode()) // BYTES_PER_TOKEN,
        "version_hash": hashlib.sha256(text.encode()).hexdigest()[:16],
    }


async def learn(client: Client, store: redis.Redis, message: Msg) -> None:
    """Store the decision of one end. A repetition writes the same field again."""
    end = json.loads(message.data)
    decision = decision_of(end)
    if decision is not None:
        tenant, story_id, task_id = end["tenant"], end["metadata"]["story_id"], end["task_id"]
        key = key_of(tenant, story_id)
        await store.hset(key, task_id, json.dumps(decision))
        if too_many := [old for old, _ in (await decisions(store, key))[DECISIONS_MAX:]]:
            await store.hdel(key, *too_many)
        await store.expire(key, KEPT_S)
        version = (await context(store, tenant, story_id, CONTENT_CHARS_MAX * DECISIONS_MAX))["version_hash"]
        updated = {"tenant": tenant, "story_id": story_id, "task_id": task_id, "version_hash": version}
        await client.jetstream().publish("context.updated", json.dumps(updated).encode())
    await message.ack()


async def main() -> None:
    """Serve until NATS closes the connection for good. What is not acknowledged comes again after 12 s."""
    store = redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0"), decode_responses=True)
    url = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
    client = await nats.connect(url, name="context", inbox_prefix=b"_INBOX.context", max_reconnect_attempts=-1)

    async def answer(message: Msg) -> None:
        asked = json.loads(message.data)
        # Without a reply the gateway goes on after its time-out, and says so.
        with suppress(RedisError):
            found = await context(store, asked["tenant"], asked["story_id"], asked["options"]["max_tokens"])
            await message.respond(json.dumps(found).encode())

    await client.subscribe("context.get", queue="context", cb=answer)
    ends = await client.jetstream().pull_subscribe_bind(CONSUMER, stream=STREAM)
    await client.flush()
    print("ready", flush=True)
    while not client.is_closed:
        try:
            for message in await ends.fetch(32, timeout=5):
                await learn(client, store, message)
        except TimeoutError:
            continue  # nothing new
        except (NatsError, RedisError) as error:
            print(f"not learnt: {error!r}", flush=True)
            await asyncio.sleep(1)
    raise SystemExit("NATS has closed the connection for good")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
