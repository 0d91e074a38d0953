import json
import re
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from sdk import build
from tests.sdk.conftest import PYRIGHT, output_of

pytestmark = pytest.mark.sdk

PAGE = build.HERE.parent / "docs" / "sdks.md"
URL = "http://127.0.0.1:8080"
HELPERS = ["EventStream", "MultiplexedStream"]
TSC = [*build.tool("typescript", "bin/tsc"), "--strict", "--module", "nodenext", "--target", "es2022", "--rootDir", "."]


def program_with(language: str, mark: str) -> str:
    programs = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (found,) = (program for program in programs if mark in program)
    return found


@pytest.fixture
async def finished(quick_url: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=quick_url, headers={"Prefer": "wait=60"}, timeout=70) as http:
        answered = await http.post("/deliberations", json={"task": "Name a colour.", "strategy": "single", "seed": 7})
    assert answered.status_code == 200, answered.text
    return answered.json()


def winning_text(finished: dict[str, Any]) -> str:
    return json.dumps(finished["verdict"]["content"], ensure_ascii=False)


async def compiled(recipe: str, program: str) -> Path:
    folder = build.work() / recipe
    source = written(folder / "documented.ts", program)
    await output_of([*TSC, "--outDir", "documented", source], cwd=folder)
    return folder / "documented" / "documented.js"


def written(path: Path, program: str) -> Path:
    path.write_text(program)
    return path


async def well_typed(path: Path, interpreter: str | Path, root: Path) -> Path:
    assert "0 errors" in await output_of([PYRIGHT, "--pythonpath", interpreter, path], cwd=root)
    return path


async def test_the_documented_python_client_works(quick_url: str) -> None:
    program = program_with("python", "from deliberation_client").replace(URL, quick_url)
    folder = build.work() / "python"
    path = await well_typed(written(folder / "documented.py", program), build.python(), folder)
    assert (await output_of([build.python(), path])).startswith("completed ")


@pytest.mark.parametrize("recipe", ["hey-api", "openapi-typescript"])
async def test_the_documented_typescript_client_works(quick_url: str, recipe: str) -> None:
    imported = {"hey-api": "./client/index.js", "openapi-typescript": "openapi-fetch"}[recipe]
    path = await compiled(recipe, program_with("ts", f'"{imported}"').replace(URL, quick_url))
    assert (await output_of([build.NODE, path])).startswith("completed ")


@pytest.mark.parametrize("helper", HELPERS)
async def test_the_documented_python_helper_works(
    quick_url: str, finished: dict[str, Any], tmp_path: Path, helper: str
) -> None:
    program = program_with("python", f"app.client import {helper}")
    path = await well_typed(written(tmp_path / "documented.py", program), sys.executable, build.HERE.parent)
    printed = await output_of([sys.executable, path, quick_url, finished["id"]])
    events, _, texts = printed.partition("deliberation.completed")
    assert "stream.opened" in events and winning_text(finished) in texts


@pytest.mark.parametrize("helper", HELPERS)
async def test_the_documented_typescript_helper_works(quick_url: str, finished: dict[str, Any], helper: str) -> None:
    path = await compiled("openapi-typescript", program_with("ts", f"import {{ {helper} }}"))
    printed = await output_of([build.NODE, path, quick_url, finished["id"]])
    end = {"EventStream": finished["verdict"]["winner"], "MultiplexedStream": "deliberation.completed"}[helper]
    events, _, texts = printed.partition(end)
    assert "stream.opened" in events and winning_text(finished) in texts


async def test_the_page_names_the_tested_versions() -> None:
    page = PAGE.read_text()
    locked = (build.HERE / "package.json").read_text() + (build.HERE / "requirements.in").read_text()
    for package, version in re.findall(r"([@\w/-]+)@(\d[\d.]+)", page):
        assert f'"{package}": "{version}"' in locked
    for requirement in re.findall(r"[\w-]+==[\d.]+", page):
        assert requirement in locked
