"""What the archive holds of a deliberation, written by projectors and read by gateways.

A write never replaces a newer one, so that several projectors may write the same deliberation in any order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import delete, select, tuple_

from app.archive.database import transcript
from app.archive.database.connection import Database
from app.archive.database.tables import VERSION_MAX, deliberations, logs, position
from app.deliberation.errors import Gone
from app.deliberation.fold import State
from app.deliberation.ports import Record

DELETED = "deleted"
EXPIRED_AT_ONCE = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Written:
    """A deliberation as of its newest fact. `state` is None for a tombstone, written at `at`."""

    tenant: str
    deliberation_id: str
    at: datetime
    state: State | None = None
    records: Sequence[Record] = ()


@dataclass(frozen=True, slots=True)
class Archived:
    """An ended deliberation's facts, and the incarnation of the log that they come from."""

    epoch: str
    records: Sequence[Record]


def microseconds(at: datetime) -> int:
    """Microseconds since 1970."""
    since = at - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _row(written: Written, log: int) -> dict[str, object]:
    state = written.state
    row: dict[str, object] = {
        "tenant": written.tenant,
        "id": written.deliberation_id,
        "version": VERSION_MAX,
        "created_us": microseconds(written.at),
        "status": DELETED,
        "log": 0,
        "facts": None,
    }
    if state is not None:
        facts = transcript.pack(written.records) if state.ended else None
        row |= {
            "version": position(log, state.last_sequence),
            "created_us": microseconds(state.accepted.ts),
            "status": state.status,
            "log": log,
            "facts": facts,
        }
    return row


class Store:
    """The deliberations in a database; methods raise ArchiveUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._log_numbers: dict[str, int] = {}

    async def check(self) -> None:
        """Raise ArchiveUnavailable unless the database answers and has this version's tables."""
        await self._database.check()

    async def log_number(self, epoch: str) -> int:
        """The number of a log, given to it at its first use."""
        if epoch not in self._log_numbers:
            chosen = select(logs.c.number).where(logs.c.epoch == epoch)
            async with self._database.begin() as connection:
                await connection.execute(self._database.insert(logs).values(epoch=epoch).on_conflict_do_nothing())
                self._log_numbers[epoch] = (await connection.execute(chosen)).scalar_one()
        return self._log_numbers[epoch]

    async def write(self, epoch: str, batch: Sequence[Written]) -> None:
        """Write deliberations of a log in one transaction, each of them once. A tombstone belongs to no log."""
        log = await self.log_number(epoch) if any(each.state is not None for each in batch) else 0
        rows = sorted((_row(each, log) for each in batch), key=lambda row: (row["tenant"], row["id"]))
        if not rows:
            return
        statement = self._database.insert(deliberations)
        newer = statement.excluded.version > deliberations.c.version
        given = {name: statement.excluded[name] for name in rows[0] if name not in ("tenant", "id")}
        async with self._database.begin() as connection:
            await connection.execute(
                statement.on_conflict_do_update(index_elements=["tenant", "id"], set_=given, where=newer), rows
            )

    async def read(self, tenant: str, deliberation_id: str) -> Archived | None:
        """An ended deliberation, None when there is none; raises Gone for a deleted one."""
        row, epoch = deliberations.c, logs.c.epoch
        statement = (
            select(row.status, row.facts, epoch)
            .select_from(deliberations.outerjoin(logs, row.log == logs.c.number))
            .where(row.tenant == tenant, row.id == deliberation_id)
        )
        async with self._database.begin() as connection:
            found = (await connection.execute(statement)).one_or_none()
        if found is None:
            return None
        if found.status == DELETED:
            raise Gone(f"Deliberation {deliberation_id} has been deleted.")
        if found.facts is None:
            return None
        return Archived(found.epoch, transcript.unpack(tenant, deliberation_id, found.facts))

    async def delete(self, tenant: str, deliberation_id: str, at: datetime) -> None:
        """Replace whatever is there of a deliberation by a tombstone."""
        await self.write("", [Written(tenant, deliberation_id, at)])

    async def expire(self, before: datetime) -> int:
        """Remove rows that were accepted, or deleted, before that time, EXPIRED_AT_ONCE at most; their number."""
        key = tuple_(deliberations.c.tenant, deliberations.c.id)
        old = (
            select(deliberations.c.tenant, deliberations.c.id)
            .where(deliberations.c.created_us < microseconds(before))
            .limit(EXPIRED_AT_ONCE)
        )
        async with self._database.begin() as connection:
            return (await connection.execute(delete(deliberations).where(key.in_(old)))).rowcount
