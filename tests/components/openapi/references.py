from collections.abc import Iterator
from typing import cast


def references(node: object) -> Iterator[str]:
    match node:
        case {"$ref": str(reference)}:
            yield reference
        case dict():
            for value in cast("dict[str, object]", node).values():
                yield from references(value)
        case list():
            for value in cast("list[object]", node):
                yield from references(value)
        case _:
            return
