"""The keys in memory, a projection of the log, so that no request waits for a read.

Every gateway receives a revocation as it is stored. All keys are read again after a lost connection and once a minute.
While the log is unavailable, the last known keys apply. Facts without a valid signature under the pepper are ignored.
"""

import asyncio
import secrets
from collections.abc import Callable
from hmac import compare_digest

import structlog

from app.access.keys import KEYS_PATTERN, HeldKey, KeyBook, KeyCreated, KeyRevoked, Pepper, key_id_of
from app.deliberation.ports import Journal, Record
from app.log.projection import Projection
from app.log.signature import Refusals

CHECK_S = 60.0
YIELDS_EVERY = 200
# Hashed instead of a malformed key, so that both take equally long.
_NO_KEY = "dlb_000000000000_0000000000000000000000000000000000000000000000000000"

log = structlog.get_logger(__name__)


class Keyring:
    """All keys. `follow` keeps them up to date; `caught_up` is true once they have been read."""

    def __init__(self, pepper: Pepper) -> None:
        self.caught_up = False
        self._pepper = pepper
        self.book = KeyBook()
        # During a read, the facts that were received live, by key and kind: a foreign writer may repeat them.
        self._received: dict[tuple[str, str], KeyCreated | KeyRevoked] | None = None
        self.refusals = Refusals("key_fact_refused")
        self._no_digest = secrets.token_bytes(32)
        self._open: dict[str, set[Callable[[], None]]] = {}

    async def follow(self, journal: Journal) -> None:
        projection = Projection(
            journal, [KEYS_PATTERN], self.apply, self._read, lambda running: running.stale_within(CHECK_S)
        )
        await projection.run()

    async def _read(self, journal: Journal) -> None:
        """Replace the book by all keys of the log, because a replaced log may lack some."""
        book, received = KeyBook(), dict[tuple[str, str], KeyCreated | KeyRevoked]()
        self._received = received
        number = 0
        async for record in journal.read(KEYS_PATTERN, 0):
            if (fact := self._verified(record)) is not None:
                book.apply(fact)
            number += 1
            if number % YIELDS_EVERY == 0:
                await asyncio.sleep(0)
        # Facts from the log count before facts that were received meanwhile.
        for fact in received.values():
            book.apply(fact)
        self.book, self._received = book, None
        if not self.caught_up:
            log.info("keys_read", keys=len(book.keys), revoked=len(book.revoked))
        self.caught_up = True
        self._end_streams()

    def apply(self, record: Record) -> None:
        """Apply one fact, in any order and any number of times. Counts and skips a fact without a valid signature."""
        fact = self._verified(record)
        if fact is None:
            return
        if self._received is not None:
            self._received.setdefault((fact.key_id, fact.type), fact)
        known = fact.key_id in self.book.revoked
        self.book.apply(fact)
        if isinstance(fact, KeyRevoked) and not known:
            log.info("key_revoked", key_id=fact.key_id)
            self._end_streams()

    def _verified(self, record: Record) -> KeyCreated | KeyRevoked | None:
        fact = self._pepper.verified(record)
        if fact is None:
            self.refusals.note(record.subject)
        return fact

    def holder(self, key: str) -> HeldKey | None:
        """The key with this text, even if expired or revoked; None without one.

        Takes the same steps for an existing key, an unknown one and malformed text, against timing attacks.
        """
        key_id = key_id_of(key)
        held = None if key_id is None else self.book.keys.get(key_id)
        digest = self._pepper.digest("key", _NO_KEY if key_id is None else key)
        same = compare_digest(digest, self._no_digest if held is None else held.digest)
        return held if same else None

    def good(self, key_id: str) -> HeldKey | None:
        return self.book.good(key_id)

    def attach(self, key_id: str, end: Callable[[], None]) -> Callable[[], None]:
        """Call `end` once the key is revoked, or at once for a revoked key; returns a function that detaches `end`."""
        if self.book.good(key_id) is None:
            end()
        ends = self._open.setdefault(key_id, set())
        ends.add(end)

        def detach() -> None:
            ends.discard(end)
            if not ends:
                self._open.pop(key_id, None)

        return detach

    def _end_streams(self) -> None:
        for key_id, ends in list(self._open.items()):
            if self.book.good(key_id) is None:
                for end in list(ends):
                    end()
