import re
from pathlib import Path

from app.deliberation.fold import TERMINAL, TRANSITIONS

FACTS = Path(__file__).parents[2] / "docs" / "facts.md"
OUTSIDE = "[*]"


def mermaid() -> str:
    facts: dict[tuple[str, str], list[str]] = {}
    for (status, fact), following in TRANSITIONS.items():
        facts.setdefault((status or OUTSIDE, following), []).append(fact)
    arrows = [f"    {status} --> {following}: {', '.join(kinds)}" for (status, following), kinds in facts.items()]
    ends = [f"    {status} --> {OUTSIDE}" for status in sorted(TERMINAL)]
    return "\n".join(["stateDiagram-v2", *arrows, *ends]) + "\n"


def test_the_facts_page_shows_the_diagram_as_the_code_draws_it() -> None:
    found = re.search(r"<!-- transitions -->\n(.*?)<!-- /transitions -->", FACTS.read_text(), re.DOTALL)
    assert found is not None, "docs/facts.md has the markers <!-- transitions --> and <!-- /transitions -->"
    drawn = f"```mermaid\n{mermaid()}```"
    assert found[1].strip() == drawn, f"put between the markers:\n{drawn}"
