"""The documents agree with the code."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from app.deliberation.decider import StrategyDefinition
from app.deliberation.facts import DEGRADED_REASONS
from app.deliberation.roles import Role
from app.deliberation.strategies import STRATEGIES
from app.openapi.asyncapi import asyncapi
from serve_deployments.workspace.workspace import TOOLS
from tests.components.docs.tables import (
    CONFIGURATION,
    ENGINES,
    NEIGHBOURS,
    OPERATIONS,
    ROOT,
    SETTINGS,
    between,
    causes_table,
    findings_table,
    settings_table,
    subjects_table,
)
from tests.unit.strategies.every_strategy import WAYS

PAGES = ROOT / "docs" / "strategies"

every_strategy = pytest.mark.parametrize("definition", STRATEGIES.values(), ids=STRATEGIES)


@pytest.mark.parametrize("marker", SETTINGS)
def test_every_setting_is_documented(marker: str) -> None:
    table = settings_table(marker)
    remedy = f"write {CONFIGURATION.name} by python -m tests.components.docs.tables"
    assert between(CONFIGURATION, marker).strip() == table, remedy
    assert all(field.description for field in SETTINGS[marker][0].model_fields.values())


def test_every_kind_of_finding_is_documented() -> None:
    remedy = f"write {OPERATIONS.name} and {ENGINES.name} by python -m tests.components.docs.tables"
    assert between(OPERATIONS, "findings").strip() == findings_table(), remedy
    assert between(ENGINES, "causes").strip() == causes_table(), remedy


def test_the_subjects_of_neighbours_are_those_of_the_asyncapi_document() -> None:
    table = subjects_table(asyncapi())
    assert between(NEIGHBOURS, "subjects").strip() == table, f"write this between the markers:\n{table}"


def test_every_tool_of_a_workspace_is_documented_with_its_arguments() -> None:
    rows = [(tool.name, ", ".join(f"`{name}`" for name in tool.input_schema["properties"])) for tool in TOOLS]
    _, _, section = (ROOT / "docs" / "workspaces.md").read_text().partition("\n## The tools\n")
    documented = re.findall(r"^\| `(\w+)` \| (.*?) \|", section.partition("\n## ")[0], re.MULTILINE)
    assert documented == rows, f"give the table of docs/workspaces.md these tools and arguments, in this order: {rows}"


def test_every_word_of_degraded_is_documented_with_its_meaning() -> None:
    rows = [f"| `{word}` | {meaning} |" for word, meaning in DEGRADED_REASONS.items()]
    assert between(ROOT / "docs" / "concepts.md", "degraded").splitlines()[2:] == rows


def test_every_field_of_a_role_is_documented() -> None:
    documented = CONFIGURATION.read_text()
    assert [name for name in Role.model_fields if f"| `{name}` |" not in documented] == []


def definition_table(definition: StrategyDefinition) -> str:
    return f"""\
| steps | calls without failures | source |
|---|---|---|
| {" → ".join(definition.steps)} | {definition.formula} | {definition.source} |"""


@every_strategy
def test_every_strategy_has_a_page_with_its_definition(definition: StrategyDefinition) -> None:
    page = PAGES / f"{definition.name}.md"
    table = definition_table(definition)
    assert page.exists(), f"write docs/strategies/{page.name}, with this between its markers `definition`:\n{table}"
    assert between(page, "definition").strip() == table, f"write this between the markers of {page.name}:\n{table}"
    for source in definition.source.split(", "):
        assert page.read_text().count(source) > 1, f"{page.name} says what it takes from {source}"


@every_strategy
def test_a_strategys_page_lists_every_parameter(definition: StrategyDefinition) -> None:
    page = PAGES / f"{definition.name}.md"
    without = [name for name in definition.parameters.model_fields if f"`{name}`" not in page.read_text()]
    assert without == [], f"name these parameters in {page.name}"


@every_strategy
def test_the_index_states_the_cost_for_three_agents_and_one_round(definition: StrategyDefinition) -> None:
    counts = {way.calls(3, 1) for way in WAYS.values() if way.strategy == definition.name and not way.parameters}
    cost = f"{min(counts)}–{max(counts)}" if len(counts) > 1 else str(*counts)
    index = (PAGES / "README.md").read_text()
    row = re.search(rf"^\| \[`{definition.name}`\]\({definition.name}\.md\) \|[^|]+\| (\S+) \|", index, re.MULTILINE)
    assert row is not None, f"docs/strategies/README.md lacks the row of {definition.name}: {cost} calls"
    assert row[1] == cost, f"docs/strategies/README.md: the third column of {definition.name} is {cost}"
    which = index[: index.index("## The cost-matched rule")].partition("## Which, when")[2]
    assert f"`{definition.name}`" in which, f"'Which, when' in docs/strategies/README.md lacks {definition.name}"


def test_the_table_of_what_to_open_names_files_and_names_that_exist() -> None:
    modules = [path for package in ("app", "serve_deployments") for path in (ROOT / package).rglob("*.py")]
    _, _, section = (ROOT / "CONTRIBUTING.md").read_text().partition("| to change | open |\n|---|---|\n")
    for row in section.partition("\n\n")[0].splitlines():
        _, subject, place, _ = row.split("|")
        # A code before a colon, as `queue_full`, says which of the places is meant.
        quoted = re.findall(r"`([^`]+)`(?!:)", place)
        paths = [name for name in quoted if name.endswith((".py", "/"))]
        opened = {path: [module for module in modules if f"/{path}" in module.as_posix()] for path in paths}
        lacking = [path for path, named in opened.items() if not named]
        assert lacking == [], f"correct CONTRIBUTING.md, 'to change {subject.strip()}': there is no {lacking}"
        words = {
            word for named in opened.values() for module in named for word in re.findall(r"\w+", module.read_text())
        }
        names = {name for name in quoted if name.isidentifier()} - STRATEGIES.keys()
        assert names <= words, (
            f"correct CONTRIBUTING.md, 'to change {subject.strip()}': {paths} have no {names - words}"
        )


def test_links_between_documents_resolve() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md")]
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", document.read_text())
        if not (document.parent / target).exists()
    ]
    assert broken == []


# Fenced blocks, tables, headings, comments and the addresses of links are no sentences of a page.
NO_SENTENCES = re.compile(r"^( *)```.*?^\1```$|^[|#<][^\n]*$|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
# Shorter ones, such as what a parameter means, may be the same by chance.
LONG_WORDS = 10


def sentences(page: Path) -> set[str]:
    text = NO_SENTENCES.sub("", page.read_text(encoding="utf-8"))
    items = re.split(r"\n\s*\n|\n *(?:[-*]|\d+\.) ", text)
    parts = (part for item in items for part in re.split(r"(?<=[.:;!?])\s", " ".join(item.split())))
    return {part for part in parts if len(part.split()) >= LONG_WORDS}


def test_no_long_sentence_stands_on_two_pages() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md"), *ROOT.glob("examples/*.md")]
    said = defaultdict[str, list[str]](list)
    for page in pages:
        for sentence in sentences(page):
            said[sentence].append(str(page.relative_to(ROOT)))
    assert len(said) > 1_000
    repeated = {sentence: names for sentence, names in said.items() if len(names) > 1}
    assert repeated == {}, "say it on one page, and link from the others"
