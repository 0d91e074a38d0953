from collections import Counter
from collections.abc import Mapping
from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from app.deliberation.strategies.debate import neighbours
from tests.unit.facts_of import agent_ids

answers_of_councils = st.lists(st.sampled_from(["a", "b", "c", "d", "e", None]), min_size=1, max_size=32).map(
    lambda letters: dict(zip(agent_ids(len(letters)), letters, strict=True))
)


def dissenting(answers: Mapping[str, str | None]) -> list[str]:
    counts = Counter(each for each in answers.values() if each is not None).most_common(2)
    tie = not counts or (len(counts) == 2 and counts[0][1] == counts[1][1])
    return [agent for agent, each in answers.items() if tie or each != counts[0][0]]


@given(answers=answers_of_councils, most=st.integers(1, 8), seed=st.integers(0, 99), round=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_speakers_read_as_many_distinct_answers_of_others_as_there_are_up_to_a_bound(
    answers: dict[str, str | None], most: int, seed: int, round: int
) -> None:
    speakers = dissenting(answers)
    reading = neighbours(answers, speakers, most, seed, round)
    different = {each for each in answers.values() if each is not None}
    assert set(reading) == {each for each in speakers if different - {answers[each]}}
    for speaker, others in reading.items():
        read = [answers[other] for other in others]
        assert speaker not in others
        assert None not in read
        assert len({*read, answers[speaker]}) == len(read) + 1
        assert len(read) == min(most, len(different - {answers[speaker]}))
    backwards = dict(reversed(answers.items()))
    assert neighbours(backwards, speakers[::-1], most, seed, round) == reading


def test_where_all_answers_differ_each_is_read_equally_often_and_the_next_round_reads_others() -> None:
    answers: dict[str, str | None] = {agent: agent for agent in agent_ids(7)}
    rounds = [neighbours(answers, list(answers), 2, 3, round) for round in (1, 2, 3)]
    for reading in rounds:
        assert Counter(chain.from_iterable(reading.values())) == dict.fromkeys(answers, 2)
    for agent in answers:
        met = [other for reading in rounds for other in reading[agent]]
        assert sorted(met) == [other for other in answers if other != agent], "six others in three rounds of two"
