"""The request of a viewer, and the position in the log at which its stream or page begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from app.api.cursor import BEGINNING, Cursor
from app.api.event_schemas import StreamGap
from app.api.schemas import Status
from app.deliberation.ports import Record, StreamState
from app.log.paging import Patterns, of_deliberations, of_tenant
from app.log.text_viewers import Keys, keys_of
from app.streaming.frames import EventSelection
from app.streaming.snapshots import SnapshotKey, SnapshotSet


@dataclass(frozen=True, slots=True)
class EventsRequest:
    """The events that a viewer requests. `ids` is empty for every deliberation of the tenant, `statuses` for any.

    A `single` stream is about one deliberation: its control events name it, it always sends the terminal event, and
    nothing follows that. `cursor` is None when the viewer has none. With `answers`, calls show their growing answers in
    place of their raw texts.
    """

    tenant: str
    ids: frozenset[str]
    selection: EventSelection
    cursor: Cursor | None
    statuses: frozenset[Status] = frozenset()
    single: bool = False
    answers: bool = False

    @property
    def deliberation_id(self) -> str | None:
        return next(iter(self.ids)) if self.single else None

    @property
    def snapshot_key(self) -> SnapshotKey:
        """The snapshots that it needs. A viewer that resumes does so without the deliberations deleted meanwhile."""
        strict = self.cursor is None and not self.single
        return SnapshotKey(self.tenant, self.ids, self.statuses, strict=strict, answers=self.answers)

    @property
    def texts(self) -> Keys:
        return keys_of(self.tenant, self.ids) if self.selection.texts else frozenset()

    @property
    def stored(self) -> Patterns:
        if self.ids:
            return of_deliberations(self.tenant, self.ids)
        return of_tenant(self.tenant, deltas=self.selection.deltas)

    @property
    def live(self) -> Patterns:
        """The subjects to subscribe to. Without deltas one subscription serves all of a tenant's streams of several."""
        if self.single or self.selection.deltas:
            return self.stored
        return of_tenant(self.tenant, deltas=False)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A request with the snapshots that answer it.

    `cursor` is None when the viewer has none, and when events after it cannot be replayed; then `gap` says why.
    `archived` has the events when the deliberation has left the log, None otherwise.
    """

    request: EventsRequest
    known: SnapshotSet
    cursor: Cursor | None
    gap: StreamGap | None
    archived: Sequence[Record] | None = None

    @property
    def epoch(self) -> str:
        return self.known.log.epoch

    @property
    def begin(self) -> int:
        return min((snapshot.begin_sequence for snapshot in self.known.snapshots), default=1) - 1

    @property
    def start(self) -> int:
        """The sequence above which a stream sends events; of a list it is known once the list is read."""
        if self.cursor is not None:
            return max(self.cursor.sequence, self.begin) if self.request.single else self.cursor.sequence
        end = self.known.snapshots[0].end_sequence if self.request.single else None
        if end is not None:
            return end - 1
        return self.known.log.last_sequence if self.known.listed_to is None else self.known.listed_to

    @property
    def over(self) -> bool:
        return bool(self.request.ids) and not self.unended_after(self.start)

    def unended_after(self, sequence: int) -> set[str]:
        return {
            snapshot.deliberation_id
            for snapshot in self.known.snapshots
            if snapshot.end_sequence is None or snapshot.end_sequence > sequence
        }


def gap_reason(cursor: Cursor, log: StreamState) -> Literal["retention", "epoch", "beyond_end"] | None:
    """The reason for which a replay after `cursor` has a gap; a log that lost events reuses their sequences."""
    if cursor == BEGINNING:
        return None
    if cursor.epoch != log.epoch:
        return "epoch"
    if cursor.sequence > log.last_sequence:
        return "beyond_end"
    return "retention" if 0 < cursor.sequence < log.first_sequence - 1 else None


def resume_at(request: EventsRequest, known: SnapshotSet, now: datetime) -> ResumePoint:
    cursor, log = request.cursor, known.log
    reason = None if cursor is None else gap_reason(cursor, log)
    if reason is None:
        return ResumePoint(request, known, cursor, None)
    to = str(Cursor(log.epoch, log.last_sequence))
    fields = {"deliberation_id": request.deliberation_id, "ts": now, "reason": reason, "from": str(cursor), "to": to}
    return ResumePoint(request, known, None, StreamGap.model_validate(fields))
