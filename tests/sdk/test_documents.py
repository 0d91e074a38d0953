from pathlib import Path

import pytest

from sdk import build
from tests.sdk.conftest import output_of

pytestmark = pytest.mark.sdk

LINT = Path(build.HERE) / "lint"
DOCUMENTS = ("openapi.json", "openapi-3.2.json")


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_redocly_reports_nothing(name: str) -> None:
    redocly = [*build.tool("@redocly/cli", "bin/cli.js"), "lint", build.CONTRACT / name]
    report = await output_of([*redocly, "--config", LINT / "redocly.yaml", "--format", "json"], REDOCLY_TELEMETRY="off")
    assert '"problems": []' in report


@pytest.mark.parametrize(
    ("name", "rules"), [*((each, "spectral.yaml") for each in DOCUMENTS), ("asyncapi.yaml", "spectral-asyncapi.yaml")]
)
async def test_spectral_reports_nothing(name: str, rules: str) -> None:
    spectral = [*build.tool("@stoplight/spectral-cli", "dist/index.js"), "lint", build.CONTRACT / name]
    report = await output_of([*spectral, "--ruleset", LINT / rules, "--fail-severity", "hint", "--format", "json"])
    assert report.partition("No results")[0].strip() in ("", "[]")
