import re
from collections.abc import Iterator
from typing import Any, cast

from app.openapi.document import document


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


def declarations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields method, path and declaration of each operation."""
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            if method != "parameters":
                yield method.upper(), path, operation


def operations() -> list[tuple[str, str, str]]:
    """Returns id, method and path of each operation."""
    return [(operation["operationId"], method, path) for method, path, operation in declarations()]


def filled(path: str, **values: str) -> str:
    """Returns the path with these values of its parameters, and x for each other one."""
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], "x"), path)
