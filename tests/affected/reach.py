"""Which test files a change can reach, nearest first.

A module depends on what it imports, in functions too, and on what its strings name: `"app.main"` after `-m`, a target
of `monkeypatch.setattr`, a file or a folder. A test also depends on each `conftest.py` above it, and on the fixtures
that it names.
"""

import ast
import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.import_graph import holder, imported_names, module_of

CODE = ("app", "serve_deployments", "tests", "benchmarks", "deploy", "docsite", "sdk", "examples")
PRODUCT = ("app", "serve_deployments")
# Each test depends on them, whatever its source names.
OF_EVERY_TEST = {"pyproject.toml", "requirements.lock", "requirements-dev.lock"}
COMMAND, COMMAND_MODULE = "deliberate", "deliberation_gateway"
# A step of an import; of a name in a string of the product, by which one process starts another.
IMPORT, PROCESS = 1, 8
# Steps that the start of a suite's servers and processes is worth; a suite that is missing here starts none.
START = {
    "tests/contracts": 1,
    "tests/oracles": 1,
    "tests/integration": 1,
    "tests/deploy": 2,
    "tests/crash": 2,
    "tests/attack": 3,
    "tests/upgrade": 6,
    "tests/e2e": 6,
}
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")


@dataclass
class Part:
    """What a module or a fixture depends on, as its source names it."""

    imports: set[str] = field(default_factory=set[str])
    strings: set[str] = field(default_factory=set[str])
    begun: set[str] = field(default_factory=set[str])  # beginnings of names, as in f"app.{name}"
    words: set[str] = field(default_factory=set[str])
    fixtures: dict[str, "Part"] = field(default_factory=dict[str, "Part"])
    always: bool = True


def part_of(text: str, *, conftest: bool = False) -> Part:
    """The dependencies of a source; a fixture of a `conftest.py` has those of its body to itself."""
    tree, part = ast.parse(text), Part(words=set(re.findall(r"\w+", text)))
    for node in tree.body:
        decorators = [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])]
        if conftest and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "fixture" in "".join(decorators):
            segment = ast.get_source_segment(text, node) or ""
            fixture = Part(words=set(re.findall(r"\w+", segment)), always="autouse=True" in "".join(decorators))
            part.fixtures[node.name] = fixture
            _read(node, fixture)
        else:
            _read(node, part)
    return part


def _read(statement: ast.AST, part: Part) -> None:
    documentation = {id(node.value) for node in ast.walk(statement) if isinstance(node, ast.Expr)}
    for node in ast.walk(statement):
        match node:
            case ast.Import() | ast.ImportFrom():
                part.imports.update(imported_names(node))
            case ast.JoinedStr(values=values):
                constants = [value.value for value in values[:-1] if isinstance(value, ast.Constant)]
                part.begun.update(str(text) for text in constants if re.fullmatch(r"(\w+\.)+", str(text)))
            case ast.Constant(value=str(text)) if id(node) not in documentation:
                part.strings.add(text)
            case _:
                pass


class Repository:
    """The sources below a folder, and the steps from each to what it depends on."""

    def __init__(self, root: Path, gone: Iterable[str] = ()) -> None:
        """`gone` has the paths of files that a change has removed."""
        paths = [path for folder in CODE for path in sorted((root / folder).rglob("*.py"))] + sorted(root.glob("*.py"))
        self.paths = {module_of(path): path.as_posix() for path in (path.relative_to(root) for path in paths)}
        self.parts = {
            module: part_of((root / path).read_text(), conftest=path.endswith("conftest.py"))
            for module, path in self.paths.items()
        }
        self._modules = self.paths.keys() | {module_of(Path(path)) for path in gone if path.endswith(".py")}
        self.tests = [path for path in self.paths.values() if re.search(r"^tests/(.*/)?test_\w+\.py$", path)]

    def reached(self, changed: Iterable[str]) -> dict[str, int]:
        """The test files that changed paths can reach, nearest and cheapest first, with their distances."""
        changed = list(changed)
        distances = self._distances(changed)
        by_path = {path: distances[module] for module, path in self.paths.items() if module in distances}
        if OF_EVERY_TEST & set(changed):
            by_path = dict.fromkeys(self.tests, IMPORT) | by_path
        weights = {
            path: by_path[path] and by_path[path] + next((cost for name, cost in START.items() if name in path), 0)
            for path in self.tests
            if path in by_path
        }
        return dict(sorted(weights.items(), key=lambda item: (item[1], not item[0].startswith("tests/unit"), item[0])))

    def _distances(self, changed: Iterable[str]) -> dict[str, int]:
        users: dict[str, list[tuple[str, int]]] = {}
        for module in self.parts:
            for name, cost in self._steps(module):
                users.setdefault(name, []).append((module, cost))
        waiting = [(0, module_of(Path(path))) for path in changed if path.endswith(".py")]
        waiting += [(IMPORT, user) for path in changed for user in self._naming(path)]
        heapq.heapify(waiting)
        distances: dict[str, int] = {}
        while waiting:
            distance, module = heapq.heappop(waiting)
            if module not in distances:
                distances[module] = distance
                for user, cost in users.get(module, ()):
                    heapq.heappush(waiting, (distance + cost, user))
        return distances

    def _steps(self, module: str) -> Iterator[tuple[str, int]]:
        path, own = self.paths[module], self.parts[module]
        product = path.startswith(PRODUCT)
        for part in (own, *self._fixtures_for(path, own.words)):
            for name in part.imports:
                yield from ((place, IMPORT) for place in self._with_packages(name))
            for name in self._named(part):
                yield from ((place, PROCESS if product else IMPORT) for place in self._with_packages(name))
            if not product and any(text == COMMAND or text.startswith(f"{COMMAND} ") for text in part.strings):
                yield COMMAND_MODULE, PROCESS
        if path.startswith("tests/"):
            yield from ((conftest, IMPORT) for conftest in self._conftests(path) if conftest != module)

    def _with_packages(self, name: str) -> Iterator[str]:
        """The module that a name stands in, and the packages around it, which run before it."""
        place = holder(name, self._modules)
        while place:
            yield place
            place = holder(place.rpartition(".")[0], self._modules)

    def _named(self, part: Part) -> set[str]:
        names = {name for text in part.strings for name in DOTTED.findall(text)}
        places = {place for name in names if (place := holder(name, self._modules)) and "." in place}
        started = {module for module in self._modules if module.endswith(".__main__")}
        return places | {
            module
            for module in started
            if module.removesuffix(".__main__") in places or any(module.startswith(begun) for begun in part.begun)
        }

    def _conftests(self, path: str) -> list[str]:
        names = (module_of(Path(folder, "conftest.py")) for folder in Path(path).parents)
        return [name for name in names if name in self.parts]

    def _fixtures_for(self, path: str, words: set[str]) -> list[Part]:
        """The fixtures above a test that it names, that those name in turn, and that every test gets."""
        if not path.startswith("tests/") or path.endswith("/conftest.py"):
            return []
        possible = {
            name: part for conftest in self._conftests(path) for name, part in self.parts[conftest].fixtures.items()
        }
        taken: dict[str, Part] = {}
        names = [name for name, part in possible.items() if part.always or name in words]
        while names:
            name = names.pop()
            if name not in taken:
                taken[name] = part = possible[name]
                computed = "getfixturevalue" in part.words
                names += [other for other in possible if computed or other in part.words]
        return list(taken.values())

    def _naming(self, path: str) -> list[str]:
        """The modules with a string that names a file, by its name, its path or a folder around it.

        The product's own modules count for files beside its code, such as pages and templates.
        """
        file = PurePosixPath(path)
        folders = list(file.parents)[:-1]
        names = {path} | {str(folder) for folder in folders}
        if file.suffix != ".py":
            names = (names | {file.name} | {folder.name for folder in folders}) - {*CODE[:3]}
        by_product = path.startswith(PRODUCT) and file.suffix != ".py"
        return [
            module
            for module, part in self.parts.items()
            if (by_product or not self.paths[module].startswith(PRODUCT))
            and any(text.rstrip("/") in names or text.endswith(f"/{file.name}") for text in _strings(part))
        ]


def _strings(part: Part) -> set[str]:
    return part.strings.union(*(fixture.strings for fixture in part.fixtures.values()))
