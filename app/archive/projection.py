"""Facts to rows: the part of a copy that needs neither the log nor the database."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from pydantic import ValidationError

from app.admission.backlog import Key
from app.archive.database.rows import Written
from app.archive.database.writing import Rows, rows_of
from app.deliberation.errors import UnexpectedFact
from app.deliberation.facts import decode
from app.deliberation.fold import State, state_of
from app.deliberation.ports import Record


class Projected(NamedTuple):
    """What is made of a deliberation's facts: its rows, or None with their `fault`.

    `unfinished_at` is the time of an end before which not all calls had an outcome.
    """

    key: Key
    rows: Rows | None = None
    unfinished_at: datetime | None = None
    fault: str = ""


def project(found: Sequence[tuple[Key, Sequence[Record]]], log: int, dialect: str) -> list[Projected]:
    """The rows of deliberations of the log with this number. Of each the facts are given, or at least its tombstone."""
    return [_project(key, records, log, dialect) for key, records in found]


def _project(key: Key, records: Sequence[Record], log: int, dialect: str) -> Projected:
    tombstone = next((record for record in records if record.tokens[-1] == "deleted"), None)
    if tombstone is not None:
        return _deleted(key, tombstone, log, dialect)
    try:
        state = state_of(records)
    except UnexpectedFact as exc:
        return Projected(key, fault=str(exc))
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
