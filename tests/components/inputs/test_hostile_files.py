"""What a hostile file costs ends with its child, and no error but a refusal comes of any file."""

import asyncio
import os
import random
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest

from app.bounded_child import ChildLimits
from app.inputs import reading
from app.inputs.reading import InputRefused
from tests.components.inputs.files import Spool, pdf, pdf_of_streams, picture, stream, with_member, word

COSTLY = pdf_of_streams([stream(b"BT /F1 1 Tf " + b"(a) Tj " * 4_000_000 + b"ET")])


def children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


async def test_what_takes_too_long_is_refused(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "WITHIN_S", 0.01)
    assert (await spool.refusal(COSTLY)).code == "file_too_costly"
    assert not children()


async def test_what_takes_too_much_of_the_processor_is_refused(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LIMITS", ChildLimits(1 << 30, 1 << 20, processes=1, cpu_s=1))
    assert (await spool.refusal(COSTLY)).code == "file_too_costly"


async def test_what_takes_too_much_memory_is_refused(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LIMITS", ChildLimits(160 << 20, 1 << 20, processes=1))
    data = picture("PNG", size=(5_000, 5_000))
    assert (await spool.refusal(data)).code == "file_too_costly"


async def test_a_child_that_is_killed_leaves_no_file(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed while it writes: beyond the bytes of a file."""
    monkeypatch.setattr(reading, "LIMITS", ChildLimits(1 << 30, 256 << 10, processes=1))
    with pytest.raises(OSError, match="File too large"):
        await spool.read("ä".encode("utf-16") + b"a\0" * 300_000)
    assert list(spool.directory.iterdir()) == [spool.source]


async def test_a_reader_that_cannot_start_is_no_fault_of_the_file(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LIMITS", ChildLimits(40 << 20, 1 << 20, processes=1))
    with pytest.raises(OSError, match="does not start"):
        await spool.read(pdf(["text"]))


async def test_a_reading_that_is_cancelled_leaves_no_child_and_no_file(spool: Spool) -> None:
    task = asyncio.create_task(spool.read(COSTLY))
    while not children():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not children()
    assert list(spool.directory.iterdir()) == [spool.source]


def mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 4, 32))):
        changed[chance.randrange(8, len(changed))] = chance.randrange(256)
    return bytes(changed[: chance.randrange(8, len(changed))] if chance.random() < 0.25 else changed)


def changed_word(data: bytes, chance: random.Random) -> bytes:
    """The archive is sound, and a part of it is not."""
    name = chance.choice(("word/document.xml", "word/styles.xml", "word/numbering.xml", "[Content_Types].xml"))
    with ZipFile(BytesIO(data)) as archive:
        return with_member(data, name, mutated(archive.read(name), chance))


@pytest.mark.parametrize(
    ("data", "change"),
    [
        (pdf(["some text", "(more)"], ["second"]), mutated),
        (word("first", "second"), mutated),
        (word("first", "second"), changed_word),
        (picture("PNG"), mutated),
        (picture("JPEG"), mutated),
        (picture("GIF"), mutated),
    ],
    ids=["pdf", "docx", "docx part", "png", "jpeg", "gif"],
)
async def test_a_changed_file_is_read_or_refused(
    tmp_path: Path, data: bytes, change: Callable[[bytes, random.Random], bytes]
) -> None:
    chance = random.Random(20_261_129)

    async def outcome(number: int, changed: bytes) -> str:
        spool = Spool(tmp_path / str(number))
        spool.directory.mkdir()
        try:
            return (await spool.read(changed)).kind
        except InputRefused as refused:
            return refused.code

    changes = [change(data, chance) for _ in range(6)]
    outcomes = {*await asyncio.gather(*(outcome(number, changed) for number, changed in enumerate(changes)))}
    assert outcomes & {"broken_file", "text", "picture"}
    assert not children()
