"""The elements of a docx's XML, and the values that they hold."""

from collections.abc import Iterator
from typing import Protocol

WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"


class WordElement(Protocol):
    """What is read here of an element of lxml."""

    @property
    def tag(self) -> object: ...
    @property
    def text(self) -> str | None: ...
    def get(self, key: str) -> str | None: ...
    def find(self, path: str) -> "WordElement | None": ...
    def __iter__(self) -> "Iterator[WordElement]": ...


def attribute(element: WordElement, name: str) -> str:
    """An attribute by its name; empty without one."""
    return element.get(f"{WORD}{name}") or ""


def child_of(element: WordElement | None, name: str) -> WordElement | None:
    return None if element is None else element.find(f"{WORD}{name}")


def value(element: WordElement | None, name: str) -> str:
    """The value of a child by its name; empty without one."""
    child = child_of(element, name)
    return "" if child is None else attribute(child, "val")


def number(digits: str, default: int, most: int) -> int:
    """A natural number of at most `most`; `default` for what is none."""
    return min(int(digits), most) if digits.isdecimal() and len(digits) < 10 else default
