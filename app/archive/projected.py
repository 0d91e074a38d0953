"""The rows of a deliberation's facts, or the fault that keeps it out of the archive."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from pydantic import ValidationError

from app.admission.backlog import Key
from app.archive.database.rows import Written
from app.archive.database.writing import Rows, rows_of
from app.deliberation.errors import UnexpectedFact, UnreadableFact
from app.deliberation.facts import decode
from app.deliberation.fold import State, state_of
from app.deliberation.ports import Record


class Projected(NamedTuple):
    """The rows of facts, or a `fault`. After an end at `unfinished_at` outcomes of calls may follow.

    A newer version may read `unreadable` facts.
    """

    key: Key
    rows: Rows | None = None
    unfinished_at: datetime | None = None
    fault: str = ""
    unreadable: bool = False


def project(facts: Sequence[tuple[Key, Sequence[Record]]], log: int, dialect: str) -> list[Projected]:
    return [_project(key, records, log, dialect) for key, records in facts]


def _project(key: Key, records: Sequence[Record], log: int, dialect: str) -> Projected:
    tombstone = next((record for record in records if record.tokens[-1] == "deleted"), None)
    if tombstone is not None:
        return _deleted(key, tombstone, log, dialect)
    try:
        state = state_of(records)
    except UnexpectedFact as exc:
        return Projected(key, fault=str(exc), unreadable=isinstance(exc, UnreadableFact))
    if state is None:
        return Projected(key, fault="its facts have left the log")
    written = Written(*key, at=state.accepted.ts, state=state, records=records)
    return Projected(key, rows_of(written, log, dialect), _unfinished_at(state))


def _deleted(key: Key, tombstone: Record, log: int, dialect: str) -> Projected:
    try:
        at = decode(tombstone.data).ts
    except ValidationError:
        return Projected(key, fault="its tombstone cannot be read")
    return Projected(key, rows_of(Written(*key, at=at), log, dialect))


def _unfinished_at(state: State) -> datetime | None:
    planned = {call.call_id for stage in state.stages for call in stage.opened.calls}
    return None if state.end is None or planned <= state.finished.keys() else state.end.ts
