"""The documents agree with the code."""

import re

import pytest

from app.deliberation.decider import StrategyDefinition
from app.deliberation.facts import DEGRADED_REASONS
from app.deliberation.roles import Role
from app.deliberation.strategies import STRATEGIES
from app.openapi.asyncapi import NEIGHBOURS as PAYLOADS
from app.openapi.asyncapi import asyncapi
from tests.components.docs.tables import (
    CONFIGURATION,
    NEIGHBOURS,
    OPERATIONS,
    ROOT,
    SETTINGS,
    between,
    findings_table,
    payload_table,
    settings_table,
    subjects_table,
)
from tests.unit.strategies.every_strategy import WAYS

PAGES = ROOT / "docs" / "strategies"

every_strategy = pytest.mark.parametrize("definition", STRATEGIES.values(), ids=STRATEGIES)


@pytest.mark.parametrize("marker", SETTINGS)
def test_every_setting_is_documented(marker: str) -> None:
    table = settings_table(*SETTINGS[marker])
    remedy = "write it by python -m tests.components.docs.tables"
    assert between(CONFIGURATION, marker).strip() == table, remedy
    assert all(field.description for field in SETTINGS[marker][0].model_fields.values())


def test_every_kind_of_finding_is_documented() -> None:
    remedy = "write it by python -m tests.components.docs.tables"
    assert between(OPERATIONS, "findings").strip() == findings_table(), remedy


def test_the_subjects_of_neighbours_are_those_of_the_asyncapi_document() -> None:
    table = subjects_table(asyncapi())
    assert between(NEIGHBOURS, "subjects").strip() == table, f"write this between the markers:\n{table}"


@pytest.mark.parametrize("title", [*(model.__name__ for model in PAYLOADS.values()), "CallFinished", "CallDelta"])
def test_every_payload_of_neighbours_is_documented(title: str) -> None:
    table = payload_table(asyncapi(), title)
    assert between(NEIGHBOURS, title).strip() == table, f"write this between the markers of {title}:\n{table}"


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
    assert between(page, "definition").strip() == table, f"write this between the markers of {page.name}:\n{table}"
    for source in definition.source.split(", "):
        assert page.read_text().count(source) > 1, f"{page.name} says what it takes from {source}"


@every_strategy
def test_a_strategys_page_lists_every_parameter(definition: StrategyDefinition) -> None:
    page = (PAGES / f"{definition.name}.md").read_text()
    assert [name for name in definition.parameters.model_fields if f"`{name}`" not in page] == []


@every_strategy
def test_the_index_states_the_cost_for_three_agents_and_one_round(definition: StrategyDefinition) -> None:
    counts = {way.calls(3, 1) for way in WAYS.values() if way.strategy == definition.name and not way.parameters}
    cost = f"{min(counts)}–{max(counts)}" if len(counts) > 1 else str(*counts)
    index = (PAGES / "README.md").read_text()
    row = re.search(rf"^\| \[`{definition.name}`\]\({definition.name}\.md\) \|[^|]+\| (\S+) \|", index, re.MULTILINE)
    assert row is not None, f"the index has a row of {definition.name}"
    assert row[1] == cost
    which = index[: index.index("## The cost-matched rule")].partition("## Which, when")[2]
    assert f"`{definition.name}`" in which, f"'Which, when' says when to take {definition.name}"


def test_links_between_documents_resolve() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md")]
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", document.read_text())
        if not (document.parent / target).exists()
    ]
    assert broken == []
