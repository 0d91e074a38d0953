"""The documents say what the code says."""

import re
from pathlib import Path

from app.settings import settings_table

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "docs" / "configuration.md"


def between(document: Path, marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", document.read_text(), re.DOTALL)
    assert found is not None, f"{document.name} has the markers <!-- {marker} --> and <!-- /{marker} -->"
    return found[1]


def test_every_setting_is_documented_as_the_code_has_it() -> None:
    assert between(CONFIGURATION, "settings").strip() == settings_table().strip(), (
        "write app.settings.settings_table() between the markers of docs/configuration.md"
    )


def test_every_variable_that_the_deploying_process_reads_is_documented() -> None:
    source = (ROOT / "serve_deployments" / "application.py").read_text()
    read = set(re.findall(r'os\.environ\.get\("([A-Z_]+)"', source))
    assert len(read) >= 5
    assert {name for name in read if f"`{name}`" not in settings_table()} == set()


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/*.md")]
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", document.read_text())
        if not (document.parent / target).exists()
    ]
    assert broken == []
