"""What a guard is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guard:
    """`guarded` stands once in `file`; with `without` in its place, `test` fails."""

    name: str
    file: str
    guarded: str
    without: str
    test: str
