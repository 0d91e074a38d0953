"""Files of a tenant: their quota, and how long they live with and without deliberations that name them."""

import asyncio
import os
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from app.api.problems import FilesFull, StillLive, ValidationFailed
from app.deliberation.errors import JournalUnavailable, NotFound
from app.deliberation.facts import Deleted
from app.lifecycle.files import SWEEP_S, UNUSED_FOR, YOUNG, FileLimits, Files, digest_of
from app.log.inputs import UPLOAD, InputUse, StoredInput
from tests.contracts.journal_facts import accepted
from tests.fakes import FakeClock, InMemoryJournal

TENANT = "default"
FILE_BYTES, TENANT_BYTES = 100, 100


@dataclass
class Uploads:
    """The files of a gateway, and the steps of their lives."""

    folder: Path
    journal: InMemoryJournal = field(default_factory=InMemoryJournal)
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.store = self.journal.inputs
        self.files = Files(self.journal, self.store, self.clock, FileLimits(FILE_BYTES, TENANT_BYTES))

    async def upload(self, content: bytes = b"text", tenant: str = TENANT, declared: str | None = None) -> StoredInput:
        path = self.folder / "upload"
        path.write_bytes(content)
        return await self.files.add(tenant, path, "notes.txt", declared)

    async def accept(self, deliberation_id: str, *uploads: StoredInput) -> None:
        await self.files.hold(TENANT, deliberation_id, [upload.file for upload in uploads])
        await self.journal.append(TENANT, accepted(deliberation_id))

    async def remove_facts(self, deliberation_id: str) -> None:
        """What a deletion does before it releases the files: the tombstone stays."""
        await self.journal.append(TENANT, Deleted(deliberation_id=deliberation_id, ts=self.clock.now()))
        await self.journal.purge(TENANT, deliberation_id)

    async def sweep_after(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.files.sweep_once()

    @property
    def stored(self) -> set[str]:
        return {sha256 for _, sha256 in self.store.files}


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(tmp_path)


def id_of(upload: StoredInput) -> str:
    return f"file-{upload.file.sha256}"


UNUSED_S, YOUNG_S = UNUSED_FOR.total_seconds(), YOUNG.total_seconds()


async def test_a_tenant_has_a_share_and_others_keep_theirs(uploads: Uploads) -> None:
    await uploads.upload(b"a" * 60)
    with pytest.raises(FilesFull, match="60 of 100 bytes"):
        await uploads.upload(b"b" * 41)
    await uploads.upload(b"b" * 40)
    await uploads.upload(b"c" * 100, tenant="other")
    assert len(await uploads.files.all(TENANT)) == 2 and len(await uploads.files.all("other")) == 1


async def test_the_same_bytes_count_once_and_fit_a_full_share(uploads: Uploads) -> None:
    first = await uploads.upload(b"a" * 100)
    assert (await uploads.upload(b"a" * 100)).file == first.file
    assert len(await uploads.files.all(TENANT)) == 1


async def test_what_agents_read_counts_where_it_is_stored_beside_the_file(uploads: Uploads) -> None:
    text = "ä" * 30
    await uploads.upload(text.encode("latin-1"), declared="text/plain; charset=latin-1")
    with pytest.raises(FilesFull, match="90 of 100 bytes"):
        await uploads.upload(b"b" * 11)


async def test_a_removed_file_gives_its_share_back(uploads: Uploads) -> None:
    first = await uploads.upload(b"a" * 100)
    await uploads.files.delete(TENANT, id_of(first))
    await uploads.upload(b"b" * 100)
    with pytest.raises(NotFound):
        await uploads.files.find(TENANT, id_of(first))


async def test_an_id_is_good_for_its_tenant_alone(uploads: Uploads) -> None:
    upload = await uploads.upload()
    for file_id in (id_of(upload), "file-0", f"file-{'0' * 64}", upload.file.sha256, f"{id_of(upload)}\n"):
        with pytest.raises(NotFound):
            await uploads.files.find("other", file_id)
    assert digest_of(id_of(upload)) == upload.file.sha256 and digest_of("file-..") is None


async def test_a_file_that_no_deliberation_names_goes_after_an_hour(uploads: Uploads) -> None:
    upload = await uploads.upload()
    shown = await uploads.files.shown(TENANT, upload)
    assert shown.expires_at == uploads.clock.now() + UNUSED_FOR
    await uploads.sweep_after(UNUSED_S - 1)
    assert uploads.stored == {upload.file.sha256}
    await uploads.sweep_after(1)
    assert uploads.stored == set() and await uploads.store.all_used() == []


async def test_an_upload_of_the_same_bytes_begins_the_hour_anew(uploads: Uploads) -> None:
    upload = await uploads.upload()
    uploads.clock.advance(UNUSED_S - 1)
    again = await uploads.upload()
    assert again.stored_at == upload.stored_at
    assert (await uploads.files.shown(TENANT, again)).expires_at == uploads.clock.now() + UNUSED_FOR
    await uploads.sweep_after(UNUSED_S - 1)
    assert uploads.stored == {upload.file.sha256}


async def test_a_named_file_lives_as_long_as_the_facts(uploads: Uploads) -> None:
    upload = await uploads.upload()
    await uploads.accept("d1", upload)
    assert (await uploads.files.shown(TENANT, upload)).expires_at is None
    await uploads.sweep_after(timedelta(days=30).total_seconds())
    assert uploads.stored == {upload.file.sha256}
    uploads.journal.records.clear()
    await uploads.sweep_after(0)
    assert uploads.stored == set()


async def test_a_use_without_an_acceptance_counts_while_it_may_be_on_its_way(uploads: Uploads) -> None:
    upload = await uploads.upload()
    uploads.clock.advance(UNUSED_S)
    await uploads.files.hold(TENANT, "d1", [upload.file])
    await uploads.sweep_after(YOUNG_S - 1)
    assert uploads.stored == {upload.file.sha256}
    with pytest.raises(StillLive):
        await uploads.files.delete(TENANT, id_of(upload))
    await uploads.sweep_after(1)
    assert uploads.stored == set()


async def test_an_upload_that_never_ended_goes_sooner_than_a_file(uploads: Uploads) -> None:
    upload = await uploads.upload()
    storing = InputUse(UPLOAD, uploads.clock.now(), storing=True)
    uploads.store.storing.add((TENANT, upload.file.sha256))
    assert await uploads.store.uses(TENANT, upload.file.sha256) == [storing]
    await uploads.sweep_after(YOUNG_S - 1)
    with pytest.raises(StillLive):
        await uploads.files.delete(TENANT, id_of(upload))
    assert uploads.stored == {upload.file.sha256}
    await uploads.sweep_after(1)
    assert uploads.stored == set()


async def test_a_named_file_is_not_deleted_and_an_unnamed_one_is(uploads: Uploads) -> None:
    named, unnamed = await uploads.upload(b"named"), await uploads.upload(b"unnamed")
    await uploads.accept("d1", named)
    uploads.clock.advance(YOUNG_S)
    with pytest.raises(StillLive, match=id_of(named)):
        await uploads.files.delete(TENANT, id_of(named))
    await uploads.files.delete(TENANT, id_of(unnamed))
    assert uploads.stored == {named.file.sha256}
    with pytest.raises(NotFound):
        await uploads.files.delete("other", id_of(named))


async def test_what_is_being_deleted_takes_no_deliberation(uploads: Uploads) -> None:
    upload = await uploads.upload()
    await uploads.files.delete(TENANT, id_of(upload))
    with pytest.raises(ValidationFailed) as refused:
        await uploads.files.hold(TENANT, "d1", [upload.file])
    (fault,) = refused.value.errors
    assert (fault.pointer, fault.code) == ("/evidence", "unknown_file")


async def test_the_deletion_of_the_last_deliberation_removes_its_files(uploads: Uploads) -> None:
    shared, own = await uploads.upload(b"shared"), await uploads.upload(b"own")
    await uploads.accept("d1", shared, own)
    await uploads.accept("d2", shared)
    await uploads.remove_facts("d1")
    await uploads.files.release(TENANT, "d1")
    assert uploads.stored == {shared.file.sha256}
    assert {use.user for use in await uploads.store.uses(TENANT, shared.file.sha256)} == {UPLOAD, "d2"}
    await uploads.remove_facts("d2")
    await uploads.files.release(TENANT, "d2")
    assert uploads.stored == set()


async def test_deletions_at_once_of_all_that_name_a_file_remove_it(uploads: Uploads) -> None:
    upload = await uploads.upload()
    await uploads.accept("d1", upload)
    await uploads.accept("d2", upload)
    await uploads.remove_facts("d1")
    await uploads.remove_facts("d2")
    await uploads.files.release(TENANT, "d1")
    assert uploads.stored == set()
    await uploads.files.release(TENANT, "d2")


async def test_a_release_spares_what_is_uploaded_or_held_at_the_moment(uploads: Uploads) -> None:
    storing, held = await uploads.upload(b"storing"), await uploads.upload(b"held")
    await uploads.accept("d1", storing, held)
    uploads.store.storing.add((TENANT, storing.file.sha256))
    await uploads.files.hold(TENANT, "d2", [held.file])
    await uploads.remove_facts("d1")
    await uploads.files.release(TENANT, "d1")
    assert uploads.stored == {storing.file.sha256, held.file.sha256}


async def test_an_interrupted_release_is_finished_by_the_sweep(uploads: Uploads) -> None:
    upload = await uploads.upload()
    await uploads.accept("d1", upload)
    await uploads.remove_facts("d1")
    await uploads.sweep_after(UNUSED_S)
    assert uploads.stored == set()


def spool(folder: Path, name: str, changed_at_s: float) -> None:
    """A temporary file, a directory and a link of this name, last changed at a time."""
    (folder / name).write_text("spooled")
    (folder / f"{name}-directory").mkdir()
    (folder / f"{name}-directory" / "form").write_text("form")
    (folder / f"{name}-link").symlink_to(folder / "elsewhere")
    for path in folder.glob(f"{name}*"):
        os.utime(path, (changed_at_s, changed_at_s), follow_symlinks=False)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_what_killed_gateways_left_among_temporary_files_goes(
    uploads: Uploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    now_s = uploads.clock.now().timestamp()
    spool(tmp_path, "deliberate-upload-old", now_s - UNUSED_S - 1)
    spool(tmp_path, "deliberate-upload-young", now_s - UNUSED_S)
    spool(tmp_path, "another-old", now_s - 10 * UNUSED_S)
    (tmp_path / "elsewhere").write_text("kept")
    await uploads.files.sweep_once()
    kept = ("deliberate-upload-young", "another-old")
    assert names_in(tmp_path) == {"elsewhere"} | {
        f"{name}{end}" for name in kept for end in ("", "-directory", "-link")
    }


async def test_the_sweep_goes_on_after_a_log_that_was_away(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    await uploads.upload()
    uploads.clock.advance(UNUSED_S)
    swept, waits, all_used = asyncio.Event(), list[float](), uploads.store.all_used

    async def away_at_first() -> list[tuple[str, str]]:
        if len(waits) == 1:
            raise JournalUnavailable("away")
        swept.set()
        return await all_used()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if swept.is_set():
            await asyncio.Event().wait()

    monkeypatch.setattr(uploads.store, "all_used", away_at_first)
    monkeypatch.setattr("app.lifecycle.files.asyncio.sleep", sleep)
    sweeping = asyncio.create_task(uploads.files.sweep())
    async with asyncio.timeout(30):
        await swept.wait()
    sweeping.cancel()
    assert waits[:2] == [SWEEP_S] * 2
