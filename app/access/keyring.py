"""The keys in memory, a projection of the log, so that no request waits for a read.

Every gateway receives a revocation as it is stored. It reads all keys again after a lost connection and once a minute.
While the log is unavailable, the last known keys apply.
"""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from hmac import compare_digest

import structlog
from pydantic import ValidationError

from app.access.keys import KEYS_PATTERN, HeldKey, KeyBook, KeyCreated, KeyRevoked, Pepper, key_id_of
from app.deliberation.ports import Journal, Record
from app.log.catch_up import subscribe_and_replay

CHECK_S = 60.0
# Hashed instead of a malformed key, so that both take equally long.
_NO_KEY = "dlb_000000000000_0000000000000000000000000000000000000000000000000000"

log = structlog.get_logger(__name__)


async def _until_resync(journal: Journal, reconnected: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(CHECK_S):
            await reconnected.wait()


class Keyring:
    """All keys. `follow` keeps them up to date; `caught_up` is true once they have been read."""

    def __init__(self, pepper: Pepper) -> None:
        self.caught_up = False
        self._pepper = pepper
        self._book = KeyBook()
        # During a read, live facts go into both books.
        self._reading: KeyBook | None = None
        self._no_digest = secrets.token_bytes(32)
        self._open: dict[str, set[Callable[[], None]]] = {}

    async def follow(self, journal: Journal) -> None:
        """Subscribe to keys and replay them, until cancelled; waits for an unavailable log."""
        await subscribe_and_replay(journal, [KEYS_PATTERN], self.apply, self._read, _until_resync)

    async def _read(self, journal: Journal) -> None:
        """Replace the book by all keys of the log, because a replaced log may lack some."""
        book = self._reading = KeyBook()
        async for record in journal.read(KEYS_PATTERN, 0):
            self._take(book, record)
        self._book, self._reading = book, None
        if not self.caught_up:
            log.info("keys_read", keys=len(book.keys), revoked=len(book.revoked))
        self.caught_up = True
        for key_id in list(self._open):
            if book.good(key_id) is None:
                self._end_streams(key_id)

    def apply(self, record: Record) -> None:
        """Apply one fact, in any order and any number of times; logs and skips a fact that does not decode."""
        fact = self._take(self._book, record)
        if self._reading is not None:
            self._take(self._reading, record)
        if isinstance(fact, KeyRevoked):
            log.info("key_revoked", key_id=fact.key_id)
            self._end_streams(fact.key_id)

    def _take(self, book: KeyBook, record: Record) -> KeyCreated | KeyRevoked | None:
        try:
            fact = book.take(record)
        except ValidationError:
            log.warning("key_undecodable", subject=record.subject, sequence=record.sequence)
            return None
        if isinstance(fact, KeyCreated) and fact.pepper != self._pepper.id and not self.caught_up:
            log.warning("key_of_another_pepper", key_id=fact.key_id, name=fact.name)
        return fact

    def holder(self, key: str) -> HeldKey | None:
        """The key with this text, even if expired or revoked; None without one.

        Takes the same steps for an existing key, an unknown one and malformed text, against timing attacks.
        """
        key_id = key_id_of(key)
        held = None if key_id is None else self._book.keys.get(key_id)
        given = self._pepper.digest("key", _NO_KEY if key_id is None else key)
        same = compare_digest(given, self._no_digest if held is None else held.digest)
        return held if same else None

    def good(self, key_id: str) -> HeldKey | None:
        """The key with this id; None if unknown or revoked. Does not check expiry."""
        return self._book.good(key_id)

    def attach(self, key_id: str, end: Callable[[], None]) -> Callable[[], None]:
        """Call `end` when the key is revoked, or now if it already is; returns a function that detaches it."""
        if self._book.good(key_id) is None:
            end()
        ends = self._open.setdefault(key_id, set())
        ends.add(end)

        def detach() -> None:
            ends.discard(end)
            if not ends:
                self._open.pop(key_id, None)

        return detach

    def _end_streams(self, key_id: str) -> None:
        for end in list(self._open.get(key_id, ())):
            end()
