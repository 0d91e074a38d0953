"""Imports run one way, and what the house rules out stays out. Read off the source, without importing it."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("app", "serve_deployments")

# The pure core: nothing here can wait, read a clock or an environment, draw by chance, log, or reach another machine.
PURE_STDLIB = {
    "bisect",
    "collections",
    "dataclasses",
    "datetime",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "itertools",
    "json",
    "math",
    "re",
    "statistics",
    "string",
    "types",
    "typing",
}
IMPURE_CALLS = {"now", "utcnow", "today", "open", "print", "input", "eval", "exec", "__import__"}

# Who may import a driver or an adapter: exactly these modules, or all below a name that ends in a dot.
IMPORTERS: dict[str, tuple[str, ...]] = {
    "ray": ("serve_deployments.",),
    "nats": ("app.log.journal", "app.log.ordered_subscription", "app.log.work_queue", "app.log.streams"),
    "httpx": ("serve_deployments.engine.client", "app.cli.", "app.client."),
    "httpx_aiohttp": ("serve_deployments.engine.client",),
    "aiohttp": ("serve_deployments.engine.client", "app.webhooks.sender.posting"),
    "standardwebhooks": ("app.webhooks.signatures",),
    "requests": (),
    "uvicorn": ("app.main", "app.streaming.connection", "app.cli.", "serve_deployments.simulator."),
    "typer": ("app.cli.", "serve_deployments.simulator.cli"),
    "rich": ("app.cli.",),
    # The adapters of the log: built by main, and by the command that declares streams.
    "app.log.journal": (
        "app.log.gateway_log",
        "app.log.work_queue",
        "app.log.streams",
        "app.cli.",
        "app.webhooks.sender.queue_worker",
        "app.webhooks.sender.service",
        "serve_deployments.",
    ),
    "app.log.streams": (
        "app.log.gateway_log",
        "app.log.work_queue",
        "app.cli.",
        "app.webhooks.sender.queue_worker",
        "app.webhooks.sender.service",
    ),
    "app.log.work_queue": (
        "serve_deployments.coordinator.coordinator",
        "serve_deployments.coordinator.work",
        "app.webhooks.sender.queue_worker",
    ),
    # What connects to hosts that clients name is a process of its own.
    "app.webhooks.sender.posting": ("app.webhooks.sender.delivery", "app.webhooks.sender.service"),
    "app.webhooks.sender.service": ("app.webhooks.__main__",),
    "app.main": (),
    "app.cli": ("app.cli.",),
    "app.client": ("app.cli.",),
    "app.testing": (),
    "serve_deployments": ("serve_deployments.",),
}

# Where an error of any kind may be caught, so that one deliberation's defect does not end the others, and so that
# whatever a program under test raises is told as its failure.
BROAD_EXCEPTS = {
    ("app.webhooks.sender.queue_worker", "_redelivery_delay"),
    ("serve_deployments.agent.agent", "_outcome_of"),
    ("serve_deployments.coordinator.coordinator", "_supervised"),
    ("serve_deployments.sandbox.trial", "run"),
}
FORBIDDEN_NAMES = {"utils", "util", "core", "common", "base", "helpers", "helper", "manager", "managers", "misc"}


@cache
def modules() -> dict[str, ast.Module]:
    """The syntax trees of the product by dotted name."""
    found: dict[str, ast.Module] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text(), path.name)
    return found


@cache
def imports(tree: ast.AST) -> tuple[str, ...]:
    """Every dotted name that is imported, at the top or later: of `from a import b` both `a` and `a.b`."""
    return tuple(_imports(tree))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def within(name: str, package: str) -> bool:
    """Whether a dotted name is a package or stands below it."""
    return name == package or name.startswith(f"{package}.")


def allowed(importer: str, names: tuple[str, ...]) -> bool:
    return any(within(importer, name[:-1]) if name.endswith(".") else importer == name for name in names)


def functions(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Each node with the name of the function that it stands in."""

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            yield function, child
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from walk(child, child.name if named else function)

    return walk(tree, "")


def test_the_product_is_read() -> None:
    assert {
        "app.main",
        "app.log.journal",
        "app.deliberation.engine",
        "serve_deployments.coordinator.coordinator",
    } <= modules().keys()
    assert "app.deliberation.fold" in set(imports(modules()["app.deliberation.engine"]))


def test_the_core_imports_the_pure_part_of_the_standard_library_and_pydantic_alone() -> None:
    faults = [
        f"{module} imports {name}"
        for module, tree in modules().items()
        if within(module, "app.deliberation")
        for name in imports(tree)
        if name.partition(".")[0] not in PURE_STDLIB | {"pydantic"} and not within(name, "app.deliberation")
    ]
    assert faults == []
    assert set(sys.stdlib_module_names) >= PURE_STDLIB


def test_the_core_reads_no_clock_and_has_no_side_effect() -> None:
    faults = [
        f"{module}:{node.lineno} calls {name}"
        for module, tree in modules().items()
        if within(module, "app.deliberation")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for name in [getattr(node.func, "attr", getattr(node.func, "id", ""))]
        if name in IMPURE_CALLS
    ]
    assert faults == []


@pytest.mark.parametrize("imported", IMPORTERS)
def test_a_driver_or_adapter_is_imported_only_where_it_belongs(imported: str) -> None:
    faults = [
        f"{module} imports {name}"
        for module, tree in modules().items()
        if not within(module, imported) and not allowed(module, IMPORTERS[imported])
        for name in set(imports(tree))
        if within(name, imported)
    ]
    assert faults == []


def test_ray_imports_of_the_gateway_its_core_its_log_its_queue_and_what_writes_log_lines_alone() -> None:
    faults = [
        f"{module} imports {name}"
        for module, tree in modules().items()
        if within(module, "serve_deployments")
        for name in imports(tree)
        if within(name, "app") and name != "app"
        if not any(
            within(name, each) for each in ("app.deliberation", "app.log", "app.admission", "app.observability.logs")
        )
    ]
    assert faults == []


def test_the_simulator_stands_alone() -> None:
    """It plays an engine, so it may know nothing of what it is asked for but the engine's API."""
    faults = [
        f"{module} imports {name}"
        for module, tree in modules().items()
        if within(module, "serve_deployments.simulator")
        for name in imports(tree)
        if any(within(name, foreign) for foreign in ("app", "ray", "nats"))
        or (within(name, "serve_deployments") and not within(name, "serve_deployments.simulator"))
        if name != "serve_deployments"
    ]
    assert faults == []


def test_routes_know_ports_and_never_adapters() -> None:
    routes = {
        module
        for module, tree in modules().items()
        if any(isinstance(node, ast.Call) and getattr(node.func, "id", "") == "APIRouter" for node in ast.walk(tree))
    }
    assert {"app.routes.deliberations", "app.routes.events"} <= routes
    adapters = (
        "app.log.journal",
        "app.log.streams",
        "app.log.work_queue",
        "app.main",
        "app.streaming.feed",
        "nats",
        "ray",
        "httpx",
    )
    faults = [
        f"{module} imports {name}"
        for module in routes
        for name in imports(modules()[module])
        if any(within(name, adapter) for adapter in adapters)
    ]
    assert faults == []


def test_statuses_of_http_are_told_by_the_edge_and_never_by_the_core() -> None:
    faults = [
        f"{module} imports {name}"
        for module, tree in modules().items()
        if within(module, "app.deliberation") or module in ("app.log.journal", "app.log.work_queue", "app.log.streams")
        for name in imports(tree)
        if within(name, "fastapi") or within(name, "starlette") or within(name, "http")
    ]
    assert faults == []


def test_no_file_or_folder_has_a_name_that_means_nothing() -> None:
    words = {word for module in modules() for part in module.split(".") for word in re.split(r"_+", part)}
    assert words & FORBIDDEN_NAMES == set()


def test_any_error_is_caught_at_the_named_place_alone() -> None:
    broad = {
        (module, function)
        for module, tree in modules().items()
        for function, node in functions(tree)
        if isinstance(node, ast.ExceptHandler) and _broad(node.type)
    }
    assert broad <= BROAD_EXCEPTS


def _broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(getattr(kind, "id", "") in ("Exception", "BaseException") for kind in kinds)


def test_nothing_is_suppressed_whatever_it_is() -> None:
    faults = [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) == "suppress"
        and any(_broad(argument) for argument in node.args)
    ]
    assert faults == []


def test_no_module_has_global_state_that_functions_rebind() -> None:
    faults = [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Global)
    ]
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
    assert any(within(each, name) for each in imports(ast.parse(source)))


def test_a_broad_except_is_found_however_it_is_written() -> None:
    sources = ["except:", "except Exception:", "except (ValueError, BaseException):", "except ValueError:"]
    trees = [ast.parse(f"def f():\n    try:\n        g()\n    {source}\n        pass") for source in sources]
    found = [
        [(function, _broad(node.type)) for function, node in functions(tree) if isinstance(node, ast.ExceptHandler)]
        for tree in trees
    ]
    assert found == [[("f", True)], [("f", True)], [("f", True)], [("f", False)]]
