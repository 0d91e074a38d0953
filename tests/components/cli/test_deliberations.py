"""Commands about deliberations, at a gateway over an in-memory log."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.cli import cli
from app.cli.exits import CommandError
from app.cli.show import chosen
from app.deliberation.calls import Call
from app.deliberation.facts import Accepted, CallFinished, decode
from app.deliberation.strategies import STRATEGIES
from app.webhooks.resources import Delivery
from tests.components.cli.real_gateway import RealGateway, invoke, runner
from tests.components.routes.served import Served, decided, played, written
from tests.conditions import until
from tests.repositories import committed
from tests.story import Story

HOOK = {"url": "https://hooks.example/", "events": ["deliberation.completed", "deliberation.accepted"]}
# A terminal would obey the escape; Markdown would make a heading and a link of the rest.
TASK = "Name a colour.\n# Not a heading \x1b[2J\n[a link](http://evil.example)"


@pytest.fixture(scope="module")
def gateway() -> Iterator[RealGateway]:
    with RealGateway(webhooks=True) as running:
        yield running


@pytest.fixture(scope="module")
def council(gateway: RealGateway) -> str:
    return gateway.ended(task=TASK, num_agents=2, webhook=HOOK, metadata={"team": "core"}, seed=7)


def test_show_states_what_was_asked_and_what_was_drawn(gateway: RealGateway, council: str) -> None:
    shown = invoke(gateway, "show", council).stdout
    for expected in (
        "Name a colour.",
        f"council v{STRATEGIES['council'].version}",
        "critics = 1",
        "dev-001 (DEV), dev-002 (DEV)",
        "team = core",
    ):
        assert expected in shown, shown
    assert "seed        7" in shown and "300 s, on deadline best, quorum 2" in shown and "Ranking" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("option", ["--full", "--transcript"])
def test_show_has_every_answer_critique_ballot_and_delivery(gateway: RealGateway, council: str, option: str) -> None:
    shown = invoke(gateway, "show", council, option).stdout
    for stage in ("Stage 1: propose", "Stage 2: critique", "Stage 3: revise", "Stage 4: score"):
        assert stage in shown
    for text in ("draft s1-dev-001", "draft s1-dev-002", "revision s3-dev-001", "fix: f", "Shown: A is"):
        assert text in shown, text
    assert "of 10" in shown and "Verdict: completed" in shown
    assert "deliberation.accepted: pending" in shown and "deliberation.completed: pending" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("option", [None, "--full"])
def test_show_names_the_engine_that_a_running_deliberation_waits_for(gateway: RealGateway, option: str | None) -> None:
    now = datetime.now(UTC)

    async def wait(served: Served) -> str:
        id = await served.accepted(num_agents=3)
        await served.play(id, until_stage=1)
        for agent, ago_s in (("dev-003", 60), ("dev-002", 1), ("dev-001", 0)):
            event = Story(id).waiting(agent, now - timedelta(seconds=ago_s), since=now)
            await served.journal.publish_view("default", event)
        return id

    shown = invoke(gateway, "show", gateway.do(wait), *([option] if option else [])).stdout
    told = Story("any").waiting("dev-001", now).detail
    assert f"waiting dev-001, dev-002: {told}" in shown, shown
    assert "End: " not in shown and ("So far: in_progress" in shown) == (option == "--full")


def test_watch_says_that_the_log_ends_before_a_cursor(gateway: RealGateway, council: str) -> None:
    epoch = json.loads(invoke(gateway, "show", council, "--full", "--json").stdout)["events"][0]["id"].split("-")[0]
    shown = invoke(gateway, "watch", council, "--after", f"{epoch}-99999")
    assert shown.exit_code == 0 and shown.stdout.count("the log ends before this cursor") == 1
    other = invoke(gateway, "watch", council, "--after", "0-5").stdout
    assert other.count("the cursor is of another log") == 1 and "gap:" not in other
    refused = invoke(gateway, "watch", council, "--after", "5")
    assert refused.exit_code == 2 and "--after: " in refused.stderr and "Take the `id` of an event" in refused.stderr


def test_no_answer_passes_for_a_part_of_the_transcript(gateway: RealGateway, council: str) -> None:
    lines = invoke(gateway, "show", council, "--transcript").stdout.splitlines()
    assert lines[0] == f"# Deliberation {council}"
    assert "> # Not a heading [2J" in lines and "> [a link](http://evil.example)" in lines
    headings = [line for line in lines if line.startswith("#")]
    assert not [line for line in headings if "Not a heading" in line]


def test_the_whole_as_json_is_one_document(gateway: RealGateway) -> None:
    id = gateway.ended(strategy="independent", num_agents=1)
    document = json.loads(invoke(gateway, "show", id, "--full", "--json").stdout)
    assert document["deliberation"]["id"] == id and document["deliveries"] == []
    assert [event["type"] for event in document["events"]] == ["stage.opened", "call.finished", "stage.closed"]
    assert invoke(gateway, "show", id, "--json", "--transcript").exit_code == 2


def test_last_and_a_unique_beginning_name_a_deliberation(gateway: RealGateway, council: str) -> None:
    newest = gateway.ended(task="the newest", num_agents=1, strategy="single")
    assert json.loads(invoke(gateway, "show", "last", "--json").stdout)["id"] == newest
    assert json.loads(invoke(gateway, "show", council[:-1], "--json").stdout)["id"] == council
    assert invoke(gateway, "watch", newest[:-1], "--json").exit_code == 0
    assert newest in invoke(gateway, "cancel", "last", "--json").stdout


def test_an_ambiguous_beginning_lists_the_candidates(gateway: RealGateway, council: str) -> None:
    gateway.ended(task="another\x1b one", num_agents=1, strategy="single")
    result = invoke(gateway, "show", "0")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "error ambiguous_id" in result.stderr and council in result.stderr and "type more of the id" in result.stderr
    assert "another one" in result.stderr and "\x1b" not in result.stderr


def test_lists_and_statistics_leave_out_what_a_benchmark_asked(gateway: RealGateway, council: str) -> None:
    asked = gateway.ended(task="How many?", num_agents=2, metadata={"bench": "quality"})

    def listed(*options: str) -> set[str]:
        invoke(gateway, "show", "last")
        return {item["id"] for item in json.loads(invoke(gateway, "list", *options, "--json").stdout)["items"]}

    def total(*options: str) -> int:
        return json.loads(invoke(gateway, "stats", *options, "--json").stdout)["total"]

    assert listed() - listed("--no-bench") == {asked} and council in listed("--no-bench")
    assert listed("--search", "many") - listed("--search", "many", "--no-bench") == {asked}
    assert total() - total("--no-bench") == 1


@pytest.mark.parametrize("has_browser", [True, False])
def test_open_shows_the_page_in_the_browser_and_prints_its_address(
    gateway: RealGateway, council: str, tmp_path: Path, has_browser: bool
) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}\n')
    browser.chmod(0o755)
    # Without a path and a display no browser is found.
    environment = {"BROWSER": str(browser)} if has_browser else {"PATH": str(tmp_path / "empty")}
    program = [sys.executable, "-c", "from app.cli import main; main()"]
    command = [*program, "open", council, "--url", gateway.url, "--json"]
    opened = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    address = f"{gateway.url}/#/deliberations/{council}"
    assert json.loads(opened.stdout) == {"url": address, "opened": has_browser}
    assert [each.read_text().strip() for each in tmp_path.glob("seen")] == [address] * has_browser


def test_last_of_nothing_says_how_to_begin() -> None:
    with RealGateway() as empty:
        result = invoke(empty, "show", "last")
        listed = invoke(empty, "list")
    assert (listed.exit_code, listed.stdout) == (0, "no deliberations\n")
    assert result.exit_code == 4 and "there is no deliberation yet" in result.stderr


@pytest.mark.parametrize("agents", [[{"role": "DEV", "count": 3}], [{"role": "ARCHITECT"}, {"role": "DEVOPS"}]])
def test_a_list_fits_a_terminal_of_80_columns(gateway: RealGateway, agents: list[dict[str, Any]]) -> None:
    id = gateway.ended(task="Write a function that merges two sorted lists without a copy.", agents=agents)
    # All of them: a beginning is unique among those shown, and this clock stands still, so that the ids begin alike.
    printed = invoke(gateway, "list", "--limit", "200", width=80).stdout
    assert max(map(len, printed.splitlines())) <= 80
    assert "Write a function that" in printed
    begin = next(line.split()[0] for line in printed.splitlines()[1:])
    assert id.startswith(begin) and len(begin) >= 10
    assert json.loads(invoke(gateway, "show", begin, "--json").stdout)["id"] == id, "what is shown can be typed"


def test_a_list_of_several_strategies_names_the_column_by_what_it_begins_with(gateway: RealGateway) -> None:
    gateway.ended(num_agents=2, strategy="best_of_n")
    gateway.ended(num_agents=1, strategy="independent")
    head, first, *_ = invoke(gateway, "list", "--limit", "2").stdout.splitlines()
    assert head.split() == ["id", "status", "age", "took", "strategy", "task"] and "independent" in first
    [head, *_] = invoke(gateway, "list", "--strategy", "best_of_n").stdout.splitlines()
    assert head.split() == ["id", "status", "age", "took", "council", "task"]


def test_a_transcript_numbers_texts_and_keeps_replies_apart(gateway: RealGateway, council: str) -> None:
    printed = invoke(gateway, "show", council, "--transcript").stdout
    headings = [line for line in printed.splitlines() if line.startswith("## Stage")]
    assert headings == [
        *("## Stage 1: propose", "## Stage 2: critique, round 1"),
        *("## Stage 3: revise, round 1", "## Stage 4: score"),
    ]
    assert "dev-002's text 2" in printed and "dev-002#" not in printed
    assert "\n>\n>\n" not in printed, "one empty line parts two paragraphs"
    replies = "Replies to issues:\n\n> issue 1 accept: right\n\nAnswer:\n\n> revision s3-dev-001\n"
    assert replies in printed, printed


def test_what_a_strategy_ignores_or_has_no_value_is_not_shown(gateway: RealGateway) -> None:
    id = gateway.ended(num_agents=2, strategy="vote")
    shown = invoke(gateway, "show", id).stdout
    assert "rounds" not in shown and "options" not in shown and 'normaliser = "text"' in shown
    accepted = invoke(gateway, "watch", id).stdout.splitlines()[0]
    assert "[]" not in accepted and 'normaliser = "text"' in accepted


def test_delete_removes_what_has_ended(gateway: RealGateway) -> None:
    id = gateway.ended(num_agents=1, strategy="single")
    assert invoke(gateway, "delete", id).stdout == f"{id} is deleted\n"
    shown = invoke(gateway, "show", id)
    assert shown.exit_code == 4 and f"error gone: Deliberation {id} has been deleted." in shown.stderr
    assert "`deliberate list` shows the deliberations that are kept" in shown.stderr
    assert invoke(gateway, "delete", id).stdout == f"{id} is deleted\n"

    async def accept(served: Served) -> str:
        return await served.accepted()

    result = invoke(gateway, "delete", gateway.do(accept))
    assert (result.exit_code, result.stdout) == (4, "") and "error still_live" in result.stderr


def test_deliveries_are_listed_and_redelivered(gateway: RealGateway, council: str) -> None:
    listed = json.loads(invoke(gateway, "deliveries", council, "--json").stdout)["items"]
    assert [each["type"] for each in listed] == ["deliberation.accepted", "deliberation.completed"]
    assert "deliberation.completed: pending, 0 attempts" in invoke(gateway, "deliveries", council).stdout
    assert listed[-1]["id"] in invoke(gateway, "redeliver", council, "last").stdout
    assert listed[0]["id"] in invoke(gateway, "redeliver", council, listed[0]["id"][:-2]).stdout
    ambiguous = invoke(gateway, "redeliver", council)
    assert ambiguous.exit_code == 2 and all(each["id"] in ambiguous.stderr for each in listed)
    assert invoke(gateway, "redeliver", council, "zzz").exit_code == 4


def test_without_deliveries_the_answer_says_so(gateway: RealGateway) -> None:
    id = gateway.ended(num_agents=1, strategy="single")
    assert "no deliveries" in invoke(gateway, "deliveries", id).stdout
    assert "there are no deliveries" in invoke(gateway, "redeliver", id).stderr


def test_the_only_delivery_needs_no_name(gateway: RealGateway, council: str) -> None:
    [first, _] = json.loads(invoke(gateway, "deliveries", council, "--json").stdout)["items"]
    only = Delivery.model_validate(first)
    assert chosen([only], None) == only
    with pytest.raises(CommandError, match="no such delivery"):
        chosen([only], "other")


def test_roles_lists_and_shows_one(gateway: RealGateway) -> None:
    listed = invoke(gateway, "roles", width=80).stdout
    assert "ARCHITECT" in listed and max(map(len, listed.splitlines())) <= 80
    shown = invoke(gateway, "roles", "DEV").stdout
    assert "persona" in shown and "ARCHITECT" not in shown
    unknown = invoke(gateway, "roles", "NOBODY/..")
    assert unknown.exit_code == 4 and "`deliberate roles` lists the roles" in unknown.stderr


@pytest.mark.parametrize("by", [None, "day", "strategy", "role", "model", "tenant"])
def test_statistics_fit_80_columns(gateway: RealGateway, council: str, by: str | None) -> None:
    options = [] if by is None else ["--by", by]
    result = invoke(gateway, "stats", *options, width=80)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and "2025-12-02 00:00 to 2026-01-01 00:00 UTC" in lines[0]
    for expected in ("deliberations", "tokens", *([by, "p95"] if by else [])):
        assert expected in result.stdout, result.stdout
    assert ("won" in result.stdout) is (by in ("role", "model"))
    assert json.loads(invoke(gateway, "stats", *options, "--json").stdout)["by"] == by


def test_status_shows_the_stack_on_one_screen(gateway: RealGateway, council: str) -> None:
    result = invoke(gateway, "status", width=80)
    assert result.exit_code == 0 and len(result.stdout.splitlines()) <= 24
    for expected in (gateway.url, "(from --url)", "ready, no keys", " since ", "DEV", "queue", "versions"):
        assert expected in result.stdout, result.stdout
    assert json.loads(invoke(gateway, "status", "--json").stdout)["ready"]["status"] == "ready"


def test_status_names_what_is_missing_and_fails() -> None:
    async def lose(served: Served) -> None:
        served.journal.replies.clear()

    with RealGateway(webhooks=True) as without:
        without.do(lose)
        result = invoke(without, "status")
    assert result.exit_code == 3
    assert "not ready" in result.stdout and "coordinator: No coordinator answered" in result.stdout


def test_status_names_what_the_key_may_not_read() -> None:
    async def keys_read(served: Served) -> None:
        keyring = served.gateway["access"].keyring
        assert keyring is not None
        await until(lambda: keyring.caught_up)

    with RealGateway(key_pepper="p" * 40) as keyed:
        keyed.do(keys_read)
        result = invoke(keyed, "status")
    assert "keys required" in result.stdout and "not shown: unauthenticated" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["ask", "x", "--council", "NOBODY:2"], "--council"),
        (["ask", "x", "--parameter", "critics=0"], "--parameter critics"),
        (["ask", "x", "--timeout", "0"], "--timeout"),
        (["ask", "x", "--budget-tokens", "0"], "--budget-tokens"),
        (["ask", "x", "--budget-calls", "0"], "--budget-calls"),
        (["ask", "x", "--max-tokens", "0"], "--max-tokens"),
        (["ask", "x", "--seed", "-1"], "--seed"),
        (["ask", "x", "--workspace", "https://git.example/x"], "--workspace"),
        (["ask", "x", "--workspace", ".", "--ref", "-x"], "--ref"),
        (["ask", "x", "--meta", "a b=c"], "--meta a b"),
        (["ask", "x", "--idempotency-key", "a b"], "--idempotency-key"),
        (["ask", " "], "TASK"),
        (["stats", "--from", "monday"], "--from"),
        (["stats", "--by", "week"], "--by"),
        (["cancel", "last", "--reason", "x" * 501], "--reason"),
    ],
)
def test_a_refusal_of_an_option_is_an_error_of_usage_and_names_it(
    gateway: RealGateway, council: str, arguments: list[str], option: str
) -> None:
    result = invoke(gateway, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{option}: " in result.stderr, result.stderr
    assert re.search(r"(?<!\S)/\w", result.stderr) is None, "no JSON pointer is left"


def test_a_path_names_the_repository_that_holds_it_and_uncommitted_changes_are_told(tmp_path: Path) -> None:
    commit = committed(tmp_path / "repo", {"a/b": "1"})
    with RealGateway(workspaces=(str(tmp_path),)) as allowing:
        clean = invoke(allowing, "ask", "x", "--workspace", str(tmp_path / "repo" / "a"), "--detach", "--json")
        (tmp_path / "repo" / "a" / "b").write_text("2")
        changed = invoke(allowing, "ask", "x", "--workspace", str(tmp_path / "repo"), "--detach", "--json")
        missing = invoke(allowing, "ask", "x", "--workspace", str(tmp_path), "--detach")
        alone = invoke(allowing, "ask", "x", "--ref", "main")
    for result in (clean, changed):
        expected = {"git": str(tmp_path / "repo"), "ref": "HEAD", "commit": commit}
        assert (result.exit_code, json.loads(result.stdout)["workspace"]) == (0, expected), result.output
    assert "uncommitted" not in clean.stderr and "1 uncommitted change will not be seen" in changed.stderr
    assert missing.exit_code == 2 and "--workspace: The repository cannot be read" in missing.stderr
    assert alone.exit_code == 2 and "--ref names a commit of --workspace" in alone.stderr


def test_files_are_sent_by_their_paths_from_here_without_hidden_ones_and_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, outside = tmp_path / "here", tmp_path / "outside.log"
    for path, text in {"src/a.py": b"1\n", "src/.hidden/b": b"2", "src/c.bin": b"\xff", "README.md": b"# x"}.items():
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).write_bytes(text)
    outside.write_text("line")
    (here / "src" / "link").symlink_to(outside)
    monkeypatch.chdir(here)
    with RealGateway() as gateway:
        sent = invoke(
            gateway, "ask", "x", "--files", "src", "--files", "README.md", "--files", "../outside.log",
            "--detach", "--json",
        )  # fmt: skip
        both = invoke(gateway, "ask", "x", "--files", "src", "--workspace", ".")
        missing = invoke(gateway, "ask", "x", "--files", "none")
    assert sent.exit_code == 0, sent.output
    assert json.loads(sent.stdout)["workspace"] == {
        "files": [
            {"path": "src/a.py", "bytes": 2},
            {"path": "README.md", "bytes": 3},
            {"path": "outside.log", "bytes": 4},
        ]
    }
    assert "src/c.bin is not sent: it is no UTF-8 text" in sent.stderr and "link" not in sent.stderr
    assert both.exit_code == 2 and "--files are the workspace: omit --workspace" in both.stderr
    assert missing.exit_code == 2 and "--files: none cannot be read" in missing.stderr


def test_paragraphs_of_help_fill_the_terminal() -> None:
    for command, line in (
        (("watch",), "scores and the winning text. Elsewhere each event is a line. The stream"),
        (("bench", "quality"), "Reports accuracy with its interval, cost per right answer, flips, unreadable"),
    ):
        printed = runner.invoke(cli, [*command, "--help"], env={"COLUMNS": "80"}).stdout
        assert line in printed, printed


@pytest.mark.parametrize("option", [None, "--full", "--transcript"])
def test_show_names_evidence_and_prints_its_texts_with_the_rest(gateway: RealGateway, option: str | None) -> None:
    told = {"id": "adr-7", "title": "Of *March*", "text": "Sessions live\n# in the database."}
    evidence = [told, {"id": "rfc", "title": "Caching", "source": "RFC 9111, section 4"}]
    id = gateway.do(lambda served: served.accepted(task="Where?", evidence=evidence))
    printed = invoke(gateway, "show", id, *([option] if option else [])).stdout
    named = " ".join(printed.replace("\\", "").replace("*", "").split())
    assert "adr-7: Of March" in named and "rfc: Caching (RFC 9111, section 4)" in named
    assert ("Sessions live" in printed) == (option is not None)
    if option == "--transcript":
        assert "## Evidence\n\n### adr-7: Of \\*March\\*\n\n> Sessions live\n> # in the database." in printed


def test_ask_builds_on_what_it_follows(gateway: RealGateway, council: str) -> None:
    asked = invoke(gateway, "ask", "Another colour?", "--follows", council[:20], "--detach", "--json")
    assert asked.exit_code == 0, asked.output
    assert [each["id"] for each in json.loads(asked.stdout)["evidence"]] == [council]
    refused = invoke(gateway, "ask", "Another colour?", "--follows", json.loads(asked.stdout)["id"], "--detach")
    assert refused.exit_code == 2 and "--follows" in refused.stderr and "Await its end" in refused.stderr


# Each reorders or hides text, or controls a terminal; a terminal must get none of them as it is.
UNSEEN = "\u202ea\u200db \x1b[2J \x9b31m \u2066\u061c \u200b\u2060\ufeff\u00ad \u3164\U000e0041 \u2028"
UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\U000e0041]"
)
LINK = "[your bank](http://evil.example/a) ![seen](http://evil.example/b.png)"


@pytest.fixture(scope="module")
def hostile(gateway: RealGateway) -> str:
    escaped = json.dumps(f"{UNSEEN} {LINK}")[1:-1].replace("\\", "\\\\")

    def write(call: Call) -> str:
        return re.sub("(draft|revision) s", rf"{escaped} \1 s", written(call))

    async def play(served: Served) -> str:
        given = {"requirements": [UNSEEN], "rubric": [{"id": "right", "description": UNSEEN}]}
        metadata = {"team": UNSEEN}
        id = await served.accepted(
            task=f"{UNSEEN} Name it.", metadata=metadata, constraints=given, num_agents=2, seed=7
        )
        accepted = decode((await served.journal.facts("default", id))[0].data)
        assert isinstance(accepted, Accepted)
        for fact in played(accepted, now=served.clock.now, write=write):
            await served.append(fact.model_copy(update={"model": UNSEEN}) if isinstance(fact, CallFinished) else fact)
        return id

    return gateway.do(play)


@pytest.mark.parametrize(
    "arguments", [["list"], ["show", "ID"], ["show", "ID", "--full"], ["watch", "ID"], ["list", "--search", "name"]]
)
def test_no_text_reorders_or_hides_what_a_command_prints(
    gateway: RealGateway, hostile: str, arguments: list[str]
) -> None:
    arguments = [each.replace("ID", hostile) for each in arguments]
    shown, as_json = invoke(gateway, *arguments, width=400), invoke(gateway, *arguments, "--json")

    assert (shown.exit_code, as_json.exit_code) == (0, 0)
    assert UNSAFE.findall(shown.output.replace("\n", "")) == UNSAFE.findall(as_json.output.replace("\n", "")) == []
    assert "<U+202E>" in shown.stdout and "a<U+200D>b" in shown.stdout
    assert "\\u202e" in as_json.stdout and "\\u009b" in as_json.stdout
    texts = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert UNSEEN in "".join(strings_in(texts))


def strings_in(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict() | list():
            for each in value.values() if isinstance(value, dict) else value:
                yield from strings_in(each)
        case _:
            return


def test_a_transcript_to_keep_shows_what_is_hidden(gateway: RealGateway, hostile: str) -> None:
    shown = invoke(gateway, "show", hostile, "--transcript").stdout
    assert UNSAFE.findall(shown.replace("\n", "")) == [] and "<U+202E>" in shown


def test_ask_prints_a_quote_and_starts_nothing(gateway: RealGateway) -> None:
    before = json.loads(invoke(gateway, "list", "--json").stdout)
    shown = invoke(gateway, "ask", "Name a colour.", "--quote", "--agents", "7", "--budget-calls", "20")
    rows = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    for begin in ("score 7 ≤ 7 ", "in all 25 ≤ 28 "):
        assert any(row.startswith(begin) for row in rows), rows
    assert "budget covers first stage: budget.max_calls is 20; 25 expected, 28 possible" in shown.stdout
    assert "expected from 0 deliberations like it" in shown.stdout
    assert json.loads(invoke(gateway, "ask", "t", "--quote", "--json").stdout)["at_most"]["calls"] == 12
    refused = invoke(gateway, "ask", "t", "--quote", "--rounds", "9")
    assert refused.exit_code == 2 and "--rounds" in refused.stderr
    assert json.loads(invoke(gateway, "list", "--json").stdout) == before


def test_a_report_says_who_stopped_a_council_and_who_stalled(gateway: RealGateway) -> None:
    id = gateway.do(lambda served: served.accepted(num_agents=2))
    told = invoke(gateway, "cancel", id, "--by", "superseded", "--reason", "asked again")
    assert told.exit_code == 0, told.stderr
    assert "cancelling by superseded: asked again" in invoke(gateway, "show", id).stdout
    gateway.do(lambda served: decided(served, id))
    shown = invoke(gateway, "show", id).stdout
    assert "cancelled by superseded: asked again" in shown
    assert "no council 0 of 2 members have an answer that counts" in shown
    assert invoke(gateway, "cancel", id, "--by", "nobody").exit_code == 2


@pytest.mark.parametrize("option", [None, "--full"])
def test_a_link_shows_its_target(gateway: RealGateway, hostile: str, option: str | None) -> None:
    found = runner.invoke(
        cli,
        ["show", hostile, *filter(None, [option]), "--url", gateway.url],
        env={"COLUMNS": "200", "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"},
        color=True,
    )
    assert "\x1b[" in found.stdout and "\x1b]8" not in found.stdout
    assert "your bank" in found.stdout and "http://evil.example/a" in found.stdout
