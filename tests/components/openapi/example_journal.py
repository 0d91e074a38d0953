"""A log in memory with the records of the document's examples."""

from typing import Any

from app.deliberation.facts import CallDelta, CallStarted, decode
from app.openapi.example_log import EPOCH, TENANT, delivery_records, log_records
from app.testing import InMemoryJournal


async def example_journal(**replies: dict[str, Any]) -> InMemoryJournal:
    """The log; `replies` are the answers on the control subjects, by the last part of their names."""
    journal = InMemoryJournal(epoch=EPOCH, replies={f"control.{name}": [reply] for name, reply in replies.items()})
    for record in log_records():
        event = decode(record.data)
        if isinstance(event, CallStarted | CallDelta):
            await journal.publish_view(TENANT, event)
        else:
            await journal.append(TENANT, event)
    for record in delivery_records():
        await journal.write(record.subject, record.data)
    assert journal.records == [*log_records(), *delivery_records()]
    return journal
