import json
import re
from collections import Counter, defaultdict
from functools import cache

import pytest

from app.deliberation.calls import Call
from app.deliberation.choice.anonymity import labels
from app.deliberation.choice.ballots import author
from app.deliberation.facts import StageOpened
from app.deliberation.specification import AgentSpec, Sampling
from tests.unit.facts_of import Run, run
from tests.unit.strategies.every_strategy import WAYS, WRITING, Way, prompt, secret, stages

BIRDS = ("kestrel", "osprey", "merlin", "goshawk", "hobby")
AGENTS = tuple(
    AgentSpec(
        agent_id=f"{bird}-{place:03d}",
        role=f"ROLE-{bird[::-1].upper()}",
        model=f"{bird[::-1]}-70b",
        sampling=Sampling(max_tokens=500),
    )
    for place, bird in enumerate(BIRDS, start=1)
)
REVIEWING = ("critique", "score", "judge", "pick")
LABELLED = re.compile(r"\b([A-Z]{1,2}):\n<<<peer-text ([0-9a-f]{12})>>>\n(.*?)\n<<<end-of-peer-text \2>>>", re.DOTALL)
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@cache
def aviary(way: Way, size: int = 5, seed: int = 7) -> Run:
    return run(way.asked(agents=AGENTS[:size], rounds=2, seed=seed), way.script())


@every_way
def test_no_prompt_names_an_agent_a_role_a_model_or_a_call(way: Way) -> None:
    for call in aviary(way).calls:
        for agent in AGENTS:
            for name in (agent.agent_id, agent.role, agent.model or ""):
                assert name.casefold() not in prompt(call).casefold(), f"{call.call_id} shows {name}"
        assert not re.search(r"\bs\d+-", prompt(call)), f"{call.call_id} shows the id of a call"


@every_way
def test_a_letter_stands_for_the_author_that_is_recorded_behind_it(way: Way) -> None:
    ended = aviary(way)
    written = texts(way, ended)
    for call in ended.calls:
        shown = {letter: text for letter, _, text in LABELLED.findall(prompt(call))}
        assert set(call.labels) <= set(shown), f"{call.call_id} shows {set(shown)} and records {set(call.labels)}"
        for letter, candidate in call.labels.items():
            assert shown[letter] in written[author(candidate)], f"{call.call_id}: {letter} is not by {candidate}"
        assert list(call.labels) == list(labels(len(call.labels)))


@every_way
def test_no_reviewer_sees_a_text_of_its_own_and_every_debater_one(way: Way) -> None:
    for size in (2, 3, 5):
        ended = aviary(way, size)
        purposes = {call.call_id: stage.purpose for stage in ended.all(StageOpened) for call in stage.calls}
        writing = [call for call in ended.calls if call.output.kind in WRITING]
        for call in ended.calls:
            shown = Counter(author(candidate) for candidate in call.labels.values())
            if purposes[call.call_id] in (*REVIEWING, "debate"):
                assert shown[call.agent_id] == (purposes[call.call_id] == "debate")
            if purposes[call.call_id] in REVIEWING:
                seen = {wrote.agent_id for wrote in writing if secret(wrote.call_id) in prompt(call)}
                assert seen == set(shown)


@every_way
def test_candidates_take_every_place_equally_often_within_one(way: Way) -> None:
    for size, seed in ((2, 1), (3, 2), (4, 3), (5, 4)):
        ended = aviary(way, size, seed)
        for stage, calls in zip(ended.all(StageOpened), stages(ended), strict=True):
            if stage.purpose in ("score", "judge"):
                spread = spreads(calls)
                assert max(spread.values()) <= 1, f"{stage.purpose} of {size}: {spread}"


def spreads(calls: list[Call]) -> dict[str, int]:
    places = range(max(len(call.labels) for call in calls))
    taken: dict[str, Counter[int]] = defaultdict(Counter)
    for call in calls:
        for place, candidate in enumerate(call.labels.values()):
            taken[candidate][place] += 1
    return {
        candidate: max(count[place] for place in places) - min(count[place] for place in places)
        for candidate, count in taken.items()
    }


def texts(way: Way, ended: Run) -> dict[str, set[str]]:
    script = way.script()
    found: dict[str, set[str]] = defaultdict(set)
    for call in ended.calls:
        if call.output.kind in WRITING:
            said = json.loads(script(call).text or "")
            found[call.agent_id].add(said["code" if call.output.kind == "program" else "answer"])
    return found
