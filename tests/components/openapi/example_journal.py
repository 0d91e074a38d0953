from typing import Any

from app.openapi.examples import ID
from tests.components.routes.served import played
from tests.fakes import InMemoryJournal
from tests.unit.facts_of import NOW, accepted, specification

TENANT = "default"


async def example_journal(**replies: dict[str, Any]) -> InMemoryJournal:
    journal = InMemoryJournal(epoch="f9c8adc3", replies={f"control.{name}": [reply] for name, reply in replies.items()})
    first = accepted(specification(strategy="best_of_n")).model_copy(update={"deliberation_id": ID})
    for fact in (first, *played(first, now=lambda: NOW)):
        await journal.append(TENANT, fact)
    return journal
