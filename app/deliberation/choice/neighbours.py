"""Chooses what each debater reads: a few different answers of others on a seeded ring, in balanced places."""

from collections.abc import Collection, Mapping
from itertools import permutations

from app.deliberation.choice.anonymity import ring


def neighbours(
    answers: Mapping[str, str | None], speakers: Collection[str], most: int, seed: int, round: int
) -> dict[str, tuple[str, ...]]:
    """The authors that each speaker reads, in the order shown: up to `most`, with distinct answers, none its own.

    `answers` are the compared forms by author; an unreadable one (None) is not shown. A speaker goes round a ring from
    its own seat, in the next round from `most` seats on (sparse topologies: arXiv:2406.11776). All read equally many,
    and each author takes each place equally often, within one. Without speakers or other answers it is empty.
    """
    different = len({answer for answer in answers.values() if answer is not None})
    # An author without a readable answer could read one more, and does not, so that places can be balanced.
    places = min(most, max(1, different - 1))
    rows: dict[str, list[str]] = {}
    for speaker, seats in ring(list(answers), len(answers) - 1, seed, 0).items():
        start = (round - 1) * most % max(1, len(seats))
        met = {answers[speaker], None}
        row: list[str] = []
        for other in (*seats[start:], *seats[:start]):
            if answers[other] not in met:
                met.add(answers[other])
                row.append(other)
        if speaker in speakers and row:
            rows[speaker] = row[:places]
    _balance(rows, places)
    return {speaker: tuple(row) for speaker, row in rows.items()}


def _balance(rows: Mapping[str, list[str]], places: int) -> None:
    """Swap places within rows until no author stands in one place two times more often than in another.

    A swap may make another author too frequent in a place. That one is swapped in another row, and so on along a path.
    Each path lowers the sum of squared counts, so the loop ends.
    """

    def lead(author: str, place: int, other: int) -> int:
        return sum((row[place] == author) - (row[other] == author) for row in rows.values())

    authors = sorted({author for row in rows.values() for author in row})
    pairs = list(permutations(range(places), 2))
    while uneven := [(author, *pair) for author in authors for pair in pairs if lead(author, *pair) > 1]:
        author, fuller, other = uneven[0]
        untouched = list(rows.values())
        while lead(author, fuller, other) > 1:
            row = untouched.pop(next(at for at, row in enumerate(untouched) if row[fuller] == author))
            author = row[other]
            row[fuller], row[other] = row[other], row[fuller]
