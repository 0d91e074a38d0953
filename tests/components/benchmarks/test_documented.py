"""Each benchmark that a page names can be started, and each that can be started is named by a page."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "Makefile")
DOCUMENTED = {
    name for page in PAGES for name in re.findall(r"benchmarks(?:\.[a-z_]+)+", page.read_text(encoding="utf-8"))
}


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_prints_its_help(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(name, run_name="__main__", alter_sys=False)
    assert not ended.value.code and "usage" in capsys.readouterr().out.lower()


def test_is_documented() -> None:
    started = {path for path in ROOT.glob("benchmarks/**/*.py") if '__name__ == "__main__"' in path.read_text("utf-8")}
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__") for path in started}
    assert names <= DOCUMENTED
