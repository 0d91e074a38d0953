"""After chaos the check reports files that are lost, incomplete or left behind, and unexplained failures."""

import hashlib

import pytest

from app.log.inputs import StoredInput
from benchmarks.chaos.checker import Stored, check
from benchmarks.chaos.files import FileFindings, FileRecords, by_input, check_files, load_files
from tests.integration.log.input_files import NOW, described

CONTENT, FORM = b"first chunk, second chunk", b"its form"
FILE = described(CONTENT, FORM)
SHA256 = FILE.sha256
WHOLE = {
    "file": StoredInput(file=FILE, stored_at=NOW).model_dump_json().encode(),
    "original.0": CONTENT[:11],
    "original.1": CONTENT[11:],
    f"form.{FILE.form_sha256}.0": FORM,
    "used.upload": b"{}",
}
HALF = {tail: data for tail, data in WHOLE.items() if tail != "original.1"}


def records(named: str | None = None, *, deleted_at_s: float | None = None, deleted: bool = False) -> FileRecords:
    """One file, uploaded from 1 to 2 s."""
    known = FileRecords()
    known.uploaded(SHA256, 1.0, 2.0)
    if named is not None:
        known.named[named] = SHA256
    if deleted_at_s is not None:
        known.removed(SHA256, deleted_at_s, deleted_at_s + 1)
    if deleted and named is not None:
        known.deleting.add(named)
        known.deleted.add(named)
    return known


def found(known: FileRecords, messages: dict[str, bytes], *problems: tuple[str, str]) -> FileFindings:
    return check_files(known, {SHA256: messages} if messages else {}, problems, {"d1"} - known.deleted)


@pytest.mark.parametrize("known", [records(), records("d1"), records("d1", deleted_at_s=3.0)])
def test_a_file_that_should_stand_is_whole(known: FileRecords) -> None:
    findings = found(known, WHOLE)
    assert (findings.faults, findings.whole, findings.gone) == ([], 1, 0)
    for lost in ({}, HALF, WHOLE | {"original.1": b"?"}, WHOLE | {"removed": b"{}"}):
        (fault,) = found(known, lost).faults
        assert fault.startswith(f"file {SHA256[:12]} is not whole")


def test_nothing_is_left_of_what_was_deleted() -> None:
    for known in (records(deleted_at_s=3.0), records("d1", deleted_at_s=3.0, deleted=True)):
        assert (found(known, {}).faults, found(known, {}).gone) == ([], 1)
        assert found(known, {"used.d1": b"{}"}).faults == []
        for left in (WHOLE, {"original.1": b""}, {"removed": b"{}"}):
            (fault,) = found(known, left).faults
            assert "was deleted, and left" in fault


def test_what_was_uploaded_and_deleted_at_once_is_whole_or_gone() -> None:
    doubtful = records(deleted_at_s=3.0)
    doubtful.doubtful.add(SHA256)
    for known in (records(deleted_at_s=1.5), doubtful):
        assert found(known, WHOLE).faults == found(known, {}).faults == []
        (fault,) = found(known, HALF).faults
        assert "is half there" in fault


def test_an_upload_after_the_last_deletion_stands() -> None:
    known = records(deleted_at_s=3.0)
    known.uploaded(SHA256, 5.0, 6.0)
    assert found(known, WHOLE).faults == [] and len(found(known, {}).faults) == 1


def test_a_failure_that_chaos_does_not_explain_is_a_fault() -> None:
    explained, unexplained = ("d1", "engine_unavailable"), ("d1", "input_gone")
    assert found(records("d1"), WHOLE, explained).faults == []
    assert found(records("d1"), WHOLE, unexplained).faults == ["d1 names a file, and has the problem input_gone"]
    assert found(records(), WHOLE, unexplained).faults == [], "it names no file"


def test_facts_of_a_deleted_deliberation_are_a_fault() -> None:
    known = records("d1", deleted_at_s=3.0, deleted=True)
    assert check_files(known, {}, (), {"d1"}).faults == ["deleted, with facts in the log: d1"]
    end = Stored(("deliberations", "default", "d2", "accepted"), 1.0, "deliberation.accepted")
    findings = check(("d1",), [end], (), (), {"d1"})
    assert findings.lost == ["d2"], "what was deleted is not lost"
    findings.files.faults.append("a fault")
    assert "a fault" in findings.violations


def test_messages_are_sorted_by_their_inputs() -> None:
    subjects = [f"inputs.default.{SHA256}.{tail}" for tail in WHOLE]
    assert by_input(zip(subjects, WHOLE.values(), strict=True)) == {SHA256: WHOLE}


def test_the_files_of_a_seed_are_the_same_for_all_clients() -> None:
    files = load_files(1)
    assert [file.sha256 for file in files] == [hashlib.sha256(file.content).hexdigest() for file in load_files(1)]
    assert len({file.sha256 for file in files}) == len(files) and {file.goes for file in files} == {True, False}
