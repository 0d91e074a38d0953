"""Chance as a function of a key: equal parts give equal numbers in every process."""

from hashlib import blake2b


def digest(*parts: object) -> bytes:
    """16 bytes that identify `parts` (bytes as they are, anything else by its text)."""
    state = blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.digest()


def fraction(*parts: object) -> float:
    """A number in [0, 1) that is fixed by `parts`."""
    return int.from_bytes(digest(*parts)[:7], "little") / (1 << 56)
