"""A deliberation as columns and labels. Clients' text stands in ASCII JSON, as PostgreSQL refuses some of it."""

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b

from app.api.schemas import StageProgress
from app.archive.database.tables import VERSION_MAX, deliberations, position
from app.catalog.entries import headline
from app.deliberation.calls import Usage
from app.deliberation.facts import StageOpened, prefix
from app.deliberation.fold import State
from app.deliberation.ports import Record

DELETED = "deleted"
_TENANT_AND_ID = 3
# Takes a third of the time of the default, for values that are 12 % larger.
_LEVEL = 2
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Written:
    """A deliberation as of its newest fact. `state` is None for a tombstone, written at `at`."""

    tenant: str
    deliberation_id: str
    at: datetime
    state: State | None = None
    records: Sequence[Record] = ()


def microseconds(at: datetime) -> int:
    since = at - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def instant(since_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=since_us)


def maybe_microseconds(at: datetime | None) -> int | None:
    return None if at is None else microseconds(at)


def row_of(written: Written, log: int) -> dict[str, object]:
    """Returns the columns of a deliberation of the log with this number; a tombstone belongs to no log."""
    row: dict[str, object] = {name: None for name in deliberations.columns.keys()}
    row |= {"tenant": written.tenant, "id": written.deliberation_id}
    state = written.state
    if state is None:
        return row | {"version": VERSION_MAX, "created_us": microseconds(written.at), "status": DELETED, "log": 0}
    specification = state.specification
    roles = Counter(agent.role for agent in specification.agents)
    summary: dict[str, object] = {
        "task": headline(specification.task),
        "roles": roles,
        "metadata": specification.metadata,
    }
    if state.end is not None:
        usage = Usage.total([finished.usage for finished in state.finished.values()])
        summary["usage"] = usage.model_dump(mode="json", exclude_defaults=True)
        summary["winner"] = state.end.verdict and state.end.verdict.winner
        summary["degraded"] = state.end.degraded is not None
    opened = state.stages[-1].opened if state.stages and not state.ended else None
    return row | {
        "version": position(log, state.last_sequence),
        "accepted": position(log, written.records[0].sequence),
        "created_us": microseconds(state.accepted.ts),
        "started_us": maybe_microseconds(state.started_at),
        "ended_us": None if state.end is None else microseconds(state.end.ts),
        "status": state.status,
        "log": log,
        "strategy": specification.strategy,
        "progress": opened and progress_of(opened),
        "summary": json.dumps(summary, separators=(",", ":")),
        "facts": pack_facts(written.records) if state.ended else None,
    }


def progress_of(opened: StageOpened) -> str:
    """Returns the column `progress`, with which `StageProgress` is read again."""
    calls_total = len(opened.calls)
    return StageProgress(
        stage=opened.stage, purpose=opened.purpose, round=opened.round, calls_total=calls_total
    ).model_dump_json()


def pack_facts(records: Sequence[Record]) -> bytes:
    """Returns facts as one compressed value: a line for each, with its sequence, subject's tail and JSON."""
    lines = (b"%d %s %s" % (record.sequence, _tail(record).encode(), record.data) for record in records)
    return zlib.compress(b"\n".join(lines), _LEVEL)


def unpack_facts(tenant: str, deliberation_id: str, packed: bytes) -> list[Record]:
    stem, records = prefix(tenant, deliberation_id), list[Record]()
    for line in zlib.decompress(packed).split(b"\n"):
        sequence, tail, data = line.split(b" ", 2)
        records.append(Record(f"{stem}.{tail.decode()}", int(sequence), data))
    return records


def _tail(record: Record) -> str:
    return record.subject.split(".", _TENANT_AND_ID)[_TENANT_AND_ID]


def storable(name: str) -> str:
    return name.replace("\0", "")


@lru_cache(maxsize=4_096)
def label(tenant: str, parameter: str, value: str) -> int:
    """Returns the 64 bits by which a list finds a value. Two values may collide, so a reader compares them too."""
    text = json.dumps([tenant, parameter, value]).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), signed=True)


def labels_of(tenant: str, state: State) -> set[int]:
    specification = state.specification
    labels = {label(tenant, "strategy", specification.strategy)}
    labels |= {label(tenant, "role", agent.role) for agent in specification.agents}
    return labels | {label(tenant, f"metadata.{name}", value) for name, value in specification.metadata.items()}
