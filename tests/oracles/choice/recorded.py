"""The answers of pref_voting, kept in a file: its 600 MB of dependencies do not resolve beside the product's.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install pref_voting==1.18.2
    /tmp/oracle/bin/python -m tests.oracles.choice.recorded

writes the file anew, from the root of the checkout; nothing of the product is imported here. The first line of the
file has the oracle's version and the checksum of the profiles. Then each profile has one word, a character per rule. A
character is the winners as six bits, candidate `a` the lowest, or `-` where the rule is not computed.
"""

import hashlib
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from tests.oracles.choice.profiles import Profile, profiles

ANSWERS = Path(__file__).with_name("pref_voting.txt")
RULES = ("borda", "copeland", "schulze", "kemeny")

_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_WORDS_A_LINE = 24


def checksum() -> str:
    """Of all profiles: answers about others would say nothing."""
    return hashlib.sha256(json.dumps(profiles(), sort_keys=True).encode()).hexdigest()


def answers() -> Iterator[dict[str, set[str]]]:
    """By profile, the winners by rule as the file has them. Raises ValueError when it answers about other profiles."""
    head, *lines = ANSWERS.read_text().splitlines()
    if checksum() not in head:
        raise ValueError(f"{ANSWERS.name} answers about other profiles")
    for word in " ".join(lines).split():
        yield {
            rule: {name for place, name in enumerate("abcdef") if _DIGITS.index(digit) >> place & 1}
            for rule, digit in zip(RULES, word, strict=True)
            if digit != "-"
        }


def _word(kind: str, ballots: Profile) -> str:
    from pref_voting.c1_methods import copeland
    from pref_voting.margin_based_methods import beat_path
    from pref_voting.other_methods import kemeny_young
    from pref_voting.profiles_with_ties import ProfileWithTies
    from pref_voting.scoring_methods import borda_for_profile_with_ties

    names = sorted({name for ballot in ballots for name in ballot})
    ranks = [{names.index(name): -points for name, points in ballot.items()} for ballot in ballots]
    profile = ProfileWithTies(ranks, candidates=list(range(len(names))))
    winners = [
        # Its Borda gives a candidate that a ballot does not show the points of the last place.
        None if kind == "recused" else borda_for_profile_with_ties(profile),
        copeland(profile),
        beat_path(profile, strength_function=profile.support),
        kemeny_young(profile),
    ]
    return "".join("-" if places is None else _DIGITS[sum(1 << int(p) for p in places)] for places in winners)


def record() -> None:
    """Ask pref_voting about every profile and write the file."""
    words = [_word(kind, ballots) for kind, ballots in profiles()]
    lines = [f"# pref_voting {version('pref_voting')} on the profiles with sha256 {checksum()}"]
    lines += [" ".join(words[start : start + _WORDS_A_LINE]) for start in range(0, len(words), _WORDS_A_LINE)]
    ANSWERS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    record()
