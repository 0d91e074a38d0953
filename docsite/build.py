"""Build the documentation as a site in build/docs/site, offline: `python -m docsite.build`, which `make docs` runs.

Links stay those of the repository, so the pages keep their paths. A link to another file leads to a copy of that file.
A link to a folder leads to its README, or becomes plain text. Broken links and anchors end the build.

Zensical builds the site: it is by the authors of mkdocs-material, whose maintenance ends in November 2026. It is marked
alpha, so the lock pins it. Its offline plugin and its Mermaid support load scripts from another host; both are off.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

from docsite.reference import pages as reference_pages

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "docs"
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_NAV_ENTRY = re.compile(r'\{ "API reference" = \[\] \}')


def pages() -> list[Path]:
    """The Markdown pages of the site, by their paths in the repository."""
    config = tomllib.loads((Path(__file__).with_name("zensical.toml")).read_text(encoding="utf-8"))
    named = [Path(page) for section in config["project"]["nav"] for page in _paths_in(section)]
    return sorted({*named, *(page.relative_to(ROOT) for page in ROOT.glob("docs/**/*.md"))})


def _paths_in(entry: object) -> list[str]:
    match entry:
        case str():
            return [entry]
        case dict():
            return [path for part in entry.values() for path in _paths_in(part)]
        case _:
            return [path for part in entry for path in _paths_in(part)]


def staged(page: Path, target: Path) -> None:
    """Write a page below `target`, with the files that it links to."""
    text = (ROOT / page).read_text(encoding="utf-8")

    def link(found: re.Match[str]) -> str:
        label, path, anchor = found[1], found[2], found[3] or ""
        linked = (ROOT / page.parent / path).resolve()
        if not linked.is_relative_to(ROOT) or not linked.exists():
            sys.exit(f"{page}: {path} does not exist")
        if linked.is_dir():
            if not (linked / "README.md").exists():
                return label
            return f"[{label}]({path.rstrip('/')}/README.md{anchor})"
        if linked.suffix != ".md":
            copy = target / linked.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(linked, copy)
        return found[0]

    (target / page).parent.mkdir(parents=True, exist_ok=True)
    (target / page).write_text(_outside_code(text, link), encoding="utf-8")


def _outside_code(text: str, link: Callable[[re.Match[str]], str]) -> str:
    """The text with `link` applied to each link outside fenced blocks."""
    parts, end = list[str](), 0
    for code in _CODE.finditer(text):
        parts += [_LINK.sub(link, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _LINK.sub(link, text[end:])])


def main() -> None:
    """Stage the pages and run the generator on them; its warnings are errors."""
    target = WORK / "pages"
    shutil.rmtree(WORK, ignore_errors=True)
    for page in pages():
        staged(page, target)
    document = json.loads((ROOT / "openapi" / "openapi.json").read_text(encoding="utf-8"))
    (target / "reference").mkdir()
    entries = list[str]()
    for name, (title, text) in reference_pages(document).items():
        (target / "reference" / name).write_text(text, encoding="utf-8")
        entries.append(f'{{ "{title}" = "reference/{name}" }}')
    config = Path(__file__).with_name("zensical.toml").read_text(encoding="utf-8")
    filled = _NAV_ENTRY.sub(f'{{ "API reference" = [{", ".join(entries)}] }}', config)
    (WORK / "zensical.toml").write_text(filled, encoding="utf-8")
    generator = Path(sys.executable).with_name("zensical")
    built = subprocess.run(
        [generator, "build", "--strict", "--clean"], cwd=WORK, env={**os.environ, "NO_COLOR": "1"}, check=False
    )
    if built.returncode:
        sys.exit(built.returncode)
    site = (WORK / "site").relative_to(ROOT)
    print(f"{site}/index.html; read it with search: python3 -m http.server --bind 127.0.0.1 --directory {site} 8000")


if __name__ == "__main__":
    main()
