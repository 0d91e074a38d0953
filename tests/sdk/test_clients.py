from typing import Any

import httpx
import pytest

from sdk import build
from tests.sdk.conftest import PYRIGHT, json_of, output_of

pytestmark = pytest.mark.sdk

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
