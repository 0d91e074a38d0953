from typing import Any

from app.deliberation.specification import InputRef
from app.log.inputs import StoredInput
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
    await store_file(journal)
    return journal


async def store_file(journal: InMemoryJournal) -> None:
    """The file of the examples, whose content has not the digest that they name."""
    file = InputRef(
        sha256="9f" * 32,
        name="contract.pdf",
        media_type="application/pdf",
        bytes=8,
        kind="text",
        tokens=2,
        pages=1,
        form_sha256="8e" * 32,
        form_bytes=4,
    )
    journal.inputs.files[TENANT, file.sha256] = StoredInput(file=file, stored_at=NOW)
    journal.inputs.parts[TENANT, file.sha256] = {"original": b"%PDF-1.7", "form": b"text"}
    journal.inputs.users[TENANT, file.sha256] = {}
