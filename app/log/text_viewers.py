"""Leases on the texts of calls: a gateway names the deliberations that it shows, and agents publish only their texts.

A message may be lost, and the next renewal repeats it. Until then a text waits at its agent and comes whole.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Generator
from contextlib import contextmanager
from time import monotonic

from app.deliberation.ports import Journal

SUBJECT = "viewers.texts"
ALL = "*"
RENEWED_S = 3.0
# Three renewals, of which two may be lost.
LEASE_S = 10.0
# A message stays below the server's limit of a megabyte, with the longest tenants and ids.
NAMED_MAX = 4_096
KEPT_MAX = 100_000

Keys = frozenset[str]


def keys_of(tenant: str, deliberation_ids: Collection[str]) -> Keys:
    """The keys of these deliberations; without any, the key of all deliberations of the tenant."""
    return frozenset(f"{tenant}.{id}" for id in deliberation_ids or (ALL,))


class TextLeases:
    """The leases of this gateway: the number of its viewers of each deliberation's texts."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._viewers: Counter[str] = Counter()

    @contextmanager
    def held(self, keys: Keys) -> Generator[None]:
        """Lease the texts until the context ends. `renew` announces them."""
        self._viewers.update(keys)
        try:
            yield
        finally:
            self._viewers.subtract(keys)
            for key in keys:
                if not self._viewers[key]:
                    del self._viewers[key]

    async def announce(self, keys: Collection[str]) -> None:
        named = sorted(keys)
        for begin in range(0, len(named), NAMED_MAX):
            await self._journal.tell(SUBJECT, "\n".join(named[begin : begin + NAMED_MAX]).encode())

    async def renew(self) -> None:
        """Announce all leases every three seconds. Runs until cancelled."""
        while True:
            await asyncio.sleep(RENEWED_S)
            await self.announce(self._viewers)


class TextViewers:
    """The leases that a replica has received, each with its end; with `always` every deliberation has viewers."""

    def __init__(self, *, always: bool = False) -> None:
        self._always = always
        # In the order of renewals: the oldest lease is the first one.
        self._until_s: dict[str, float] = {}

    def renew(self, data: bytes) -> None:
        """Renew the leases of a message; of a longer one than gateways send, the first `NAMED_MAX`."""
        until_s = monotonic() + LEASE_S
        for key in data.decode(errors="replace").split("\n", NAMED_MAX)[:NAMED_MAX]:
            self._until_s.pop(key, None)
            self._until_s[key] = until_s
        while len(self._until_s) > KEPT_MAX:
            del self._until_s[next(iter(self._until_s))]

    def has(self, tenant: str, deliberation_id: str) -> bool:
        if self._always or not self._until_s:
            return self._always
        keys = (f"{tenant}.{deliberation_id}", f"{tenant}.{ALL}")
        return max(self._until_s.get(key, 0.0) for key in keys) > monotonic()
