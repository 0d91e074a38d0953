import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from sdk import build
from tests.sdk.conftest import PYRIGHT, json_of, output_of

pytestmark = pytest.mark.sdk

CLIENTS = Path(__file__).with_name("clients")
TSC = build.tool("typescript", "bin/tsc")


async def outcome(url: str, results: dict[str, Any]) -> dict[str, Any]:
    assert results.pop("again") == results["id"]
    async with httpx.AsyncClient(base_url=url, headers={"Accept": "application/json"}) as http:
        page = await http.get(
            f"/deliberations/{results['id']}/events", params={"after": "0", "deltas": False, "limit": 1_000}
        )
    assert results.pop("events") == len(page.raise_for_status().json()["items"]) > 10
    assert results.pop("listed") == [results.pop("id")]
    assert results.pop("winner") == results.pop("event_winner")
    assert results.pop("rebuilt", True) is True
    return results


EXPECTED = {
    "status": "completed",
    "cancelled": "cancelled",
    "reason": "changed my mind",
    "refusals": [[422, "invalid_request", "/role"], [404, "not_found", None]],
}


async def test_the_python_client_type_checks() -> None:
    report = await output_of([PYRIGHT, "--pythonpath", build.python(), "-p", build.work() / "python"])
    assert "0 errors" in report


@pytest.mark.parametrize("recipe", ["hey-api", "openapi-typescript"])
async def test_a_typescript_client_type_checks(recipe: str) -> None:
    await output_of([*TSC, "--noEmit", "--project", build.work() / recipe])


async def test_the_python_client_works(url: str) -> None:
    folder = build.work() / "python"
    results = await json_of([build.python(), folder / "roundtrip.py", url, "none"])
    assert await outcome(url, results) == EXPECTED


@pytest.mark.parametrize("recipe", ["hey-api", "openapi-typescript"])
async def test_a_typescript_client_works(url: str, recipe: str) -> None:
    folder = build.work() / recipe
    await output_of([*TSC, "--project", folder])
    results = await json_of([build.NODE, folder / "dist" / "roundtrip.js", url, "none"])
    assert await outcome(url, results) == EXPECTED


async def generated(generator: str, folder: Path, *without: str) -> None:
    """Write the client of openapi-generator from the document, `without` some of its parts."""
    contract = json.loads((build.CONTRACT / "openapi.json").read_text())
    (folder / "openapi.json").write_text(json.dumps({name: contract[name] for name in contract if name not in without}))
    command = [build.python().with_name("openapi-generator-cli"), "generate", "-g", generator, "-i", "openapi.json"]
    await output_of([*command, "-o", "client"], cwd=folder)


WORKS = {"status": "completed", "same": [True, True], "refused": 404}


async def test_the_python_client_of_openapi_generator_works(quick_url: str, tmp_path: Path) -> None:
    # Its templates for Python write no types for operations of `webhooks`, so the file would be no Python.
    await generated("python", tmp_path, "webhooks")
    printed = await output_of(
        [build.python(), CLIENTS / "generated.py", quick_url], PYTHONPATH=str(tmp_path / "client")
    )
    assert json.loads(printed) == WORKS


async def test_the_typescript_client_of_openapi_generator_works(quick_url: str, tmp_path: Path) -> None:
    await generated("typescript-fetch", tmp_path)
    shutil.copy(CLIENTS / "generated.ts", tmp_path)
    (tmp_path / "node_modules").symlink_to(build.work() / "node_modules")
    options = ["--strict", "--module", "esnext", "--moduleResolution", "bundler", "--target", "es2022"]
    await output_of([*TSC, *options, "--types", "node", "--noEmit", "generated.ts"], cwd=tmp_path)
    bundle = ["--bundle", "--platform=node", "--format=esm", "--outfile=generated.mjs", "--log-level=error"]
    await output_of([*build.tool("esbuild", "bin/esbuild"), "generated.ts", *bundle], cwd=tmp_path)
    assert await json_of([build.NODE, tmp_path / "generated.mjs", quick_url]) == WORKS
