"""Chooses what each debater reads: a few different answers of others on a seeded ring."""

from collections.abc import Collection, Mapping

from app.deliberation.choice.anonymity import ring


def neighbours(
    answers: Mapping[str, str | None], speakers: Collection[str], most: int, seed: int, round: int
) -> dict[str, tuple[str, ...]]:
    """The authors that each speaker reads: up to `most`, with distinct answers, none its own.

    `answers` are the compared forms by author; an unreadable one is None and not shown. A speaker reads on from its own
    seat of a ring, in the next round from `most` seats on (sparse topologies: arXiv:2406.11776).
    """
    reading: dict[str, tuple[str, ...]] = {}
    for speaker, seats in ring(list(answers), len(answers) - 1, seed, 0).items():
        start = (round - 1) * most % max(1, len(seats))
        met = {answers[speaker], None}
        row: list[str] = []
        for other in (*seats[start:], *seats[:start]):
            if answers[other] not in met:
                met.add(answers[other])
                row.append(other)
        if speaker in speakers and row:
            reading[speaker] = tuple(row[:most])
    return reading
