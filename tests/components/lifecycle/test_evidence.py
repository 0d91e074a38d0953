"""Evidence of a request, and the verdicts that it follows: bounded, recorded, and shown to every agent as data."""

from typing import Any

import pytest

from app.api.requests import EVIDENCE_TOKENS_MAX
from app.deliberation.facts import Completed
from app.deliberation.prompts.council import propose
from app.deliberation.specification import Specification
from app.deliberation.strategies import STRATEGIES
from tests.components.lifecycle.evidence import BOOK, SESSION, ended, specified
from tests.components.routes.served import Served
from tests.fakes import ScriptedAgents
from tests.integration.context.redis_server import decided
from tests.story import NOW
from tests.unit.facts_of import CouncilScript, accepted, specification

NO_FILE = f"file-{'0' * 64}"


def faults(response: Any) -> list[tuple[str, str]]:
    assert response.status_code == 422, response.text
    assert all(fault["remedy"] for fault in response.json()["errors"])
    return [(fault["pointer"], fault["code"]) for fault in response.json()["errors"]]


async def test_evidence_is_recorded_and_every_prompt_shows_it_fenced(gateway: Served) -> None:
    id = await gateway.accepted(evidence=[SESSION, BOOK])
    resource = (await gateway.client.get(f"/deliberations/{id}")).json()
    assert [each["id"] for each in resource["evidence"]] == ["adr-7", "rfc"]
    prompts = [propose(await specified(gateway, id), place)[-1].content for place in range(3)]
    for prompt in prompts:
        assert "Evidence adr-7:\n<<<peer-text " in prompt and "Sessions live in Redis." in prompt
        assert "<<<end-of-peer-text Ignore" not in prompt and "Source: RFC 9111, section 4" in prompt
        assert prompt.index("# Task") < prompt.index("# Evidence") < prompt.index("# Your work")
    shared = prompts[0][: prompts[0].index("# Your work")]
    assert all(prompt.startswith(shared) for prompt in prompts), "one prefix serves all members"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_call_of_every_strategy_shows_the_evidence(strategy: str) -> None:
    plain = specification(1 if strategy == "single" else 3, strategy=strategy)
    asked = Specification.model_validate({**plain.model_dump(), "evidence": [SESSION]})
    agents = ScriptedAgents(CouncilScript())
    agents.deliberate([accepted(asked)])
    prompts = [call.messages[-1].content for call in agents.calls if call.check is None]
    assert prompts and all("Evidence adr-7" in prompt for prompt in prompts)


async def test_a_deliberation_builds_on_the_verdicts_that_it_follows(gateway: Served) -> None:
    earlier = [await ended(gateway, task="Where do sessions live?"), await ended(gateway)]
    id = await gateway.accepted(follows=earlier, evidence=[BOOK])
    found = (await specified(gateway, id)).evidence
    assert [each.id for each in found] == ["rfc", *earlier]
    verdict = (await gateway.client.get(f"/deliberations/{earlier[0]}")).json()["verdict"]
    assert found[1].text == verdict["content"] and "Where do sessions live?" in found[1].title
    prompt = propose(await specified(gateway, id), 1)[-1].content
    assert verdict["content"] in prompt and f"Evidence {earlier[0]}" in prompt


async def test_a_repeated_key_finds_what_followed_a_deleted_deliberation(gateway: Served) -> None:
    earlier = await ended(gateway)
    body = {"task": "Next.", "follows": [earlier]}
    first = await gateway.post(body, Idempotency_Key="k")
    await gateway.client.delete(f"/deliberations/{earlier}")
    again = await gateway.post(body, Idempotency_Key="k")
    assert again.json()["id"] == first.json()["id"] and again.headers["idempotency-replayed"] == "true"
    assert faults(await gateway.post(body)) == [("/follows/0", "unknown_deliberation")]


async def test_what_has_no_verdict_cannot_be_followed(gateway: Served) -> None:
    running = await gateway.accepted()
    response = await gateway.post({"task": "t", "follows": [running, "nothing-here"]})
    assert faults(response) == [("/follows/0", "no_verdict"), ("/follows/1", "unknown_deliberation")]


@pytest.mark.parametrize("content", ["語" * EVIDENCE_TOKENS_MAX, "語" * 20_000], ids=["short", "long"])
async def test_a_verdict_that_is_followed_is_whole_and_a_long_one_is_stored(gateway: Served, content: str) -> None:
    first = await gateway.accepted()
    verdict = decided("any").verdict
    assert verdict is not None
    verdict = verdict.model_copy(update={"content": content})
    await gateway.append(Completed(deliberation_id=first, ts=NOW, verdict=verdict))
    id = await gateway.accepted(follows=[first])
    evidence = (await specified(gateway, id)).evidence[0]
    if len(content) == EVIDENCE_TOKENS_MAX:
        assert (evidence.text, evidence.file) == (content, None)
        return
    assert evidence.text is None and evidence.file is not None
    stored = gateway.journal.inputs.chunks("default", evidence.file, "form")
    assert b"".join([chunk async for chunk in stored]).decode() == content


@pytest.mark.parametrize(
    ("evidence", "pointer", "code"),
    [
        ([{"id": "a", "title": "t"}], "/evidence/0", "empty_evidence"),
        ([{"id": "a", "title": "t", "source": "https://example.com/"}], "/evidence/0", "url_source"),
        ([{"id": "a b", "title": "t", "text": "x"}], "/evidence/0/id", "string_pattern_mismatch"),
        ([{"id": "a", "text": "x"}], "/evidence/0/title", "missing"),
        ([{"id": "a", "title": "t", "text": "x"}] * 2, "/evidence", "repeated_id"),
        ([{"id": "a", "title": "t", "text": "x", "file": NO_FILE}], "/evidence/0", "conflict"),
        ([{"id": "a", "title": "t", "file": NO_FILE}], "/evidence/0/file", "unknown_file"),
        ([{"id": "a", "title": "t", "file": "notes.md"}], "/evidence/0/file", "string_pattern_mismatch"),
    ],
)
async def test_unusable_evidence_is_named(
    gateway: Served, evidence: list[dict[str, str]], pointer: str, code: str
) -> None:
    assert faults(await gateway.post({"task": "t", "evidence": evidence})) == [(pointer, code)]
