"""Subject patterns of deliberations, and pages of the records under several patterns in the order of the log."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from app.deliberation.facts import prefix
from app.deliberation.ports import Journal, Record
from app.deliberation.specification import checked_token

Patterns = tuple[str, ...]
"""Subject patterns of which no two match one subject."""

_SHARE_MIN = 8
# Every event of a deliberation except `call.delta`.
_WITHOUT_DELTAS = (
    "*",
    "stage.>",
    "takeover.>",
    "call.*.started",
    "call.*.waiting",
    "call.*.finished",
    "call.*.tool.*.*",
)


def of_deliberation(tenant: str, deliberation_id: str) -> Patterns:
    return (f"{prefix(tenant, deliberation_id)}.>",)


def of_deliberations(tenant: str, deliberation_ids: Collection[str]) -> Patterns:
    return tuple(f"{prefix(tenant, deliberation_id)}.>" for deliberation_id in sorted(deliberation_ids))


def of_tenant(tenant: str, *, deltas: bool) -> Patterns:
    stem = f"deliberations.{checked_token(tenant, 'tenant')}"
    return (f"{stem}.>",) if deltas else tuple(f"{stem}.*.{tail}" for tail in _WITHOUT_DELTAS)


def tenant_of(patterns: Patterns) -> str:
    """The tenant of the patterns, which name one tenant only."""
    return patterns[0].split(".")[1]


@dataclass(frozen=True, slots=True)
class Page:
    """Records in the order of the log, none missing up to `position`; `complete` when no more were requested."""

    records: Sequence[Record]
    position: int
    complete: bool


async def read_page(journal: Journal, patterns: Patterns, after: int, up_to: int | None, size: int) -> Page:
    """Returns about `size` records above `after`; raises JournalUnavailable.

    Patterns are read one by one, so several need an `up_to` that is stored already. A page ends where a pattern has
    more records than were read.
    """
    share = size if len(patterns) == 1 else max(_SHARE_MIN, size // len(patterns))
    reads = await asyncio.gather(*(_read(journal, pattern, after, share) for pattern in patterns))
    if up_to is None:
        (records,) = reads
        return Page(records, records[-1].sequence if records else after, complete=len(records) < share)
    position = min((records[-1].sequence for records in reads if len(records) == share), default=up_to)
    position = min(position, up_to)
    kept = [record for records in reads for record in records if record.sequence <= position]
    return Page(sorted(kept, key=lambda record: record.sequence), position, complete=position == up_to)


async def _read(journal: Journal, pattern: str, after: int, limit: int) -> list[Record]:
    return [record async for record in journal.read(pattern, after, limit=limit)]
