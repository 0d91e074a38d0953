"""The keys in memory: heard live and read from the log, so that no request waits for it.

A revocation is heard by every gateway as it is stored. Whatever a lost connection swallowed is read again when it is
back, and everything once a minute besides. While the log is away, the keys are those that were last heard of.
"""

import secrets
from collections.abc import Callable
from hmac import compare_digest

import structlog
from pydantic import ValidationError

from app.access.keys import KEYS_PATTERN, HeldKey, KeyBook, KeyCreated, KeyRevoked, Pepper, key_id_of
from app.deliberation.ports import Journal, Record
from app.log.projection import Projection

CHECK_S = 60.0
# Hashed in place of what is no key at all, so that it takes as long.
_NO_KEY = "dlb_000000000000_0000000000000000000000000000000000000000000000000000"

log = structlog.get_logger(__name__)


class Keyring:
    """All keys; `follow` keeps them, `caught_up` tells that they have been read once."""

    def __init__(self, pepper: Pepper) -> None:
        self.caught_up = False
        self._pepper = pepper
        self._book = KeyBook()
        # While the log is read anew, what is heard goes into both.
        self._reading: KeyBook | None = None
        self._nobody = secrets.token_bytes(32)
        self._open: dict[str, set[Callable[[], None]]] = {}

    async def follow(self, journal: Journal) -> None:
        """Hear of keys and read what was missed, until cancelled. Waits for a log that is away."""
        projection = Projection(
            journal, [KEYS_PATTERN], self.apply, self._read, lambda running: running.stale_within(CHECK_S)
        )
        await projection.run()

    async def _read(self, journal: Journal) -> None:
        """Read all keys anew: a log that was replaced must not leave keys behind that it does not know."""
        book = self._reading = KeyBook()
        async for record in journal.read(KEYS_PATTERN, 0):
            self._take(book, record)
        self._book, self._reading = book, None
        if not self.caught_up:
            log.info("keys_read", keys=len(book.keys), revoked=len(book.revoked))
        self.caught_up = True
        for key_id in list(self._open):
            if book.good(key_id) is None:
                self._end(key_id)

    def apply(self, record: Record) -> None:
        """Take one fact; any order, any number of times. What does not decode is logged and left out."""
        fact = self._take(self._book, record)
        if self._reading is not None:
            self._take(self._reading, record)
        if isinstance(fact, KeyRevoked):
            log.info("key_revoked", key_id=fact.key_id)
            self._end(fact.key_id)

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
        """The key as it is held, also one that has expired or is revoked; None where this is not its secret.

        Takes the same steps for a key that there is, one that there is not, and what is no key.
        """
        key_id = key_id_of(key)
        held = None if key_id is None else self._book.keys.get(key_id)
        given = self._pepper.digest("key", _NO_KEY if key_id is None else key)
        same = compare_digest(given, self._nobody if held is None else held.digest)
        return held if same else None

    def good(self, key_id: str) -> HeldKey | None:
        """The key of this id, unless there is none or it is revoked. Whether it has expired is not looked at."""
        return self._book.good(key_id)

    def attach(self, key_id: str, end: Callable[[], None]) -> Callable[[], None]:
        """Call `end` when the key is revoked, at once if it is already; returns a function that ends this."""
        if self._book.good(key_id) is None:
            end()
        ends = self._open.setdefault(key_id, set())
        ends.add(end)

        def detach() -> None:
            ends.discard(end)
            if not ends:
                self._open.pop(key_id, None)

        return detach

    def _end(self, key_id: str) -> None:
        for end in list(self._open.get(key_id, ())):
            end()
