"""Chance as a value: a small seeded generator whose draws depend on nothing but its key.

`random.Random` would do, but seeding its 2.5 KB state costs more than a whole answer of the simulator.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

_MASK = (1 << 64) - 1
_Item = TypeVar("_Item")


def digest(*parts: object) -> bytes:
    """16 bytes that identify `parts` (bytes as they are, anything else by its text), whatever the process."""
    state = blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.digest()


def fraction(*parts: object) -> float:
    """A number in [0, 1) that is fixed by `parts`."""
    return int.from_bytes(digest(*parts)[:7], "little") / (1 << 56)


class Dice:
    """A stream of draws fixed by its key (splitmix64, Steele et al., OOPSLA 2014)."""

    __slots__ = ("_state",)

    def __init__(self, *key: object) -> None:
        self._state = int.from_bytes(digest(*key)[:8], "little")

    def bits(self) -> int:
        """The next 64 bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    def unit(self) -> float:
        """A number in [0, 1)."""
        return (self.bits() >> 11) / (1 << 53)

    def between(self, low: int, high: int) -> int:
        """An integer in [low, high], both included; spans beyond 64 bits are drawn from their lower part."""
        return low + self.bits() % (high - low + 1)

    def pick(self, items: Sequence[_Item]) -> _Item:
        """One of `items`, which must not be empty."""
        return items[self.bits() % len(items)]

    def sample(self, items: Sequence[_Item], size: int) -> list[_Item]:
        """`size` different places of `items` (all of them when there are fewer), in drawn order."""
        rest = list(items)
        size = min(size, len(rest))
        for place in range(size):
            other = place + self.bits() % (len(rest) - place)
            rest[place], rest[other] = rest[other], rest[place]
        return rest[:size]
