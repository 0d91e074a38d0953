"""Cursors: a position in the log, `<epoch>-<sequence>`, which is the SSE id of every logged event."""

import re
from dataclasses import dataclass

from app.deliberation.errors import InvalidCursor

# 19 digits hold every sequence of the log (64 bits, signed).
_CURSOR = re.compile(r"([a-z0-9]{1,16})-([0-9]{1,19})", re.ASCII)
EPOCH_PATTERN = r"^[a-z0-9]{1,16}$"
CURSOR_PATTERN = r"^(0|[a-z0-9]{1,16}-[0-9]{1,19})$"


class InvalidEventCursor(InvalidCursor):
    def __init__(self, name: str) -> None:
        detail = f"{name} must be 0 or <epoch>-<sequence>."
        super().__init__(detail, name, "Take the `id` of an event, 0 for the beginning, or leave it out.")


@dataclass(frozen=True, slots=True)
class Cursor:
    """The viewer has received everything up to `sequence` of the log's incarnation `epoch`; 0 is the beginning."""

    epoch: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.sequence}"


BEGINNING = Cursor("", 0)
"""The position before the first event in every epoch, written `0`."""


def parse_cursor(text: str, name: str) -> Cursor:
    if text == "0":
        return BEGINNING
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise InvalidEventCursor(name)
    return Cursor(match[1], int(match[2]))
