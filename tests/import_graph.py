"""Which module imports which, read off the source without importing it."""

import ast
from collections.abc import Container, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def module_of(path: Path) -> str:
    """The dotted name of a file below ROOT, given by its path from there; that of a package for its `__init__`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The dotted names that a statement imports: of `from a import b` the name `a.b`."""
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    assert node.level == 0, "imports are absolute"
    return [f"{node.module}.{name.name}" for name in node.names]


def holder(name: str, modules: Container[str]) -> str | None:
    """The innermost of these modules that a dotted name stands for, or stands in."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def circle_in(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """A circle of modules in which each imports the next one; empty where there is none. Values are dotted names."""
    graph = {module: {holder(name, imports) for name in names} - {None, module} for module, names in imports.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return []
