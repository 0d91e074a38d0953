"""Councils that decide on actions, as the command line asks for them and shows them."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.deliberation.calls import Call
from app.deliberation.facts import Accepted, decode
from tests.components.cli.real_gateway import RealGateway, invoke
from tests.components.routes.served import Served, played, written

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"type": "function", "function": {"name": "read", "parameters": PATH}}
DELETE = {"name": "delete", "parameters": PATH, "agreement_min": 1}
CONVERSATION = [
    {"role": "system", "text": "Be careful."},
    {"role": "user", "text": "Make room\n# on db-2."},
    {
        "role": "assistant",
        "text": "Let me see.",
        "calls": [{"id": "call_1", "name": "read", "arguments": {"path": "/"}}],
    },
    {"role": "tool", "name": "call_1", "text": "full"},
]


@pytest.fixture(scope="module")
def gateway() -> Iterator[RealGateway]:
    with RealGateway() as running:
        yield running


def called(name: str, *paths: str) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": {"path": path}} for path in paths]}


def acted(gateway: RealGateway, actions: Sequence[dict[str, Any]], strategy: str = "vote", **constraints: Any) -> str:
    """The id of a council whose members answer with these actions."""

    def write(call: Call) -> str:
        if call.output.kind == "choice":
            return json.dumps({"reasoning": "r", "choice": next(iter(call.output.labels))})
        fields = json.loads(written(call))
        answer = {"answer": actions[int(call.agent_id[-3:]) - 1]} if "answer" in fields else {}
        return json.dumps(fields | answer)

    async def play(served: Served) -> str:
        asked = {"actions": {"tools": [READ, DELETE]}, "constraints": constraints, "conversation": CONVERSATION}
        id = await served.accepted(task=None, strategy=strategy, num_agents=len(actions), seed=7, quorum=1, **asked)
        accepted = decode((await served.journal.facts("default", id))[0].data)
        assert isinstance(accepted, Accepted)
        for fact in played(accepted, now=served.clock.now, write=write):
            await served.append(fact)
        return id

    return gateway.do(play)


@pytest.fixture(scope="module")
def agreed(gateway: RealGateway) -> str:
    return acted(gateway, [called("delete", "/a_b_c", "/*x*")] * 3)


@pytest.fixture(scope="module")
def split(gateway: RealGateway) -> str:
    wanted = [called("delete", "/*a*"), called("delete", "/*a*"), called("read", "/a")]
    return acted(gateway, wanted, on_disagreement="reply")


@pytest.mark.parametrize("arguments", [["show"], ["watch"], ["show", "--transcript"], ["show", "--full"]])
def test_the_verdict_is_its_calls_line_by_line_with_the_agreement_in_words(
    gateway: RealGateway, agreed: str, arguments: list[str]
) -> None:
    command, *options = arguments
    shown = invoke(gateway, command, agreed, *options).stdout
    answer = shown[shown.index("The council's answer, by dev-001") :]
    lines = [line.strip("│ ") for line in answer.splitlines()]
    first = lines.index('delete(path="/a_b_c")')
    assert lines[first + 1] == 'delete(path="/*x*")'
    assert "The demanded agreement was reached: 3 of 3 members give this answer, and 3 must." in shown
    assert "dev-001, dev-002, dev-003" in shown


def test_as_json_it_is_the_resource(gateway: RealGateway, agreed: str) -> None:
    resource = json.loads(invoke(gateway, "show", agreed, "--json").stdout)
    assert [call["arguments"]["path"] for call in resource["verdict"]["action"]["calls"]] == ["/a_b_c", "/*x*"]
    assert resource["turns"] == len(CONVERSATION)


@pytest.mark.parametrize("option", [None, "--transcript"])
def test_a_reply_in_place_of_an_answer_says_so(gateway: RealGateway, split: str, option: str | None) -> None:
    shown = invoke(gateway, "show", split, *([option] if option else [])).stdout
    said = "The demanded agreement was not reached: 2 of 3 members give the leading answer, and 3 must, so this reply"
    assert f"{said} stands in its place." in shown
    assert "In place of an answer" in shown and "The council's answer" not in shown
    assert "The council does not agree: an answer needs 3 of 3 members." in shown
    assert '- 2: delete({"path":"/*a*"})' in shown


def test_an_answer_that_stands_without_agreement_says_so(gateway: RealGateway) -> None:
    id = acted(gateway, [called("read", "/a"), called("read", "/b"), {"reply": "Nothing *to* do."}], agreement_min=0.6)
    shown = invoke(gateway, "show", id).stdout
    assert "The demanded agreement was not reached: 1 of 3 members gives this answer, and 2 must." in shown
    assert "agreement of 0.6" in shown and "read, delete (agreement of 1)" in shown


def test_where_none_is_demanded_nothing_is_said_of_agreement(gateway: RealGateway) -> None:
    shown = invoke(gateway, "show", acted(gateway, [called("read", "/a")] * 2)).stdout
    assert 'read(path="/a")' in shown and "demanded" not in shown


def test_judges_of_actions_agree_in_their_ballots_though_equal_actions_are_counted(gateway: RealGateway) -> None:
    wanted = [called("read", "/a"), called("read", "/a"), called("read", "/b")]
    judged = invoke(gateway, "show", acted(gateway, wanted, "best_of_n")).stdout
    assert "(Kendall τ)" in judged and "of the votes agree" not in judged
    assert (
        "67 % of the votes agree" in invoke(gateway, "show", acted(gateway, [wanted[0], wanted[2], wanted[1]])).stdout
    )


def test_a_council_that_must_agree_and_does_not_ends_with_its_tally(gateway: RealGateway) -> None:
    id = acted(gateway, [called("delete", "/a"), called("delete", "/b")], on_disagreement="fail")
    result = invoke(gateway, "watch", id)
    assert result.exit_code == 1 and "no_agreement: The council does not agree" in result.stdout
    assert '- 1: delete({"path":"/b"})' in result.stdout


def test_a_conversation_is_shown_as_its_messages(gateway: RealGateway, agreed: str) -> None:
    rows = [line.split() for line in invoke(gateway, "show", agreed).stdout.splitlines()[:6]]
    assert rows == [
        ["system", "Be", "careful."],
        ["user", "Make", "room"],
        ["#", "on", "db-2."],
        ["assistant", "Let", "me", "see."],
        ['read({"path":', '"/"})'],
        ["tool", "call_1:", "full"],
    ]
    document = invoke(gateway, "show", agreed, "--transcript").stdout
    assert 'Assistant:\n\n> Let me see.\n> read({"path": "/"})\n' in document
    assert "User:\n\n> Make room\n> # on db-2.\n" in document and "carries the mark" not in document


def test_answers_of_stages_stand_in_the_transcript_as_calls(gateway: RealGateway, split: str) -> None:
    document = invoke(gateway, "show", split, "--transcript").stdout
    assert 'Answer:\n\n```text\nread(path="/a")\n```\n' in document


def test_ask_sends_the_tools_of_a_file_and_the_agreement_that_it_demands(gateway: RealGateway, tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([READ, DELETE]))
    options = ["--tools", str(file), "--agreement-min", "0.5", "--on-disagreement", "fail", "--strategy", "vote"]
    asked = invoke(gateway, "ask", "Make room.", *options, "--detach", "--json")
    assert asked.exit_code == 0, asked.output
    constraints = json.loads(asked.stdout)["constraints"]
    assert [tool["name"] for tool in constraints["actions"]["tools"]] == ["read", "delete"]
    assert (constraints["agreement_min"], constraints["on_disagreement"]) == (0.5, "fail")


@pytest.mark.parametrize(
    ("tools", "options", "said"),
    [
        ("{}", [], "--tools is no JSON list"),
        ("[]", [], "--tools is an empty list"),
        ('[{"name": "a b"}]', [], "--tools 0/name: "),
        (json.dumps([READ]), ["--agreement-min", "2"], "--agreement-min: It is too large. Give 1 or less."),
        (json.dumps([READ]), ["--on-disagreement", "ask"], "'ask' is not one of 'best', 'reply', 'fail'"),
        (None, ["--agreement-min", "1"], "Leave it out, give `--tools`, or choose vote"),
    ],
)
def test_a_wrong_option_is_named(
    gateway: RealGateway, tmp_path: Path, tools: str | None, options: list[str], said: str
) -> None:
    file = tmp_path / "tools.json"
    file.write_text(tools or "")
    given = ["--tools", str(file)] if tools is not None else []
    refused = invoke(gateway, "ask", "x", *given, *options, "--detach")
    assert refused.exit_code == 2 and said in refused.stderr, refused.stderr
