"""`make affected` selects what a change can reach, nearest first."""

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.affected.__main__ import TARGETS, markers_in
from tests.affected.reach import Repository
from tests.import_graph import ROOT

TREE = {
    "pyproject.toml": "",
    "deliberation_gateway.py": "def main():\n    from app.cli import main\n",
    "app/__init__.py": "",
    "app/core.py": '"""Read by app.gateway."""\n',
    "app/gateway.py": "from app.core import a\n",
    "app/cli.py": 'STARTED = ["-m", "app.gateway"]\n',
    "app/archive/__init__.py": "",
    "app/archive/__main__.py": "",
    "app/page.html": "",
    "app/pages.py": "from pathlib import Path\nPAGE = Path(__file__).parent / 'page.html'\n",
    "app/lonely.py": "",
    "docs/api.md": "",
    "tests/conftest.py": "import pytest\n@pytest.fixture\ndef journal():\n    from app.archive import a\n",
    "tests/unit/test_core.py": "from app import core\n",
    "tests/unit/test_gateway.py": "def test_a():\n    import app.gateway\n",
    "tests/components/told.py": "import app.core\n",
    "tests/components/test_told.py": "from tests.components.told import a\n",
    "tests/components/test_pages.py": "from app.pages import PAGE\n",
    "tests/components/test_patched.py": 'def test_a(monkeypatch):\n    monkeypatch.setattr("app.gateway.a", 1)\n',
    "tests/components/test_docs.py": 'from pathlib import Path\nPAGES = Path("docs").glob("*.md")\n',
    "tests/components/test_journal.py": "def test_a(journal): ...\n",
    "tests/integration/test_processes.py": 'NAME = "archive"\nMODULE = f"app.{NAME}"\n',
    "tests/e2e/conftest.py": 'import pytest\n@pytest.fixture\ndef stack():\n    yield ["deliberate", "up"]\n',
    "tests/e2e/test_stack.py": "def test_a(stack): ...\n",
    "tests/e2e/test_alone.py": "",
}
EVERY_TEST = {path for path in TREE if path.rpartition("/")[2].startswith("test_")}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for path, text in TREE.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.mark.parametrize(
    ("changed", "tests"),
    {
        "app/core.py": "unit/test_core unit/test_gateway components/test_told components/test_patched e2e/test_stack",
        "app/gateway.py": "unit/test_gateway components/test_patched e2e/test_stack",
        "app/cli.py": "e2e/test_stack",
        "app/lonely.py": "",
        "app/archive/__init__.py": "components/test_journal integration/test_processes",
        "app/archive/__main__.py": "integration/test_processes",
        "app/page.html": "components/test_pages",
        "docs/api.md": "components/test_docs",
        "docs/new/page.md": "components/test_docs",
        "tests/components/told.py": "components/test_told",
        "tests/components/test_told.py": "components/test_told",
        "tests/e2e/conftest.py": "e2e/test_stack e2e/test_alone",
    }.items(),
)
def test_a_change_selects_what_it_can_reach(tree: Path, changed: str, tests: str) -> None:
    assert Repository(tree).reached([changed]).keys() == {f"tests/{name}.py" for name in tests.split()}


def test_a_module_that_is_gone_selects_what_still_names_it(tree: Path) -> None:
    gone = "app/gateway/removed.py"
    assert "tests/unit/test_gateway.py" not in Repository(tree, [gone]).reached([gone])
    (tree / "tests/unit/test_removed.py").write_text("import app.removed\n")
    assert Repository(tree, ["app/removed.py"]).reached(["app/removed.py"]).keys() == {"tests/unit/test_removed.py"}
    (tree / "tests/unit/test_removed.py").unlink()


@pytest.mark.parametrize("path", ["pyproject.toml", "requirements-dev.lock", "tests/conftest.py"])
def test_what_every_test_depends_on_selects_all_and_the_pure_ones_first(tree: Path, path: str) -> None:
    reached = list(Repository(tree).reached([path]))
    assert set(reached) == EVERY_TEST
    assert reached[:2] == ["tests/unit/test_core.py", "tests/unit/test_gateway.py"]
    assert set(reached[-2:]) == {"tests/e2e/test_stack.py", "tests/e2e/test_alone.py"}


def test_the_nearest_tests_come_first_and_stacks_last_unless_they_have_changed(tree: Path) -> None:
    reached = list(Repository(tree).reached(["app/core.py", "tests/components/told.py"]))
    assert reached[0] == "tests/unit/test_core.py" and reached[-1] == "tests/e2e/test_stack.py"
    changed = list(Repository(tree).reached(["app/core.py", "tests/e2e/test_stack.py"]))
    assert changed[0] == "tests/e2e/test_stack.py"


def test_the_rule_holds_for_this_repository() -> None:
    repository = Repository(ROOT)

    def first(path: str, *tests: str) -> Mapping[str, int]:
        reached = repository.reached([path])
        assert set(tests) <= set(list(reached)[:12])
        return reached

    pool = first("serve_deployments/engine/pool.py", "tests/components/engine/test_pool.py")
    assert {
        "tests/test_architecture.py",
        "tests/e2e/test_burst.py",
        "tests/integration/serve/test_application.py",
    } <= pool.keys()
    assert "tests/unit/test_fold.py" not in pool
    first("docs/workspaces.md", "tests/components/docs/test_docs.py")
    assert repository.reached(["pyproject.toml"]).keys() == set(repository.tests)
    assert len(repository.tests) > 300


def test_files_that_need_more_than_the_installation_are_told_apart() -> None:
    mark = "pytest.mark"
    assert markers_in(f"pytestmark = [{mark}.browser, {mark}.e2e]\n")[0] == {"browser"}
    assert markers_in(f"@{mark}.engines\ndef test_a(): ...\n") == (set(), {"engines"})
    registered = (ROOT / "pyproject.toml").read_text()
    assert all(f'"{marker}: ' in registered for marker in TARGETS)


def test_no_test_begins_after_the_deadline_and_its_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_late.py").write_text("def test_a(): assert False\n")
    (tmp_path / "order").write_text("test_late.py")
    until, left = time.time() - 1, tmp_path / "left"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.affected.deadline",
        "-c",
        "/dev/null",
        "--rootdir",
        tmp_path,
    ]
    options = [f"--until={until}", f"--left-to={left}", f"--order={tmp_path / 'order'}", tmp_path / "test_late.py"]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, left.read_text()) == (0, "test_late.py\n"), done.stdout + done.stderr
