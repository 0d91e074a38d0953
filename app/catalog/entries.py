"""Entries of the catalog, as of now or of any sequence of the log, and the filter of a list."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from app.api.schemas import Status
from app.deliberation.calls import Usage
from app.deliberation.facts import TerminalStatus


@dataclass(slots=True)
class Entry:
    """The catalog's entry of one deliberation.

    `sequence` is that of its acceptance, 0 while unknown; the other sequences are those of its status changes.
    """

    tenant: str
    id: str
    first_fact_at: datetime
    sequence: int = 0
    started_sequence: int = 0
    cancelled_sequence: int = 0
    ended_sequence: int = 0
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended: TerminalStatus | None = None
    ended_at: datetime | None = None
    roles: dict[str, int] = field(default_factory=dict[str, int])
    strategy: str = ""
    task: str = ""
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    usage: Usage = field(default_factory=Usage)

    @property
    def status(self) -> Status:
        """The same status as the fold of all facts has."""
        if self.ended is not None:
            return self.ended
        if self.cancelled_sequence:
            return "cancelling"
        return "pending" if self.started_at is None else "in_progress"

    def status_at(self, sequence: int) -> Status | None:
        """The status when the log ended at `sequence`; None before the acceptance."""
        entry = self.at(sequence)
        return None if entry is None else entry.status

    def at(self, sequence: int) -> "Entry | None":
        """The entry when the log ended at `sequence`; None before the acceptance."""
        if not 0 < self.sequence <= sequence:
            return None
        changes: dict[str, Any] = {}
        if self.started_sequence > sequence:
            changes |= {"started_sequence": 0, "started_at": None}
        if self.cancelled_sequence > sequence:
            changes |= {"cancelled_sequence": 0}
        if self.ended_sequence > sequence:
            changes |= {"ended_sequence": 0, "ended": None, "ended_at": None, "usage": Usage()}
        return replace(self, **changes) if changes else self


@dataclass(frozen=True, slots=True)
class ListFilter:
    """The filter of a list; None and empty do not filter. `role` is any member's."""

    status: Status | None = None
    role: str | None = None
    strategy: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])

    def shows(self, entry: Entry) -> bool:
        """Whether the entry passes the filter."""
        created_at = entry.created_at
        return (
            created_at is not None
            and (self.status is None or entry.status == self.status)
            and (self.role is None or self.role in entry.roles)
            and (self.strategy is None or entry.strategy == self.strategy)
            and (self.created_after is None or created_at > self.created_after)
            and (self.created_before is None or created_at < self.created_before)
            and self.metadata.items() <= entry.metadata.items()
        )
