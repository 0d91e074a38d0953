"""Files in the load, what clients know of each, and the check of what is stored of them at the end."""

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.log.inputs import CHUNK_BYTES, StoredInput

FILE_SHARE = 0.1
# Of files of several chunks, each is shared by the deliberations that happen to draw it.
FILES = 16
_FILE_BYTES = 2 * CHUNK_BYTES + 1_000

# Failures that kills, freezes and disconnections explain: an engine or a log that was away, or too many takeovers.
EXPLAINED = frozenset(
    {
        "call_cancelled",
        "call_failed",
        "call_timeout",
        "deadline_exceeded",
        "engine_unavailable",
        "no_answers",
        "poisoned",
    }
)

Messages = Mapping[str, bytes]
"""The stored messages of one input, by the tail of their subject."""


@dataclass(frozen=True, slots=True)
class LoadFile:
    """A text; all deliberations that name one which `goes` are deleted after their end."""

    content: bytes
    goes: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def id(self) -> str:
        return f"file-{self.sha256}"


def load_files(seed: int) -> list[LoadFile]:
    return [LoadFile(_text(f"{seed}/{number}"), goes=number % 2 == 1) for number in range(FILES)]


def own_file(name: str) -> LoadFile:
    """A file that no deliberation names, and that its client deletes."""
    return LoadFile(_text(name), goes=True)


def _text(name: str) -> bytes:
    return (name.encode() + b"\n" + random.Random(name).randbytes(_FILE_BYTES // 2).hex().encode())[:_FILE_BYTES]


@dataclass
class FileRecords:
    """What clients know: when they uploaded and deleted files, and which deliberations name files.

    `uploads` has when the last upload of a file was sent and when one was answered; `deletions` the same of what may
    remove it. Of files in `doubtful` an upload or a submission was never answered. A deliberation in `deleting` may be
    gone, one in `deleted` is.
    """

    uploads: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    deletions: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    named: dict[str, str] = field(default_factory=dict[str, str])
    doubtful: set[str] = field(default_factory=set[str])
    deleting: set[str] = field(default_factory=set[str])
    deleted: set[str] = field(default_factory=set[str])

    def uploaded(self, sha256: str, sent_at_s: float, answered_at_s: float) -> None:
        _note(self.uploads, sha256, sent_at_s, answered_at_s)

    def removed(self, sha256: str, sent_at_s: float, answered_at_s: float) -> None:
        _note(self.deletions, sha256, sent_at_s, answered_at_s)


def _note(moments: dict[str, tuple[float, float]], sha256: str, sent_at_s: float, answered_at_s: float) -> None:
    earlier = moments.get(sha256, (0.0, 0.0))
    moments[sha256] = max(earlier[0], sent_at_s), max(earlier[1], answered_at_s)


@dataclass
class FileFindings:
    """`whole` files are readable to the end, `gone` ones left nothing; `faults` are violated guarantees in words."""

    uploaded: int = 0
    named: int = 0
    deleted: int = 0
    whole: int = 0
    gone: int = 0
    faults: list[str] = field(default_factory=list[str])


def by_input(messages: Iterable[tuple[str, bytes]]) -> dict[str, dict[str, bytes]]:
    """The messages of the raw stream by their input: subjects are `inputs.<tenant>.<sha256>.<tail>`."""
    inputs = defaultdict[str, dict[str, bytes]](dict)
    for subject, data in messages:
        _, _, sha256, tail = subject.split(".", 3)
        inputs[sha256][tail] = data
    return dict(inputs)


def is_whole(sha256: str, messages: Messages) -> bool:
    """Whether all bytes of an input are stored, by its digest, and those of its form."""
    if "file" not in messages or "removed" in messages:
        return False
    file = StoredInput.model_validate_json(messages["file"]).file
    form = "original" if file.form_sha256 == sha256 else f"form.{file.form_sha256}"
    return _digest(messages, "original") == sha256 and _digest(messages, form) == file.form_sha256


def _digest(messages: Messages, part: str) -> str:
    digest, number = hashlib.sha256(), 0
    while (chunk := messages.get(f"{part}.{number}")) is not None:
        digest.update(chunk)
        number += 1
    return digest.hexdigest()


def check_files(
    records: FileRecords,
    inputs: Mapping[str, Messages],
    problems: Sequence[tuple[str, str]],
    with_facts: Collection[str],
) -> FileFindings:
    """Check the files of a run. `problems` are a deliberation and the code of each problem in its facts.

    `with_facts` are the deliberations that have more than a tombstone in the log.
    """
    findings = FileFindings(len(records.uploads), len(records.named), len(records.deleted))
    kept = {sha256 for id, sha256 in records.named.items() if id not in records.deleting}
    for sha256 in records.uploads:
        messages = inputs.get(sha256, {})
        # A use that comes after a removal holds nothing, and goes by a sweep.
        messages = {tail: data for tail, data in messages.items() if not tail.startswith("used.")}
        whole = is_whole(sha256, messages)
        findings.whole += whole
        findings.gone += not messages
        must_stand, must_be_gone = _expected(records, sha256, named=sha256 in kept)
        if must_stand and not whole:
            findings.faults.append(f"file {sha256[:12]} is not whole: {sorted(messages)}")
        elif must_be_gone and messages:
            findings.faults.append(f"file {sha256[:12]} was deleted, and left {sorted(messages)}")
        elif "file" in messages and "removed" not in messages and not whole:
            findings.faults.append(f"file {sha256[:12]} is half there: {sorted(messages)}")
    findings.faults += [f"deleted, with facts in the log: {id}" for id in sorted(records.deleted & {*with_facts})]
    findings.faults += [
        f"{id} names a file, and has the problem {code}"
        for id, code in problems
        if id in records.named and code not in EXPLAINED
    ]
    return findings


def _expected(records: FileRecords, sha256: str, *, named: bool) -> tuple[bool, bool]:
    """Whether a file must be whole, and whether nothing of it may be left; neither where both happened at once."""
    if named:
        return True, False
    sent_at_s, answered_at_s = records.uploads[sha256]
    deletion_sent_at_s, deleted_at_s = records.deletions.get(sha256, (0.0, 0.0))
    must_be_gone = answered_at_s < deletion_sent_at_s <= deleted_at_s and sent_at_s <= answered_at_s
    return sent_at_s > deleted_at_s, must_be_gone and sha256 not in records.doubtful


def problems_of(deliberation_id: str, data: bytes) -> tuple[str, str] | None:
    """The code of a fact's problem."""
    problem = json.loads(data).get("problem")
    return None if problem is None else (deliberation_id, problem["code"])
