"""The archive as lines of JSON, for `deliberate export` and `deliberate import`.

The first line names format and logs, oldest first; each further one is a deliberation with its facts, or a
tombstone; the last counts them. Facts keep their sequences, so event ids stay the same.
"""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json

from app.api.cursor import EPOCH_PATTERN
from app.archive.database.rows import Written
from app.archive.database.store import ArchivedRow, RowFilter, Store
from app.deliberation.errors import DeliberationError, InvalidRequest, UnexpectedFact
from app.deliberation.facts import NewerEvent, decode, prefix, suffix
from app.deliberation.fold import state_of
from app.deliberation.ports import Record
from app.deliberation.specification import Token

FORMAT = "deliberate.archive"
FORMAT_VERSION = 1
# A batch is written when it holds this many deliberations, or this many bytes.
BATCH_MAX = 256
BATCH_BYTES_MAX = 8_000_000
AGAIN = "Export the archive again."
# An import's times may be as much later than its clock as another machine's clock is ahead, and a deadline behind.
LEAD_MAX = timedelta(days=1)
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Header(_Line):
    format: Literal["deliberate.archive"]
    version: Literal[1]
    logs: tuple[Annotated[str, Field(pattern=EPOCH_PATTERN)], ...]


class ExportedDeliberation(_Line):
    tenant: Token
    id: Token
    log: str
    facts: tuple[tuple[Annotated[int, Field(ge=1, lt=1 << 44)], dict[str, Any]], ...] = Field(min_length=1)


class ExportedTombstone(_Line):
    tenant: Token
    id: Token
    deleted_at: AwareDatetime


class Footer(_Line):
    deliberations: int
    tombstones: int


AnyLine = Header | ExportedDeliberation | ExportedTombstone | Footer
_KINDS: dict[str, type[AnyLine]] = {
    "facts": ExportedDeliberation,
    "deleted_at": ExportedTombstone,
    "deliberations": Footer,
}
"""Each kind of line has one of these keys; a header has none."""


def _line(row: ArchivedRow) -> bytes:
    begin = f'{{"tenant":"{row.tenant}","id":"{row.deliberation_id}",'
    if row.archived is None:
        return f'{begin}"deleted_at":"{row.at.isoformat()}"}}\n'.encode()
    facts = b",".join(b"[%d,%s]" % (record.sequence, record.data) for record in row.archived.records)
    return b'%s"log":"%s","facts":[%s]}\n' % (begin.encode(), row.archived.epoch.encode(), facts)


async def export_archive(store: Store, chosen: RowFilter, counts: Counter[str]) -> AsyncGenerator[bytes]:
    """Yields the lines; raises ArchiveUnavailable. `counts` counts them, and the `unfinished`, which are left out."""
    yield to_json({"format": FORMAT, "version": FORMAT_VERSION, "logs": await store.logs()}) + b"\n"
    async with aclosing(store.rows(chosen)) as rows:
        async for row in rows:
            kind = "tombstones" if row.deleted else "unfinished" if row.archived is None else "deliberations"
            counts[kind] += 1
            if kind != "unfinished":
                yield _line(row)
    yield to_json({"deliberations": counts["deliberations"], "tombstones": counts["tombstones"]}) + b"\n"


def _read(number: int, line: bytes) -> AnyLine:
    try:
        document: Any = from_json(line)
        kind = next((form for key, form in _KINDS.items() if isinstance(document, dict) and key in document), Header)
        return kind.model_validate(document)
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, fault["loc"])) or "the line"
        raise InvalidRequest(f"Line {number} is no line of an export: {where}: {fault['msg']}. {AGAIN}") from exc
    except ValueError as exc:
        raise InvalidRequest(f"Line {number} is not JSON: {exc}. {AGAIN}") from exc


def _check_times(number: int, event: BaseModel, now: datetime) -> None:
    for name in type(event).model_fields:
        at = getattr(event, name)
        if isinstance(at, datetime) and not EARLIEST <= at <= now + LEAD_MAX:
            detail = f"Line {number} has a time in {name} that no deliberation has: {at:%Y-%m-%d}"
            raise InvalidRequest(f"{detail}. {AGAIN}")


def _written(number: int, exported: ExportedDeliberation, now: datetime) -> Written:
    """Returns the deliberation of a line; raises InvalidRequest unless its facts reach from acceptance to end."""
    records, stem = list[Record](), prefix(exported.tenant, exported.id)
    try:
        for sequence, fact in exported.facts:
            data = to_json(fact)
            event = decode(data)
            if isinstance(event, NewerEvent):
                raise InvalidRequest(
                    f"Line {number} holds what is no fact to this version, in deliberation {exported.id}. Import it by "
                    "the version that exported it, or a newer one."
                )
            if event.deliberation_id != exported.id or (records and sequence <= records[-1].sequence):
                raise UnexpectedFact(f"fact {sequence} is out of place")
            _check_times(number, event, now)
            records.append(Record(f"{stem}.{suffix(event)}", sequence, data))
        if len({record.subject for record in records}) < len(records):
            raise UnexpectedFact("a fact stands there twice")
        state = state_of(records)
    except ValidationError as exc:
        raise InvalidRequest(f"Line {number} holds what is no fact, in deliberation {exported.id}. {AGAIN}") from exc
    except InvalidRequest:
        raise
    except DeliberationError as exc:
        raise InvalidRequest(f"Line {number} holds no deliberation, in {exported.id}: {exc}. {AGAIN}") from exc
    if state is None or not state.ended:
        raise InvalidRequest(f"Line {number} holds deliberation {exported.id} without acceptance or end. {AGAIN}")
    return Written(exported.tenant, exported.id, at=state.accepted.ts, state=state, records=records)


@dataclass(slots=True)
class _Batch:
    store: Store
    of_log: dict[str, list[Written]] = field(default_factory=dict[str, list[Written]])
    keys: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    size: int = 0

    def add(self, number: int, log: str, written: Written, size: int) -> None:
        key = written.tenant, written.deliberation_id
        if key in self.keys:
            raise InvalidRequest(f"Line {number} repeats deliberation {written.deliberation_id}. {AGAIN}")
        self.keys.add(key)
        self.of_log.setdefault(log, []).append(written)
        self.size += size

    async def write(self) -> None:
        for log, written in self.of_log.items():
            await self.store.write(log, written)


async def _register_logs(store: Store, header: Header) -> None:
    known = await store.logs()
    common = min(len(known), len(header.logs))
    if known[:common] != list(header.logs[:common]):
        raise InvalidRequest("The archive holds deliberations of other logs. Import into a new, empty database.")
    for epoch in header.logs:
        await store.log_number(epoch)


class Imported(NamedTuple):
    counts: Counter[str]
    oldest: datetime | None


async def import_archive(store: Store, lines: AsyncIterable[bytes], now: datetime) -> Imported:
    """Write an export at a time; a newer row stays. The lines before a fault were imported.

    Raises ArchiveUnavailable, ArchiveRefused, and InvalidRequest for no export.
    """
    batch, counts = _Batch(store), Counter[str]()
    header: Header | None = None
    footer: Footer | None = None
    oldest: datetime | None = None
    number = 0
    async for line in lines:
        number += 1
        parsed = _read(number, line)
        if isinstance(parsed, Header) != (number == 1) or footer is not None:
            raise InvalidRequest(f"Line {number} is out of place. {AGAIN}")
        match parsed:
            case Header():
                header = parsed
                await _register_logs(store, header)
            case ExportedDeliberation():
                if header is None or parsed.log not in header.logs:
                    raise InvalidRequest(f"Line {number} names a log that the first line lacks. {AGAIN}")
                written = _written(number, parsed, now)
                batch.add(number, parsed.log, written, len(line))
                oldest = min(oldest or written.at, written.at)
                counts["deliberations"] += 1
            case ExportedTombstone():
                _check_times(number, parsed, now)
                batch.add(number, "", Written(parsed.tenant, parsed.id, at=parsed.deleted_at), len(line))
                counts["tombstones"] += 1
            case Footer():
                footer = parsed
        if len(batch.keys) >= BATCH_MAX or batch.size >= BATCH_BYTES_MAX:
            await batch.write()
            batch = _Batch(store)
    await batch.write()
    if footer is None or counts != Counter(footer.model_dump()):
        raise InvalidRequest(f"The export is not complete: its last line is missing or counts others. {AGAIN}")
    return Imported(counts, oldest)
