from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from app.access.keys import SCOPES, KeyRevoked, Pepper, Scope, created, key_id_of, key_subject
from app.api.schemas import dump
from app.deliberation.calls import Call
from app.deliberation.facts import Accepted, decode
from app.deliberation.ports import Record
from tests.components.routes.served import Served, played, written
from tests.fakes import InMemoryJournal
from tests.story import NOW

PEPPER = "correct horse battery staple, and then some"


async def make_key(
    journal: InMemoryJournal,
    tenant: str = "acme",
    scopes: Iterable[Scope] = SCOPES,
    *,
    expires_at: datetime | None = None,
    pepper: str = PEPPER,
) -> str:
    fact, key = created(
        Pepper(pepper), name=f"of {tenant}", tenant=tenant, scopes=scopes, created_at=NOW, expires_at=expires_at
    )
    assert (await journal.write(key_subject(fact), dump(fact))).created
    return key


async def revoke(journal: InMemoryJournal, key: str) -> Record:
    fact = Pepper(PEPPER).signed(KeyRevoked(key_id=key_id_of(key) or "", revoked_at=NOW))
    return (await journal.write(key_subject(fact), dump(fact))).record


def bearer(key: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", **{name.replace("_", "-"): value for name, value in more.items()}}


async def accepted(gateway: Served, key: str, headers: dict[str, str] | None = None, **body: Any) -> str:
    response = await gateway.client.post(
        "/deliberations", json={"task": "Name a colour.", **body}, headers=bearer(key) | (headers or {})
    )
    assert response.status_code == 202, response.text
    return response.json()["id"]


async def play(
    gateway: Served,
    tenant: str,
    deliberation_id: str,
    *,
    until_stage: int | None = None,
    write: Callable[[Call], str] = written,
) -> None:
    records = await gateway.journal.facts(tenant, deliberation_id)
    fact = decode(records[0].data)
    assert isinstance(fact, Accepted)
    for event in played(fact, now=gateway.clock.now, until_stage=until_stage, write=write):
        await gateway.journal.append(tenant, event)
