"""A deliberation's facts as one compressed value: a line for each, with its sequence, subject's tail and JSON."""

import zlib
from collections.abc import Sequence

from app.deliberation.facts import prefix
from app.deliberation.ports import Record

_TENANT_AND_ID = 3
# Takes a third of the time of the default, for values that are 12 % larger.
LEVEL = 2


def pack(records: Sequence[Record]) -> bytes:
    """The facts in stream order. An encoded fact has no line break."""
    lines = (b"%d %s %s" % (each.sequence, _tail(each).encode(), each.data) for each in records)
    return zlib.compress(b"\n".join(lines), LEVEL)


def unpack(tenant: str, deliberation_id: str, packed: bytes) -> list[Record]:
    """The records that `pack` was given."""
    stem, found = prefix(tenant, deliberation_id), list[Record]()
    for line in zlib.decompress(packed).split(b"\n"):
        sequence, tail, data = line.split(b" ", 2)
        found.append(Record(f"{stem}.{tail.decode()}", int(sequence), data))
    return found


def _tail(record: Record) -> str:
    return record.subject.split(".", _TENANT_AND_ID)[_TENANT_AND_ID]
