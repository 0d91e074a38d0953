"""Chooses the engine of a call: the one with the prefix of its deliberation, as long as its load is within a bound.

A hash puts a role's engines into an order of each deliberation's own (rendezvous hashing, Thaler and Ravishankar 1998).
An engine that comes or goes moves only the deliberations that have it first. The bound on the load is that of
consistent hashing with bounded loads (arXiv:1608.01350).

Replicas choose without a message: the same hash gives all of them the same order. Each knows only its own requests, and
places a call within 1.25 times their mean or `TOGETHER`. So together they exceed the bound on one engine by at most
`TOGETHER` for each replica, whatever the number of requests (docs/decisions/0073).
"""

import hashlib
from collections.abc import Sequence
from math import ceil
from typing import Protocol, TypeVar

BOUND = 1.25
"""An engine's requests over the mean of all engines, from which on it is full."""

TOGETHER = 9
"""An engine with fewer requests of this replica is never full: three stages of three calls cost each other little."""


class LoadedEngine(Protocol):
    """An engine with the number of this replica's requests that it works on. Its address is the same everywhere."""

    @property
    def address(self) -> str:
        """The engine's URL without credentials."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests of this replica."""
        ...


_Engine = TypeVar("_Engine", bound=LoadedEngine)


def engine_for(deliberation: str, engines: Sequence[_Engine]) -> _Engine | None:
    """The first engine in the deliberation's order, or the least loaded one when that is full; None without engines."""
    ordered = sorted(engines, key=lambda engine: _rank(deliberation, engine.address))
    if not ordered:
        return None
    bound = max(TOGETHER, ceil(BOUND * (sum(engine.in_flight for engine in engines) + 1) / len(engines)))
    # Of equally loaded engines the earlier one in the order, so that a stage's other calls find its prefix there.
    return ordered[0] if ordered[0].in_flight < bound else min(ordered, key=lambda engine: engine.in_flight)


def _rank(deliberation: str, address: str) -> bytes:
    return hashlib.sha256(f"{deliberation} {address}".encode()).digest()
