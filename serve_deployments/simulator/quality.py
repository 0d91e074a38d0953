"""How good the simulated reviewers find a text: fixed by its words, so that they mostly agree, under any letter.

A good text has figures and headings and has been revised after review; a poor one has vague words. The rest is a
stable hash, and what differs between reviewers is added by the caller.
"""

import re
from functools import lru_cache

from serve_deployments.simulator.dice import fraction

REVISED_HEADING = "## Changed after review"

_WORD = re.compile(r"\w+")
_FIGURE = re.compile(r"\d[\d,.]*")
_VAGUE = re.compile(r"\b(?:somehow|maybe|probably|perhaps|later|stuff|things|etc|should be fine|good enough)\b")
_LOW, _HIGH = 0.5, 9.6


@lru_cache(maxsize=1_024)
def quality(text: str) -> float:
    """A grade between 0.5 and 9.6."""
    lowered = text.lower()
    chance = fraction("quality", " ".join(_WORD.findall(lowered)))
    grade = 5.9 + 1.2 * (2.0 * chance - 1.0)
    grade += min(1.2, 0.14 * len(_FIGURE.findall(text)))
    grade += 0.6 * min(2, text.count(REVISED_HEADING))
    grade -= min(3.2, 0.8 * len(_VAGUE.findall(lowered)))
    return min(_HIGH, max(_LOW, grade))


@lru_cache(maxsize=4_096)
def criterion_grade(text: str, criterion: str) -> float:
    """The grade on one criterion: the text's own, moved by less than 0.8 either way."""
    return quality(text) + 0.8 * (2.0 * fraction("criterion", criterion, text) - 1.0)
