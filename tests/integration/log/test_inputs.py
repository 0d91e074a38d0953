"""Inputs are stored whole, are never removed while something needs them, and leave no bytes.

The store in memory keeps the same contract where it has one.
"""

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.deliberation.errors import JournalUnavailable, NotFound
from app.deliberation.specification import InputRef
from app.lifecycle.files import FileLimits, Files
from app.log.erasure import Erasure
from app.log.inputs import CHUNK_BYTES, CHUNKS_AT_ONCE, UPLOAD, InputLost, InputStore, InputUse
from app.log.journal import JetStreamJournal
from app.log.stream_settings import INPUTS_STREAM
from tests.conftest import NatsServer
from tests.fakes import FakeClock
from tests.integration.log.input_files import NOW, FixedClock, described, put
from tests.memory_inputs import MemoryInputs

LONG = bytes(range(256)) * (CHUNK_BYTES * 20 // 256) + b"the end"


async def read(store: InputStore, file: InputRef, part: Any) -> bytes:
    return b"".join([chunk async for chunk in store.chunks("t", file, part)])


async def never(_: InputUse) -> bool:
    return False


async def by_a_deliberation(use: InputUse) -> bool:
    return use.user != UPLOAD


@pytest.fixture(params=["real", "memory"])
def store(request: pytest.FixtureRequest, journal: JetStreamJournal) -> InputStore:
    return journal.inputs if request.param == "real" else MemoryInputs()


async def test_both_forms_come_back_as_they_were_stored(store: InputStore, tmp_path: Path) -> None:
    file = await put(store, tmp_path, LONG, b"read")
    assert await read(store, file, "original") == LONG
    assert await read(store, file, "form") == b"read"
    assert [stored.file for stored in await store.stored_of("t")] == [file]
    assert await store.stored_of("other") == [] and await store.find("other", file.sha256) is None


async def test_a_deliberation_keeps_an_input_until_it_is_gone(store: InputStore, tmp_path: Path) -> None:
    file = await put(store, tmp_path, b"text")
    assert await store.use("t", file.sha256, "d1", NOW) and await store.use("t", file.sha256, "d2", NOW)
    assert await store.used_by("t", "d1") == [file.sha256]
    assert not await store.remove("t", file.sha256, by_a_deliberation)
    await store.forget("t", file.sha256, "d1")
    assert {use.user for use in await store.uses("t", file.sha256)} == {UPLOAD, "d2"}
    assert await store.remove("t", file.sha256, never)
    assert await store.find("t", file.sha256) is None and await store.all_used() == []
    with pytest.raises(InputLost):
        await read(store, file, "original")


async def test_what_was_removed_takes_no_use(store: InputStore, tmp_path: Path) -> None:
    file = await put(store, tmp_path, b"text")
    assert await store.remove("t", file.sha256, never)
    assert not await store.use("t", file.sha256, "d1", NOW)


async def test_the_first_name_and_form_of_equal_bytes_stay(store: InputStore, tmp_path: Path) -> None:
    await put(store, tmp_path, b"text", b"read")
    (tmp_path / "form").write_bytes(b"read otherwise")
    again = described(b"text", b"read otherwise").model_copy(update={"name": "other"})
    stored = await store.store("t", again, tmp_path / "original", tmp_path / "form", FixedClock())
    assert stored.file.name == "a.bin"
    assert await read(store, stored.file, "form") == b"read"


async def test_an_upload_that_broke_off_leaves_its_form_to_no_other_upload(
    journal: JetStreamJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = journal.writes.write

    async def dies(subject: str, *record: Any) -> Any:
        if subject.endswith(".file"):
            raise ConnectionError
        return await write(subject, *record)

    with monkeypatch.context() as broken, pytest.raises(ConnectionError):
        broken.setattr(journal.writes, "write", dies)
        await put(journal.inputs, tmp_path, b"text", b"first reading")
    file = await put(journal.inputs, tmp_path, b"text", b"second")
    assert await read(journal.inputs, file, "form") == b"second"
    assert await journal.inputs.remove("t", file.sha256, never) and await bytes_of(journal) == 0


async def test_another_reading_of_stored_bytes_is_not_stored_beside_the_first(
    journal: JetStreamJournal, tmp_path: Path
) -> None:
    await put(journal.inputs, tmp_path, b"text", b"read")
    stored = await bytes_of(journal)
    await put(journal.inputs, tmp_path, b"text", b"read otherwise")
    assert await bytes_of(journal) == stored


async def mark_removed(journal: JetStreamJournal, sha256: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a removal, and die."""

    async def dies(_: str) -> None:
        raise ConnectionError

    with monkeypatch.context() as broken, pytest.raises(ConnectionError):
        broken.setattr(journal.inputs, "_finish_removal", dies)
        await journal.inputs.remove("t", sha256, never)


@pytest.mark.parametrize(
    "chunk", [pytest.param(CHUNKS_AT_ONCE - 1, id="goes on"), pytest.param(len(LONG) // CHUNK_BYTES, id="ends")]
)
async def test_an_upload_that_a_sweep_took_for_a_broken_one_is_no_success(
    journal: JetStreamJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    write, sha256 = journal.writes.write, described(LONG).sha256

    async def swept_meanwhile(subject: str, *record: Any) -> Any:
        appended = await write(subject, *record)
        if subject.endswith(f".original.{chunk}"):
            # The other chunks of the batch, and the use.
            await until_stored(journal, chunk + 2)
            await mark_removed(journal, sha256, monkeypatch)
        return appended

    with monkeypatch.context() as slow, pytest.raises(JournalUnavailable, match="removed while it was stored"):
        slow.setattr(journal.writes, "write", swept_meanwhile)
        await put(journal.inputs, tmp_path, LONG)
    # Whoever began the removal ends it, and spares what was written after the mark.
    await journal.inputs._finish_removal(f"inputs.t.{sha256}")  # pyright: ignore[reportPrivateUsage]
    assert await journal.inputs.all_used() == [("t", sha256)], "a sweep finds it"
    assert await journal.inputs.remove("t", sha256, never) and await bytes_of(journal) == 0


async def test_a_long_upload_says_that_it_goes_on(journal: JetStreamJournal, tmp_path: Path) -> None:
    times, uses = iter([NOW + timedelta(minutes=minutes) for minutes in range(9)]), list[dict[str, Any]]()

    class Passing:
        def now(self) -> datetime:
            return next(times)

    (tmp_path / "long").write_bytes(LONG)
    sha256 = described(LONG).sha256
    heard = await journal.client.subscribe(f"inputs.t.{sha256}.used.{UPLOAD}")
    await journal.client.flush()
    await journal.inputs.store("t", described(LONG), tmp_path / "long", tmp_path / "long", Passing())
    while heard.pending_msgs:
        uses.append(json.loads((await heard.next_msg()).data))
    minutes = [(datetime.fromisoformat(use["at"]) - NOW).total_seconds() / 60 for use in uses]
    assert (minutes, [use["storing"] for use in uses]) == ([1, 2, 3], [True, True, False])


async def until_stored(journal: JetStreamJournal, messages: int) -> None:
    while await bytes_of(journal) < messages:
        await asyncio.sleep(0)


async def bytes_of(journal: JetStreamJournal) -> int:
    info = await journal.request(f"$JS.API.STREAM.INFO.{INPUTS_STREAM}")
    return info["state"]["messages"]


async def test_what_is_not_whole_is_not_read(journal: JetStreamJournal, tmp_path: Path) -> None:
    file = await put(journal.inputs, tmp_path, b"text", b"read")
    chunk = f"inputs.t.{file.sha256}.form.{file.form_sha256}.0"
    await journal.client.publish(chunk, b"rea", headers=journal.signer.headers(chunk, b"rea"))
    await journal.client.flush()
    with pytest.raises(InputLost, match="is not what was stored"):
        await read(journal.inputs, file, "form")
    await journal.request(f"$JS.API.STREAM.PURGE.{INPUTS_STREAM}", json.dumps({"filter": chunk}).encode())
    with pytest.raises(InputLost, match="chunk 0"):
        await read(journal.inputs, file, "form")
    assert await read(journal.inputs, file, "original") == b"text"


async def test_a_removal_leaves_no_message_and_no_bytes(
    journal: JetStreamJournal, own_nats_server: NatsServer, tmp_path: Path
) -> None:
    canary = b"canary-of-an-input " * 20_000
    file = await put(journal.inputs, tmp_path, canary, canary.upper())
    await journal.inputs.use("t", file.sha256, "d1", NOW)
    assert await journal.inputs.remove("t", file.sha256, never)
    assert await bytes_of(journal) == 0
    blocks = [path.read_bytes() for path in own_nats_server.store.rglob("*.blk") if INPUTS_STREAM in str(path)]
    assert blocks and not any(canary[:19] in block or canary[:19].upper() in block for block in blocks)


async def test_a_use_that_comes_during_the_look_prevents_the_removal(journal: JetStreamJournal, tmp_path: Path) -> None:
    file = await put(journal.inputs, tmp_path, b"text")

    async def used_meanwhile(_: InputUse) -> bool:
        assert await journal.inputs.use("t", file.sha256, "late", NOW)
        return False

    assert not await journal.inputs.remove("t", file.sha256, used_meanwhile)
    assert await read(journal.inputs, file, "form") == b"text"


async def test_an_interrupted_removal_is_finished_by_whoever_comes_next(
    journal: JetStreamJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await put(journal.inputs, tmp_path, b"text")
    await mark_removed(journal, file.sha256, monkeypatch)
    assert await journal.inputs.find("t", file.sha256) is None
    assert not await journal.inputs.use("t", file.sha256, "d1", NOW), "what is being removed takes no new use"
    again = await put(journal.inputs, tmp_path, b"text")
    assert await read(journal.inputs, again, "form") == b"text"
    assert await journal.inputs.find("t", file.sha256) is not None


async def test_a_removal_that_is_cut_anywhere_is_found_by_its_uses_until_nothing_is_left(
    journal: JetStreamJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    erase = Erasure.erase
    for erasures in range(6):
        file, left = await put(journal.inputs, tmp_path, b"text", b"read"), iter(range(erasures))
        await journal.inputs.use("t", file.sha256, "d1", NOW)

        async def dies(self: Erasure, stream: str, sequence: int, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise ConnectionError
            await erase(self, stream, sequence)

        with monkeypatch.context() as broken, pytest.raises(ConnectionError):
            broken.setattr(Erasure, "erase", dies)
            await journal.inputs.remove("t", file.sha256, never)
        assert await journal.inputs.used_by("t", "d1") == [file.sha256]
        assert await journal.inputs.remove("t", file.sha256, never) and await bytes_of(journal) == 0


async def test_a_repeated_deletion_finishes_one_that_was_cut_anywhere(
    journal: JetStreamJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, erase = Files(journal, journal.inputs, FakeClock(), FileLimits(1_000, 1_000)), Erasure.erase
    for erasures in range(4):
        file, left = await put(journal.inputs, tmp_path, b"text", b"read"), iter(range(erasures))

        async def dies(self: Erasure, stream: str, sequence: int, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise ConnectionError
            await erase(self, stream, sequence)

        with monkeypatch.context() as broken, pytest.raises(ConnectionError):
            broken.setattr(Erasure, "erase", dies)
            await files.delete("t", f"file-{file.sha256}")
        with pytest.raises(NotFound):
            await files.delete("t", f"file-{file.sha256}")
        assert await bytes_of(journal) == 0


async def test_uploads_of_the_same_bytes_at_once_store_them_once(journal: JetStreamJournal, tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(4)]
    for folder in folders:
        folder.mkdir()
    files = await asyncio.gather(*(put(journal.inputs, folder, LONG) for folder in folders))
    assert len({file.sha256 for file in files}) == 1
    assert await bytes_of(journal) == 21 + len(("file", UPLOAD))
    assert await read(journal.inputs, files[0], "original") == LONG
