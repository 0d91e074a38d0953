"""Writes the facts of keys: the same code for `deliberate keys` and for gateways that may write them."""

from datetime import datetime, timedelta
from typing import Protocol

from app.access.keys import HeldKey, KeyCreated, KeyRevoked, Pepper, Scope, created, key_subject
from app.api.schemas import dump
from app.deliberation.ports import Appended, Record
from app.log.first_write import Accepts

LIFETIME = timedelta(days=90)


class KeyLog(Protocol):
    async def write(self, subject: str, data: bytes, *, accepts: Accepts | None = None) -> Appended: ...


class KeyWriter:
    def __init__(self, log: KeyLog, pepper: Pepper) -> None:
        self._log = log
        self._pepper = pepper

    async def create(
        self,
        name: str,
        tenant: str,
        scopes: list[Scope],
        now: datetime,
        lifetime: timedelta | None,
        maker: HeldKey | None = None,
    ) -> tuple[KeyCreated, str, Record]:
        """A new key's fact, the key and the record; the key expires no later than its `maker`.

        Raises JournalUnavailable when the fact is not stored.
        """
        expires_at = None if lifetime is None else now + lifetime
        if maker is not None and maker.fact.expires_at is not None:
            expires_at = maker.fact.expires_at if expires_at is None else min(expires_at, maker.fact.expires_at)
        fact, key = created(
            self._pepper,
            name=name,
            tenant=tenant,
            scopes=scopes,
            created_at=now,
            expires_at=expires_at,
            maker=None if maker is None else maker.fact.key_id,
        )
        appended = await self._log.write(key_subject(fact), dump(fact))
        assert appended.created, "a random id of 60 bits repeated"
        return fact, key, appended.record

    async def revoke(self, key_id: str, now: datetime) -> Record:
        """The record of the revocation, an earlier one if there is; raises JournalUnavailable if none is stored."""
        fact = self._pepper.signed(KeyRevoked(key_id=key_id, revoked_at=now))
        written = await self._log.write(
            key_subject(fact), dump(fact), accepts=lambda record: self._pepper.verified(record) is not None
        )
        return written.record
