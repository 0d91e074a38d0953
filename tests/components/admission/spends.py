"""The spend of one deliberation, as a coordinator records it."""

from app.admission.spends import spend_subject
from tests.fakes import InMemoryJournal
from tests.story import NOW


async def spend(journal: InMemoryJournal, id: str, amount: str, tenant: str = "acme", *, currency: str = "USD") -> None:
    data = f'{{"amount": {amount}, "currency": "{currency}"}}'.encode()
    await journal.write(spend_subject(NOW.date(), tenant, id), data)
