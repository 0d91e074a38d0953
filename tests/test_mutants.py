"""The guards that `make mutants` takes away stand where they are said to stand, and their tests exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.__main__ import chosen, without
from tests.mutants.guard import Guard
from tests.mutants.guards import GUARDS

ROOT = Path(__file__).parents[1]
NAMES = [guard.name for guard in GUARDS]


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("guard", GUARDS, ids=NAMES)
def test_every_guard_stands_once_and_its_test_exists(guard: Guard) -> None:
    text = (ROOT / guard.file).read_text()
    count = text.count(guard.guarded)
    assert count == 1, f"{guard.file} has the guarded text {count} times: move its entry in tests/mutants with the code"
    if guard.file.endswith(".py"):
        ast.parse(text.replace(guard.guarded, guard.without))
    file, _, test = guard.test.partition("::")
    assert re.sub(r"\[.*\]$", "", test) in functions(file), f"{file} has no {test}: correct the entry in tests/mutants"


def test_every_guard_has_a_name_of_its_own() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_words_choose_guards_by_name_and_by_file() -> None:
    assert chosen([]) == [*GUARDS]
    files = {guard.file for guard in chosen(["engine/pool.py"])}
    assert files == {"serve_deployments/engine/pool.py"}
    assert [guard.name for guard in chosen(["take turns at a full engine"])] == ["tenants take turns at a full engine"]
    assert not chosen(["no guard has this name"])


def test_a_guard_is_restored_and_a_missing_one_raises(tmp_path: Path) -> None:
    file = tmp_path / "part.py"
    file.write_text("if guarded:\n    stop()\n")
    guard = Guard("guard", "part.py", "if guarded:", "if False:", "test")
    with without(guard, tmp_path):
        assert file.read_text() == "if False:\n    stop()\n"
    assert file.read_text() == "if guarded:\n    stop()\n"
    file.write_text("stop()\n")
    with pytest.raises(LookupError, match="0 times"), without(guard, tmp_path):
        pass
