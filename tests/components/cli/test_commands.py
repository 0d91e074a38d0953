import json
import os
import sys
from pathlib import Path

import pytest
from starlette.responses import JSONResponse
from typer.testing import CliRunner, Result

from app.cli import cli
from app.cli.admin import openapi as openapi_command
from app.cli.ask import parse_rubric
from app.cli.exits import Exit
from app.cli.stack.layout import MODEL_PACE, StackOptions
from tests.components.cli.council_run import ID, MODEL, Council, StubGateway, problem

runner = CliRunner()
COMMANDS = ["ask", "watch", "list", "show", "cancel", "delete", "deliveries", "redeliver", "status", "roles"]
COMMANDS += ["strategies", "openapi"]


def invoke(*arguments: str, stdin: str | None = None) -> Result:
    return runner.invoke(cli, arguments, input=stdin)


def documents(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_documents_itself_and_its_exit_codes(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "Exit codes" in result.stdout
    assert "--json" in result.stdout


def test_ask_waits_and_prints_the_verdict(stub: StubGateway, url: str) -> None:
    result = invoke("ask", "Write a rate limiter.", "--url", url)
    assert result.exit_code == 0
    assert "Ranking" in result.stdout and "The council's answer" in result.stdout
    assert stub.bodies == [{"task": "Write a rate limiter."}]


def test_ask_prints_only_json(stub: StubGateway, url: str) -> None:
    result = invoke("ask", "x", "--url", url, "--json")
    assert [document["status"] for document in documents(result.stdout)] == ["completed"]
    assert result.stderr == ""


def test_ask_with_watch_prints_every_event(stub: StubGateway, url: str) -> None:
    result = invoke("ask", "x", "--url", url, "--json", "--watch")
    types = [document["type"] for document in documents(result.stdout)]
    assert types == ["stream.opened", *(event.type for event in stub.council.events)]


def test_ask_with_detach_prints_the_id_and_exits(stub: StubGateway, url: str) -> None:
    result = invoke("ask", "x", "--url", url, "--detach", "--idempotency-key", "mine")
    assert (result.exit_code, result.stdout) == (0, f"{ID}\n")
    assert [(method, headers.get("idempotency-key")) for method, _, headers in stub.requests] == [("POST", "mine")]
    assert documents(invoke("ask", "x", "--url", url, "--no-wait", "--json").stdout)[0]["status"] == "pending"


def test_every_option_reaches_the_request(stub: StubGateway, url: str) -> None:
    options = [
        *("--council", "DEV:2,QA", "--strategy", "best_of_n", "--rounds", "0", "--rubric", "be right"),
        *"--requirement tested --requirement small --timeout 60 --seed 0 --on-deadline fail --max-tokens 99".split(),
        *"--temperature 0 --quorum 2 --budget-tokens 5000 --budget-calls 9".split(),
        *"--meta team=core --meta note=a=b --webhook https://hooks.example/".split(),
        *"--parameter critics=2 --parameter stop=none --parameter inner.a.b=[1]".split(),
    ]
    assert invoke("ask", "--task-file", "-", "--url", url, *options, stdin="x").exit_code == 0
    assert stub.bodies == [
        {
            "task": "x",
            "agents": [{"role": "DEV", "count": 2}, {"role": "QA", "count": 1}],
            "strategy": "best_of_n",
            "parameters": {"critics": 2, "stop": "none", "inner": {"a": {"b": [1]}}},
            "rounds": 0,
            "constraints": {
                "rubric": "be right",
                "requirements": ["tested", "small"],
                "timeout_seconds": 60,
                "on_deadline": "fail",
            },
            "quorum": 2,
            "budget": {"max_tokens": 5000, "max_calls": 9},
            "sampling": {"temperature": 0.0, "max_tokens": 99},
            "seed": 0,
            "metadata": {"team": "core", "note": "a=b"},
            "webhook": {"url": "https://hooks.example/"},
        }
    ]


def test_parses_a_structured_rubric(tmp_path: Path) -> None:
    file = tmp_path / "rubric.json"
    file.write_text('[{"id": "right", "description": "Is it right?", "weight": 2}]')
    for given in (f"@{file}", file.read_text()):
        assert parse_rubric(given) == [{"id": "right", "description": "Is it right?", "weight": 2}]


@pytest.mark.parametrize("command", [["ask", "x"], ["watch", ID], ["list"], ["show", ID], ["cancel", ID], ["roles"]])
def test_a_refusal_exits_with_2_where_it_names_options_alone(stub: StubGateway, url: str, command: list[str]) -> None:
    faults = [{"location": "body", "pointer": "/rounds", "code": "le", "detail": "too many", "remedy": "Give 5."}]
    stub.answers = [problem("invalid_request", 422, faults)]
    result = invoke(*command, "--url", url)
    field, code = ("--rounds", 2) if command[0] == "ask" else ("/rounds", 4)
    assert (result.exit_code, result.stdout) == (code, "")
    assert "error invalid_request" in result.stderr and f"{field}: too many. Give 5." in result.stderr
    stub.answers = [problem("invalid_request", 422, faults)]
    assert documents(invoke(*command, "--url", url, "--json").stderr)[0]["code"] == "invalid_request"


@pytest.mark.parametrize(("terminal", "exit_code"), [("failed", 1), ("timeout", 1), ("cancelled", 5)])
@pytest.mark.parametrize("command", [["ask", "x"], ["watch", ID]])
def test_the_exit_code_is_the_deliberations_outcome(
    stub: StubGateway, url: str, monkeypatch: pytest.MonkeyPatch, terminal: str, exit_code: int, command: list[str]
) -> None:
    resource = stub.council.resource | {"status": terminal}
    monkeypatch.setattr(Council, "resource", resource)
    assert invoke(*command, "--url", url).exit_code == exit_code


def test_watch_without_a_terminal_prints_lines_then_the_report(url: str) -> None:
    result = invoke("watch", ID, "--url", url)
    assert result.exit_code == 0
    assert "stage 1 propose: 3 calls, quorum 2" in result.stdout
    assert result.stdout.index("  completed") < result.stdout.index("Ranking")


def test_watch_resumes_a_broken_stream(stub: StubGateway, url: str) -> None:
    stub.cut_after = 100
    result = invoke("watch", ID, "--url", url, "--json")
    ids = [document for document in documents(result.stdout) if document["type"] != "stream.opened"]
    assert len(ids) == len(stub.council.events)
    assert "stream lost" in result.stderr


def test_watch_without_deltas(url: str) -> None:
    result = invoke("watch", ID, "--url", url, "--json", "--no-deltas")
    assert "call.delta" not in {document["type"] for document in documents(result.stdout)}


def test_list_prints_deliberations_and_the_next_cursor(url: str) -> None:
    result = invoke("list", "--url", url, "--status", "completed", "--meta", "team=core")
    assert result.exit_code == 0
    assert ID in result.stdout and "3×DEV" in result.stdout and "--cursor c-2" in result.stdout
    assert documents(invoke("list", "--url", url, "--json").stdout)[0]["next_cursor"] == "c-2"


def test_a_role_has_one_line_of_80_columns_that_says_once_that_it_is_simulated(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.strip() for line in invoke("roles", "--url", url).stdout.splitlines()]
    first, second = lines[0], next(line for line in lines if line.startswith("QA"))
    below = lines[1 : lines.index(second)]
    assert first.split() == ["DEV", MODEL, "1", "of", "1–2", "replicas", "temperature", "0.7"]
    assert "http://away cannot be connected to: connection refused, since 03:04:05 UTC. Start it" in " ".join(below)
    assert second.split()[:7] == ["QA", "no", "replica", "answers", "0", "of", "1–2"]


def test_status_shows_every_part_and_each_fault_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    told = invoke("status", "--all", "--url", url)
    result = " ".join(told.stdout.split())
    assert told.exit_code == 0, told.stderr
    for expected in (
        "queue 5 of 2000 4 running, 1 waiting, the oldest for 0.2 s; 1.2 per second",
        "coordinator host-4711 4 running of 16; DEV: 4 of 16 started, 1 waiting",
        "12 calls of 256, 1 waiting;",
        "12 in flight, 1 waiting, 44% cached, first token after 0.08 s, circuit closed, version 0.32.0; DEV",
        "DELIBERATIONS 4211 messages, 5.2 MB",
        "coordinator 0 behind, 4 unacknowledged, 0 redelivered",
        "nats-server 2.15.1",
    ):
        assert expected in result, result
    shown = json.loads(invoke("status", "--url", url, "--json").stdout)["status"]
    assert shown["queue"]["depth"] == 5 and result.count(shown["findings"][0]["detail"]) == 1


def test_cancel_prints_the_status(stub: StubGateway, url: str) -> None:
    result = invoke("cancel", ID, "--url", url, "--reason", "enough", "--wait", "2")
    assert (result.exit_code, result.stdout) == (0, f"{ID} is cancelling\n")
    assert stub.bodies == [{"reason": "enough"}]
    assert stub.requests[-1][2]["prefer"] == "wait=2"


def test_cancel_of_an_ended_one_says_that_nothing_was_cancelled(stub: StubGateway, url: str) -> None:
    stub.answers.append(JSONResponse({**stub.council.resource, "status": "completed"}))
    whole = ID.ljust(26, "0")
    result = invoke("cancel", whole, "--url", url)
    assert (result.exit_code, result.stdout) == (0, f"{whole} had ended before: completed; nothing was cancelled\n")


@pytest.mark.parametrize("before", [["--url", "URL"], ["--url=URL"], ["--json", "--url", "URL"]])
def test_options_that_name_a_gateway_may_stand_before_the_command(
    before: list[str], stub: StubGateway, url: str
) -> None:
    result = invoke(*(word.replace("URL", url) for word in before), "cancel", ID)
    assert result.exit_code == 0 and ID in result.stdout
    assert result.stdout.startswith("{") == ("--json" in before)


def test_the_simulator_receives_every_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[list[str]] = []

    def execv(_: str, arguments: list[str]) -> None:
        executed.append(arguments)

    monkeypatch.setattr(os, "execv", execv)
    invoke("simulator", "--port", "0", "--help", "-x", "y")
    assert executed == [[sys.executable, "-P", "-m", "serve_deployments.simulator", "--port", "0", "--help", "-x", "y"]]


class TestOpenapi:
    @pytest.fixture(autouse=True)
    def generated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            openapi_command, "rendered", lambda: {"openapi.json": "{\n}\n", "events.schema.json": "[]\n"}
        )

    def test_writes_the_generated_files(self, tmp_path: Path) -> None:
        directory = tmp_path / "made"
        checked = invoke("openapi", "--dir", str(directory), "--check")
        assert (checked.exit_code, checked.stdout) == (1, "")
        assert "openapi.json: is missing" in checked.stderr and "`deliberate openapi`" in checked.stderr
        assert not directory.exists(), "a check writes nothing"
        assert documents(invoke("openapi", "--dir", str(directory), "--json").stdout) == [
            {"written": ["events.schema.json", "openapi.json"]}
        ]
        assert (directory / "openapi.json").read_text() == "{\n}\n"
        assert invoke("openapi", "--dir", str(directory), "--check").exit_code == 0
        assert "up to date" in invoke("openapi", "--dir", str(directory)).stdout

    def test_a_check_names_the_file_that_differs(self, tmp_path: Path) -> None:
        invoke("openapi", "--dir", str(tmp_path))
        (tmp_path / "openapi.json").write_text("{\n  edited\n}\n")
        result = invoke("openapi", "--dir", str(tmp_path), "--check")
        assert result.exit_code == 1
        assert "openapi.json" in result.stderr and "events.schema.json" not in result.stderr


@pytest.mark.parametrize(
    ("given", "simulator"),
    [
        ([], tuple(MODEL_PACE.split())),
        (["--simulate", ""], ()),
        (["--simulate", "--duration-ms 5"], ("--duration-ms", "5")),
        (["--engine-url", "http://127.0.0.1:1"], ()),
    ],
)
def test_up_simulates_the_pace_of_a_model_unless_it_is_told_another(
    given: list[str], simulator: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[StackOptions]()

    async def started(options: StackOptions, _report: object) -> Exit:
        seen.append(options)
        return Exit.SUCCESS

    monkeypatch.setattr("app.cli.stack.up._up", started)
    assert CliRunner().invoke(cli, ["up", "--json", *given]).exit_code == 0
    assert [options.simulate for options in seen] == [simulator]


@pytest.mark.parametrize("more", [["--engine-url", "http://127.0.0.1:1"], ["--simulate", "--duration-ms 5"]])
def test_up_serves_a_model_or_asks_another_engine_and_not_both(more: list[str]) -> None:
    refused = invoke("up", "--model", "small.gguf", *more)
    assert refused.exit_code == Exit.USAGE and "--model" in refused.stderr
