"""The rules of ARCHITECTURE.md hold. They are read off the source, without importing it."""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.import_graph import ROOT, circle_in, imported_names, module_of

PACKAGES = ("app", "serve_deployments")
BESIDE_THE_PRODUCT = ("tests", "benchmarks", "deploy", "sdk", "docsite", "examples")

# The pure core: nothing here can wait, read a clock or an environment, draw by chance, log, or reach another machine.
PURE_STDLIB = {
    "bisect",
    "collections",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "itertools",
    "json",
    "math",
    "posixpath",
    "re",
    "statistics",
    "string",
    "types",
    "typing",
    "urllib.parse",
    "unicodedata",
}
IMPURE_CALLS = {"now", "utcnow", "today", "open", "print", "input", "eval", "exec", "__import__"}

# The gateway's side, bottom up: a package imports only from itself and from packages above it in this list.
GATEWAY = (
    "app.sse",
    "app.control_characters",
    "app.secret_files",
    "app.tenant_slots",
    "app.bounded_child",
    "app.deliberation",
    "app.workspace",
    "app.inputs",
    "app.api",
    "app.log",
    "app.process_settings",
    "app.admission",
    "app.access",
    "app.settings",
    "app.catalog",
    "app.archive.database",
    "app.lifecycle",
    "app.observability",
    "app.streaming",
    "app.operations",
    "app.routes",
    "app.facades",
    "app.facades.mcp",
    "app.webhooks",
    "app.archive",
    "app.planning",
    "app.openapi",
    "app.main",
    "app.client",
    "app.cli",
)
# The cluster's side shares the pure core and what reaches the log, and no process with the gateway.
CLUSTER = (
    "app.sse",
    "app.control_characters",
    "app.secret_files",
    "app.tenant_slots",
    "app.bounded_child",
    "app.deliberation",
    "app.workspace",
    "app.log",
    "app.process_settings",
    "app.admission",
    "app.observability",
    "serve_deployments.ray_start",
    "serve_deployments.identity",
    "serve_deployments.node_directory",
    "serve_deployments.sandbox",
    "serve_deployments.tools",
    "serve_deployments.workspace",
    "serve_deployments.engine",
    "serve_deployments.arguments",
    "serve_deployments.agent",
    "serve_deployments.coordinator",
    "serve_deployments",
)
# An engine knows nothing of its clients.
SIMULATOR = ("serve_deployments.simulator",)

# Drivers, and the adapter of the log: the packages that import them.
DRIVERS: dict[str, tuple[str, ...]] = {
    "ray": ("serve_deployments",),
    "nats": ("app.log",),
    "app.log.journal": (
        "app.log",
        "app.main",
        "app.webhooks.sender",
        "app.archive",
        "app.planning",
        "app.cli",
        "serve_deployments",
    ),
    "sqlalchemy": ("app.archive.database",),
    "alembic": ("app.archive.database",),
    "httpx": ("serve_deployments.engine", "app.client", "app.cli"),
    "httpx_aiohttp": ("serve_deployments.engine",),
    "aiohappyeyeballs": ("serve_deployments.engine",),
    "aiohttp": ("serve_deployments.engine", "app.webhooks.sender"),
    "uvicorn": ("app.routes", "app.main", "app.cli", "serve_deployments.simulator"),
    "typer": ("app.cli", "serve_deployments.simulator", "serve_deployments.agent.__main__", "serve_deployments.gguf"),
    "rich": ("app.cli",),
    "mcp": ("app.facades.mcp", "app.cli", "serve_deployments.tools"),
    "mcp_types": ("app.facades.mcp", "serve_deployments.tools"),
    "requests": (),
    "opentelemetry": ("app.observability",),
    "pypdf": ("app.inputs",),
    "docx": ("app.inputs",),
    "PIL": ("app.inputs",),
    "charset_normalizer": ("app.inputs",),
}

# The functions that may catch an error of any kind. A defect in one deliberation, call or delivery does not end the
# others. Any error of a program under test is that program's failure; one that a tool server causes is the server's.
BROAD_EXCEPTS = {
    ("app.log.queue_worker", "_redelivery_delay"),
    ("serve_deployments.agent.agent", "_outcome_of"),
    ("serve_deployments.coordinator.coordinator", "_supervised"),
    ("serve_deployments.sandbox.zygote", "_run"),
    ("serve_deployments.tools.mcp_client", "_failures"),
    ("serve_deployments.tools.servers", "_keep"),
}
# Nodes that no rule is about, nor any of their children.
LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.cmpop, ast.alias)
FORBIDDEN_NAMES = {"utils", "util", "core", "common", "base", "helpers", "helper", "manager", "managers", "misc"}


@dataclass
class Source:
    """The parts of a module that the rules read; to keep all syntax trees would cost a second at exit."""

    imports: list[str] = field(default_factory=list[str])
    types: list[str] = field(default_factory=list[str])
    calls: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    broad_excepts: set[str] = field(default_factory=set[str])
    broad_suppressions: list[int] = field(default_factory=list[int])
    globals: list[int] = field(default_factory=list[int])


@cache
def modules() -> dict[str, Source]:
    """The modules of the product by dotted name."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {module_of(path.relative_to(ROOT)): source_of(path.read_text()) for path in paths}


def source_of(text: str) -> Source:
    """One pass over a module's syntax tree."""
    tree = ast.parse(text)
    source = Source(types=list(types_defined(tree)))
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        function, node = waiting.pop()
        read(node, function, source)
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        waiting.extend((inner, child) for child in ast.iter_child_nodes(node) if not isinstance(child, LEAVES))
    return source


def read(node: ast.AST, function: str, source: Source) -> None:
    """Add to the source what the rules read off a node in this function."""
    match node:
        case ast.Import() | ast.ImportFrom():
            source.imports += imported_names(node)
        case ast.Call():
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            source.calls.append((node.lineno, name))
            if name == "suppress" and any(_broad(argument) for argument in node.args):
                source.broad_suppressions.append(node.lineno)
        case ast.ExceptHandler():
            source.broad_excepts |= {function} if _broad(node.type) else set[str]()
        case ast.Global():
            source.globals.append(node.lineno)
        case _:
            pass


def _broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(getattr(kind, "id", "") in ("Exception", "BaseException") for kind in kinds)


def within(name: str, package: str) -> bool:
    """Whether a dotted name is a package or stands below it."""
    return name == package or name.startswith(f"{package}.")


def side_of(module: str) -> tuple[str, ...]:
    """The ordered list of packages that a module belongs to."""
    if within(module, "serve_deployments.simulator"):
        return SIMULATOR
    return CLUSTER if within(module, "serve_deployments") else GATEWAY


def package_of(name: str, packages: tuple[str, ...]) -> str | None:
    """The innermost of these packages that holds a dotted name."""
    return max((package for package in packages if within(name, package)), key=len, default=None)


def test_the_product_is_read() -> None:
    assert {
        "app.main",
        "app.log.journal",
        "app.deliberation.decider",
        "serve_deployments.coordinator.coordinator",
    } <= modules().keys()
    assert "app.deliberation.fold.State" in modules()["app.deliberation.decider"].imports


def test_the_core_imports_the_pure_part_of_the_standard_library_and_pydantic_alone() -> None:
    faults = [
        f"{module} imports {name}"
        for module, source in modules().items()
        if within(module, "app.deliberation")
        for name in source.imports
        if not any(within(name, pure) for pure in (*PURE_STDLIB, "pydantic", "app.deliberation"))
    ]
    assert faults == []
    assert set(sys.stdlib_module_names) >= {name.partition(".")[0] for name in PURE_STDLIB}


def test_the_core_reads_no_clock_and_has_no_side_effect() -> None:
    faults = [
        f"{module}:{line} calls {name}"
        for module, source in modules().items()
        if within(module, "app.deliberation")
        for line, name in source.calls
        if name in IMPURE_CALLS
    ]
    assert faults == []


def test_a_package_imports_only_from_packages_above_it_in_the_list() -> None:
    faults: list[str] = []
    for module, source in modules().items():
        packages = side_of(module)
        package = package_of(module, packages)
        assert package is not None or module == "app", f"{module} belongs to no package"
        for name in source.imports:
            if name in PACKAGES or name.partition(".")[0] not in PACKAGES:
                continue
            imported = package_of(name, packages)
            if package is None or imported is None or packages.index(imported) > packages.index(package):
                faults.append(f"{module} imports {name}")
    assert faults == []


def test_no_imports_form_a_circle() -> None:
    """Imports for type checkers alone count too: a reader follows them, and one of them soon runs."""
    assert circle_in({module: source.imports for module, source in modules().items()}) == []


def test_a_circle_is_told_in_the_order_of_its_imports() -> None:
    circle = {"a": ["b.Name", "json"], "b": ["c.d.Name"], "c.d": ["a"], "e": ["a", "b"]}
    assert circle_in(circle) in (["a", "b", "c.d", "a"], ["b", "c.d", "a", "b"], ["c.d", "a", "b", "c.d"])
    assert circle_in({**circle, "c.d": ["e.f"], "e": []}) == []


def test_no_module_imports_from_a_test_module() -> None:
    """What tests share stands in a module beside them, with a name that says what it holds."""
    paths = [path for folder in BESIDE_THE_PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
    assert Path(__file__) in paths
    faults = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in paths
        for name in imports_of(path.read_text())
        if re.search(r"^tests\.(.*\.)?test_", name)
    ]
    assert faults == [], "move what is shared to a module beside them, with a name that says what it holds"


@pytest.mark.parametrize(
    "text", ["from tests.unit.test_a import b", "from tests.unit import test_a", "def f():\n    import tests.test_a"]
)
def test_an_import_from_a_test_module_is_found_however_it_is_written(text: str) -> None:
    assert any(re.search(r"^tests\.(.*\.)?test_", name) for name in imports_of(text))


def imports_of(text: str) -> list[str]:
    """The names of imports alone; texts that name no test module after `import` are not parsed."""
    if not re.search(r"^\s*(from|import)\s.*\btest_|^\s*from tests\S* import \(", text, re.MULTILINE):
        return []
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom))
    return [name for node in nodes for name in imported_names(node)]


def test_a_facade_imports_neither_another_one_nor_the_gateway() -> None:
    """A package below `app.facades` is a façade; the modules beside it are the base."""
    below = {path.parent.name for path in (ROOT / "app" / "facades").glob("*/__init__.py")}
    assert {"chat"} <= below
    faults = [
        f"{module} imports {name}"
        for module, source in modules().items()
        for own in below
        if within(module, f"app.facades.{own}")
        for name in source.imports
        if any(within(name, f"app.facades.{other}") for other in below - {own})
        or within(name, "app.routes.dependencies.Gateway")
        or within(name, "app.routes.dependencies.InGateway")
    ]
    assert faults == []


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_driver_is_imported_only_by_its_packages(driver: str) -> None:
    faults = [
        f"{module} imports {name}"
        for module, source in modules().items()
        if package_of(module, DRIVERS[driver]) is None
        for name in set(source.imports)
        if within(name, driver)
    ]
    assert faults == []


def test_no_public_type_name_is_defined_twice() -> None:
    modules_of: dict[str, list[str]] = {}
    for module, source in modules().items():
        for name in source.types:
            modules_of.setdefault(name, []).append(module)
    assert {name: names for name, names in modules_of.items() if len(names) > 1} == {}


def types_defined(tree: ast.Module) -> Iterator[str]:
    """Public classes and type aliases at the top of a module: names in capitalised words."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                names = [name]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case ast.Assign(targets=[ast.Name(id=name)]):
                names = [name]
            case _:
                names = []
        yield from (name for name in names if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name))


def test_the_core_and_the_log_know_no_http() -> None:
    faults = [
        f"{module} imports {name}"
        for module, source in modules().items()
        if within(module, "app.deliberation") or within(module, "app.log")
        for name in source.imports
        if within(name, "fastapi") or within(name, "starlette") or within(name, "http")
    ]
    assert faults == []


def test_no_file_or_folder_has_a_name_that_means_nothing() -> None:
    words = {word for module in modules() for part in module.split(".") for word in re.split(r"_+", part)}
    assert words & FORBIDDEN_NAMES == set()


def test_any_error_is_caught_at_the_named_places_alone() -> None:
    broad = {(module, function) for module, source in modules().items() for function in source.broad_excepts}
    assert broad == BROAD_EXCEPTS


def test_the_document_lists_the_packages_of_each_driver() -> None:
    rows = (
        f"| `{driver}` | {', '.join(f'`{name}`' for name in names) or 'nowhere'} |" for driver, names in DRIVERS.items()
    )
    assert "\n".join(rows) in document()


def test_the_document_lists_the_functions_that_catch_any_error() -> None:
    rule = re.search(r"^- `except Exception` .*?(?=^- )", document(), re.MULTILINE | re.DOTALL)
    assert rule is not None
    assert set(re.findall(r"`(\w+(?:\.\w+)+)`", rule[0])) == {".".join(place) for place in BROAD_EXCEPTS}


def test_the_document_has_a_row_for_everything_on_top_of_the_gateways_package() -> None:
    rows = re.findall(r"^\| (`app/.*?) \|", document(), re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(app/[^`]*?)/?`", row)}
    entries = {f"app/{path.name}" for path in (ROOT / "app").iterdir() if path.suffix != ".pyc"}
    assert entries - {"app/__init__.py", "app/__pycache__"} - listed == set(), (
        "add a row to the packages of ARCHITECTURE.md"
    )
    assert {name for name in listed if not (ROOT / name).exists()} == set(), "remove the row of what is gone"


@cache
def document() -> str:
    return (ROOT / "ARCHITECTURE.md").read_text()


def test_no_suppression_covers_any_error() -> None:
    faults = [f"{module}:{line}" for module, source in modules().items() for line in source.broad_suppressions]
    assert faults == []


def test_no_module_has_global_state_that_functions_rebind() -> None:
    faults = [f"{module}:{line}" for module, source in modules().items() for line in source.globals]
    assert faults == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import nats.errors", "nats"),
        ("from nats.errors import Error", "nats"),
        ("def f():\n    from app.log import journal", "app.log.journal"),
        ("import app.log.journal as log", "app.log.journal"),
    ],
)
def test_an_import_is_found_however_it_is_written(source: str, name: str) -> None:
    assert any(within(imported, name) for imported in source_of(source).imports)


@pytest.mark.parametrize(
    ("caught", "functions"),
    [
        ("except:", {"f"}),
        ("except Exception:", {"f"}),
        ("except (ValueError, BaseException):", {"f"}),
        ("except ValueError:", set[str]()),
    ],
)
def test_a_broad_except_is_found_however_it_is_written(caught: str, functions: set[str]) -> None:
    text = f"def f():\n    try:\n        g()\n    {caught}\n        pass"
    assert source_of(text).broad_excepts == functions


def test_calls_suppressions_and_globals_are_found() -> None:
    read = source_of(
        "def f():\n    global a\n    a = datetime.now()\n    with suppress(OSError, Exception):\n        g()"
    )
    assert sorted(read.calls) == [(3, "now"), (4, "suppress"), (5, "g")]
    assert (read.broad_suppressions, read.globals) == ([4], [2])
