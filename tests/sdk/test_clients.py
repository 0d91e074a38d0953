"""Clients that nobody here wrote, generated from the document: they are well typed, and they work against the stack."""

from typing import Any

import httpx
import pytest

from sdk import build
from tests.sdk.conftest import PYRIGHT, json_of, output_of

pytestmark = pytest.mark.sdk

TSC = build.tool("typescript", "bin/tsc")


async def outcome(url: str, told: dict[str, Any]) -> dict[str, Any]:
    """What every client must have found, apart from the ids."""
    assert told.pop("again") == told["id"]
    async with httpx.AsyncClient(base_url=url, headers={"Accept": "application/json"}) as http:
        page = await http.get(
            f"/deliberations/{told['id']}/events", params={"after": "0", "deltas": False, "limit": 1_000}
        )
    assert told.pop("events") == len(page.raise_for_status().json()["items"]) > 10
    assert told.pop("listed") == [told.pop("id")]
    assert told.pop("winner") == told.pop("told_winner")
    assert told.pop("rebuilt", True) is True
    return told


EXPECTED = {
    "status": "completed",
    "cancelled": "cancelled",
    "reason": "changed my mind",
    "refusals": [[422, "invalid_request", "/role"], [404, "not_found", None]],
}


async def test_the_python_client_type_checks() -> None:
    said = await output_of([PYRIGHT, "--pythonpath", build.python(), "-p", build.work() / "python"])
    assert "0 errors" in said


@pytest.mark.parametrize("recipe", ["hey-api", "openapi-typescript"])
async def test_a_typescript_client_type_checks(recipe: str) -> None:
    await output_of([*TSC, "--noEmit", "--project", build.work() / recipe])


async def test_type_checks_find_wrong_uses() -> None:
    """The types say something: not everything passes."""
    script = build.work() / "openapi-typescript" / "wrong.ts"
    script.write_text(
        'import type { components } from "./schema.js";\n'
        'export const wrong: components["schemas"]["DeliberationRequest"] = { task: 5 };\n'
    )
    try:
        with pytest.raises(AssertionError, match="TS2322"):
            await output_of([*TSC, "--noEmit", "--strict", "--module", "nodenext", script])
    finally:
        script.unlink()


async def test_the_python_client_works(url: str) -> None:
    folder = build.work() / "python"
    told = await json_of([build.python(), folder / "roundtrip.py", url, "none"])
    assert await outcome(url, told) == EXPECTED


@pytest.mark.parametrize("recipe", ["hey-api", "openapi-typescript"])
async def test_a_typescript_client_works(url: str, recipe: str) -> None:
    folder = build.work() / recipe
    await output_of([*TSC, "--project", folder])
    told = await json_of([build.NODE, folder / "dist" / "roundtrip.js", url, "none"])
    assert await outcome(url, told) == EXPECTED
