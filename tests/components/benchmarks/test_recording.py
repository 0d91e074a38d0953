"""What a deliberation stores is recorded from a server's store, and stored again under other ids of the same length."""

import shutil
from pathlib import Path

import pytest

from app.log.journal import JetStreamJournal
from app.log.stream_settings import STREAM, StreamSettings
from app.log.streams import apply
from benchmarks.recording import BareClient, Block, Recording, consume, declare, request, running_server, store
from tests.story import Story


async def test_copies_differ_in_their_ids_alone(tmp_path: Path) -> None:
    story = Story("b" * 26, size=1)
    async with running_server(tmp_path / "recorded") as (server, _):
        journal = await JetStreamJournal.connect(server.url, name="test")
        await apply(journal, StreamSettings())
        for fact in (story.accepted(), story.opened(), story.started("dev-001")):
            await journal.append("default", fact)
        await journal.close()
    recording = await Recording.of_store(tmp_path / "recorded")
    recording.written(tmp_path / "file")
    assert Recording.of_file(tmp_path / "file") == recording
    shutil.rmtree(tmp_path / "recorded")

    async with running_server(tmp_path / "copies") as (server, client):
        await declare(client, recording)
        await store(server.url, recording, range(2))
        await consume(client, recording)
        state = (await request(client, f"STREAM.INFO.{STREAM}"))["state"]
        journal = await JetStreamJournal.connect(server.url, name="test")
        ids = [recording.id_of(number).decode() for number in range(2)]
        facts = [[record.data async for record in journal.read(f"deliberations.default.{id}.>", 0)] for id in ids]
        await journal.close()
        pending = (await request(client, f"CONSUMER.INFO.{STREAM}.archive"))["num_pending"]
    assert ids == ["b" * 18 + "00000000", "b" * 18 + "00000001"]
    assert state["messages"] == 6 and pending == 0
    recorded = [message.data for message in recording.messages]
    for id, found in zip(ids, facts, strict=True):
        assert [data.replace(id.encode(), story.id.encode()) for data in found] == recorded


async def test_a_message_that_the_server_refuses_is_an_error(tmp_path: Path) -> None:
    async with running_server(tmp_path / "nats") as (server, client):
        await request(client, "STREAM.CREATE.FULL", {"name": "FULL", "subjects": ["full"], "max_msg_size": 1})
        with pytest.raises(ConnectionError, match="exceeds maximum"):
            async with BareClient.connect(server.url) as bare:
                await bare.store(Block(b"PUB full _INBOX.stored 5\r\nlarge\r\n", 1))
