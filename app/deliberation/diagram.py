"""Draws the life of a deliberation from the transition table of `fold`."""

from app.deliberation.fold import TERMINAL, TRANSITIONS

_OUTSIDE = "[*]"


def mermaid() -> str:
    """A Mermaid state diagram: one arrow for each pair of statuses, labelled with the facts that lead along it."""
    facts: dict[tuple[str, str], list[str]] = {}
    for (status, fact), following in TRANSITIONS.items():
        facts.setdefault((status or _OUTSIDE, following), []).append(fact)
    arrows = [f"    {status} --> {following}: {', '.join(kinds)}" for (status, following), kinds in facts.items()]
    ends = [f"    {status} --> {_OUTSIDE}" for status in sorted(TERMINAL)]
    return "\n".join(["stateDiagram-v2", *arrows, *ends]) + "\n"
