"""A name says what it holds: names of variables, loop targets and parameters that say nothing become no more."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("app", "serve_deployments")

# Per 1,000 lines. A change that lowers a figure writes the lower one here.
PLACEHOLDERS_MAX = {"found": 0.0, "each": 0.0, "given": 0.0}


def placeholders(text: str) -> Counter[str]:
    """The uses of each placeholder as a variable, a loop target or a parameter."""
    names = (getattr(node, "id", getattr(node, "arg", None)) for node in ast.walk(ast.parse(text)) if _is_name(node))
    return Counter(name for name in names if name in PLACEHOLDERS_MAX)


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.arg)


@cache
def counted() -> tuple[dict[str, Counter[str]], int]:
    """The placeholders of each module of the product, and the lines of all."""
    texts = {
        str(path.relative_to(ROOT)): path.read_text()
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    return {path: placeholders(text) for path, text in texts.items()}, sum(text.count("\n") for text in texts.values())


@pytest.mark.parametrize("placeholder", PLACEHOLDERS_MAX)
def test_a_placeholder_becomes_no_more_frequent(placeholder: str) -> None:
    modules, lines = counted()
    uses = Counter({path: names[placeholder] for path, names in modules.items()})
    assert round(uses.total() / lines * 1_000, 1) <= PLACEHOLDERS_MAX[placeholder], (
        f"name what `{placeholder}` holds: {uses.most_common(5)}"
    )


def test_placeholders_are_counted_wherever_they_are_names() -> None:
    text = '''
def of(given, *, each=1):
    """What was found in each given text."""
    found = [each.found for each in given if (found := each)]
    match found:
        case [found, *_]:
            return lambda found: f"{found} given"
'''
    assert placeholders(text) == {"found": 5, "each": 4, "given": 2}


def test_words_attributes_and_keywords_are_no_names() -> None:
    assert placeholders('self.found = read("given", each=1)  # found') == {}
