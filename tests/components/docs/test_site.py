"""The site's pages: all documents are on it, and the API reference has every operation and schema."""

import json
import re
from pathlib import Path

import pytest

from docsite import build, reference
from tests.components.docs.tables import ROOT

DOCUMENT = json.loads((ROOT / "openapi" / "openapi.json").read_text())
PAGES = reference.pages(DOCUMENT)


def test_every_document_is_on_the_site_and_in_the_navigation_or_the_decisions_index() -> None:
    pages = {str(page) for page in build.pages()}
    assert {str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md")} <= pages
    assert {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"} <= pages
    in_navigation = re.findall(r'= "([^"]+\.md)"', (ROOT / "docsite" / "zensical.toml").read_text())
    assert {page for page in pages if "docs/decisions/0" not in page} == set(in_navigation)


def test_the_page_of_pages_names_each_page_of_the_navigation() -> None:
    in_navigation = re.findall(r'= "([^"]+\.md)"', (ROOT / "docsite" / "zensical.toml").read_text())
    page = ROOT / "docs" / "README.md"
    named = {
        str((page.parent / target).resolve().relative_to(ROOT))
        for target in re.findall(r"\]\(([^)#]+\.md)", page.read_text())
    }
    strategies = {name for name in in_navigation if re.fullmatch(r"docs/strategies/[a-z_]+\.md", name)}
    assert named == set(in_navigation) - strategies - {"docs/README.md"}


def test_the_reference_has_every_operation_with_its_statuses() -> None:
    text = "\n".join(text for _, text in PAGES.values())
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            if method != "parameters":
                section = text.partition(f"## `{method.upper()} {path}`\n")[2].partition("\n## ")[0]
                assert operation["summary"] in section
                assert all(f"\n| {status} | " in section for status in operation["responses"])


def test_the_reference_has_every_schema_with_its_fields_and_links_only_to_those() -> None:
    _, schemas = PAGES["schemas.md"]
    for name, schema in DOCUMENT["components"]["schemas"].items():
        section = schemas.partition(f"## {name} {{")[2].partition("\n## ")[0]
        assert all(f"\n| `{field}` | " in section for field in schema.get("properties", ()))
    anchors = set(re.findall(r"\{ #(\S+) \}", schemas))
    linked = {anchor for _, text in PAGES.values() for anchor in re.findall(r"\(schemas\.md#([^)]+)\)", text)}
    assert linked and linked <= anchors


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[a page](other.md#part)", "[a page](other.md#part)"),
        ("[a folder](folder)", "a folder"),
        ("[a folder](readable/)", "[a folder](readable/README.md)"),
        ("[`a file`](folder/file.py)", "[`a file`](folder/file.py)"),
        ("[elsewhere](https://example.com)", "[elsewhere](https://example.com)"),
        ("```text\n[code](nothing)\n```", "```text\n[code](nothing)\n```"),
    ],
)
def test_links_lead_to_pages_or_copies_of_files(
    written: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("other.md", "folder/file.py", "readable/README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "page.md").write_text(written)
    monkeypatch.setattr(build, "ROOT", tmp_path)
    build.staged(Path("page.md"), tmp_path / "out")
    assert (tmp_path / "out" / "page.md").read_text() == shown
    assert (tmp_path / "out" / "folder" / "file.py").exists() == ("file.py" in written)


def test_a_link_to_nothing_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text("[gone](gone.md)")
    monkeypatch.setattr(build, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"page\.md: gone\.md does not exist"):
        build.staged(Path("page.md"), tmp_path / "out")
