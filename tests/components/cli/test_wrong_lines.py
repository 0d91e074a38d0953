import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from app.cli import cli
from tests.components.routes.listening import listening

# What a row needs beside its arguments: `{dir}` is a directory with the files below, `{long}` a very long name.
FILES: dict[str, bytes] = {
    "bad.yaml": b"roles: [",
    "empty.yaml": b"roles:\n  DEV: {persona: ''}\n",
    "binary": b"\xff\xfe",
    "lower.yaml": b"roles:\n  dev: {persona: You develop.}\n",
    "extra.yaml": b"roles:\n  DEV: {persona: You develop., modell: x}\n",
    "rows.jsonl": b'{"question": "1 + 1?", "answer": 2}\n',
    "bad.jsonl": b"nonsense\n",
    "empty.jsonl": b"",
}
HELP = "--help` shows what it takes"
UNKNOWN = "no deliberation that is kept has an id that begins with"
LINES: list[tuple[str, int, str, str]] = [
    # arguments, exit code, the complaint, the remedy
    ("aks hi", 2, "Did you mean 'ask'?", HELP),
    ("wach x", 2, "Did you mean 'watch'?", HELP),
    ("prayer", 2, "No such command 'prayer'", HELP),
    ("keys creat", 2, "Did you mean 'create'?", HELP),
    ("streams aply", 2, "Did you mean 'apply'?", HELP),
    ("webhooks secrt", 2, "Did you mean 'secret'?", HELP),
    ("bench qualty", 2, "Did you mean 'quality'?", HELP),
    ("--jsn list", 2, "No such option: --jsn", HELP),
    ("ask hi --stratgy vote", 2, "Did you mean --strategy?", HELP),
    ("ask hi --agent 3", 2, "Did you mean --agents?", HELP),
    ("ask hi --temprature 1", 2, "Did you mean --temperature?", HELP),
    ("list --statsu failed", 2, "Did you mean --status?", HELP),
    ("up --data-dirr x", 2, "Did you mean --data-dir?", HELP),
    ("up --engine http://gpu:8000", 2, "Did you mean --engine-url?", HELP),
    ("ask", 2, "give the task either as TASK or by --task-file", HELP),
    ("ask x --task-file y", 2, "give the task either as TASK or by --task-file", HELP),
    ("ask one two", 2, "unexpected extra argument", HELP),
    ("ask --task-file {dir}/nowhere", 2, "nowhere cannot be read: No such file or directory", HELP),
    ("ask --task-file {dir}", 2, "cannot be read: Is a directory", HELP),
    ("ask --task-file {dir}/binary", 2, "cannot be read: it is not UTF-8", HELP),
    ("ask x --council DEV:two", 2, "--council takes ROLE:COUNT,ROLE:COUNT", HELP),
    ("ask x --council DEV:2 --agents 3", 2, "omit --role and --agents", HELP),
    ("ask x --meta novalue", 2, "--meta takes key=value", HELP),
    ("ask x --parameter novalue", 2, "--parameter takes key=value", HELP),
    ("ask x --parameter a=1 --parameter a=2", 2, "is given twice", HELP),
    ("ask x --parameter a=1 --parameter a.b=2", 2, "--parameter a.b: a has a value already", HELP),
    ("ask x --parameter a.b=2 --parameter a=1", 2, "is given twice", HELP),
    ("ask x --parameter =1", 2, "--parameter takes key=value", HELP),
    ("ask x --parameter a..b=1", 2, "--parameter takes key=value", HELP),
    ("ask x --council :2", 2, "--council takes ROLE:COUNT,ROLE:COUNT", HELP),
    ("ask x --council @{dir}/bad.jsonl", 2, "--council is no JSON list", HELP),
    ("ask x --council @{dir}/none", 2, "--council: ", HELP),
    ("ask x --rubric []", 2, "--rubric is an empty list", HELP),
    ("streams plan --nats-url nats://[::", 2, "is not a URL that begins with nats://", HELP),
    ("ask x --rubric [not", 2, "--rubric is no JSON list", HELP),
    ("ask x --rubric @{dir}/nowhere", 2, "cannot be read: No such file or directory", HELP),
    ('ask x --rubric [{"id":1,"description":"d"}]', 2, "--rubric 0/id: It is not a string. Give a string.", ""),
    ("ask x --agents many", 2, "Invalid value for '--agents'", HELP),
    ("ask x --timeout soon", 2, "Invalid value for '--timeout'", HELP),
    ("ask x --seed", 2, "Option '--seed' requires an argument", HELP),
    ("ask x --url localhost:1", 2, "--url takes http://host:port", "give the gateway's URL, such as"),
    ("ask x --url http://127.0.0.1:1", 3, "no gateway answers", "`deliberate up`"),
    ("ask x --api-key ä", 2, "is not a key", "`deliberate keys create`"),
    ("ask x --role devop", 2, "Did you mean DEVOPS?", "`deliberate roles`"),
    ("ask x --council DEV:1,ARCHITEKT:1", 2, "Did you mean ARCHITECT?", "`deliberate roles`"),
    ("ask x --strategy counsil", 2, "Did you mean council?", "`deliberate strategies`"),
    ("ask x --strategy execute --parameter timeout=3", 2, "--parameter timeout", "`deliberate strategies execute`"),
    ("ask x --parameter critic=3", 2, "Did you mean critics?", "`deliberate strategies council`"),
    ("ask x --agents 33", 2, "Give 32 or less.", ""),
    ("ask x --rounds 9", 2, "Give 5 or less.", ""),
    ("ask x --agents 2 --quorum 3", 2, "2 agents cannot reach a quorum of 3", ""),
    ("ask x --temperature 3", 2, "Give 2 or less.", ""),
    ("ask x --council DEV:0", 2, "--council: the count of DEV is 0; give 1 or more, or leave DEV out", HELP),
    ("ask x --on-deadline maybe", 2, "Invalid value for '--on-deadline': 'maybe' is not one of 'best', 'fail'.", HELP),
    ("ask x --council DEV:40", 2, "--council: It is too large. Give 32 or less. · request", ""),
    ("ask x --requirement=", 2, "--requirement: It is too short. Give at least 1 character.", ""),
    ("ask --task-file {dir}/empty.jsonl", 2, "TASK: It is too short. Give at least 1 character.", ""),
    ("ask x --webhook http://127.0.0.1/x", 2, "webhook", ""),
    ("show", 2, "Missing argument 'ID'", HELP),
    ("show ../etc", 2, "a deliberation's id consists of", HELP),
    ("watch a*b", 2, "a deliberation's id consists of", HELP),
    ("show nothing-here", 4, UNKNOWN, "`deliberate list`"),
    ("watch nothing-here", 4, UNKNOWN, "`deliberate list`"),
    ("cancel nothing-here", 4, UNKNOWN, "`deliberate list`"),
    ("cancel nothing-here --wait 61", 2, "Invalid value for '--wait'", HELP),
    ("list --status complete", 2, "Did you mean completed?", ""),
    ("list --limit 500", 2, "Give 200 or less.", ""),
    ("list --created-after yesterday", 2, "Write it as 2026-01-01T00:00:00Z.", ""),
    ("list --cursor nonsense", 2, "The cursor does not come from a list", "Take `next_cursor` of a page"),
    ("list --search=-cat", 2, "Give at least one word or number without a minus.", ""),
    ("strategies best-of-n", 2, "there is no strategy 'best-of-n'", "Did you mean best_of_n?"),
    ("keys create ci", 2, "--tenant", HELP),
    ("keys create ci --tenant A.b", 2, "a tenant consists of", HELP),
    ("keys create {long} --tenant t", 2, "printable characters", HELP),
    ("keys create ci --tenant t --scope raed", 2, "Did you mean read?", HELP),
    ("keys create ci --tenant t --expires 90", 2, "--expires takes 90d, 12h, 30m or never", HELP),
    ("keys create ci --tenant t", 2, "KEY_PEPPER is not set", "`openssl rand -hex 32`"),
    ("streams plan --nats-url http://x", 2, "is not a URL that begins with nats://", HELP),
    ("bench quality --dataset {dir}/rows.jsonl --engine-url http://127.0.0.1:9", 3, "no engine answers at", "running"),
    ("bench quality --dataset {dir}/nowhere", 2, "nowhere: No such file or directory", "one JSON object a line"),
    ("bench quality --dataset {dir}/binary", 2, "binary: it is not UTF-8", "one JSON object a line"),
    ("bench quality --dataset {dir}/bad.jsonl", 2, "line 1: Invalid JSON", ""),
    ("bench quality --dataset {dir}/empty.jsonl", 2, "there is no row", ""),
    ("bench quality --dataset {dir}/rows.jsonl --url http://g --engine-url http://e", 2, "give either", HELP),
    ("bench quality --dataset {dir}/rows.jsonl --url http://g --data-dir d", 2, "--url or --data-dir, not both", ""),
    ("bench quality --dataset {dir}/rows.jsonl --strategy execute", 2, "no answer to grade", ""),
    ("bench quality --dataset {dir}/rows.jsonl --strategy independent", 2, "no answer to grade", ""),
    ("bench quality --strategy counsil", 2, "Did you mean council?", HELP),
    ("ask x --seed abc", 2, "Invalid value for '--seed': it must be an integer →", HELP),
    ("ask x --temperature hot", 2, "Invalid value for '--temperature': it must be a number →", HELP),
    ("context use http://gpu --api-key", 2, "requires an argument", "`deliberate context use --help`"),
    ("stats --from 2026-01-02T00:00:00Z --to 2026-01-01T00:00:00Z", 2, "Give a time after `--from`.", ""),
    ("ask x --council DEV/2", 2, "--council takes ROLE:COUNT,ROLE:COUNT or @file, not 'DEV/2'", HELP),
    ("up --engine-url http://gpu --simulate --seed=3", 2, "omit one of them", HELP),
    ("bench quality --limit 3", 2, "Missing option '--dataset'", HELP),
    ("up --data-dir {dir}/binary", 2, "binary cannot hold the data: File exists", "by --data-dir"),
    ("up --data-dir {dir}/binary/x", 2, "cannot hold the data: Not a directory", "by --data-dir"),
    ("up --data-dir /proc/x", 2, "/proc/x cannot hold the data", "by --data-dir"),
    ("up --data-dir {dir}/{long}", 2, "cannot hold the data: File name too long", "by --data-dir"),
    ("demo --data-dir /proc/x", 2, "/proc/x cannot hold the data", "by --data-dir"),
    ("up --roles {dir}/nowhere", 2, "nowhere: No such file or directory", "by --roles"),
    ("up --roles {dir}", 2, "Is a directory", "by --roles"),
    ("up --roles {dir}/binary", 2, "it is not UTF-8", "by --roles"),
    ("up --roles {dir}/bad.yaml", 2, "bad.yaml", "correct the file"),
    ("up --roles {dir}/empty.yaml", 2, "roles.DEV.persona", "correct the file"),
    ("up --roles {dir}/lower.yaml", 2, "a role's name matches", "correct the file"),
    ("up --roles {dir}/extra.yaml", 2, "roles.DEV.modell", "correct the file"),
    ("up --engine-url gpu:8000", 2, "is not a URL that begins with http://", HELP),
    ("up --engine-url http://gpu:x", 2, "is not a URL that begins with http://", HELP),
    ("up --nats-url http://log:4222", 2, "is not a URL that begins with nats://", HELP),
    ("up --nats-url file:///no/such/url", 2, "/no/such/url", HELP),
    ("up --simulate '--seed", 2, "No closing quotation", HELP),
    ("up --host 0.0.0.0", 2, "set KEY_PEPPER", HELP),
    ("up --port 70000", 2, "Invalid value for '--port'", HELP),
    ("KEY_PEPPER=short up", 2, "KEY_PEPPER: It has 5 characters, and needs 32 or more", "`openssl rand -hex 32`"),
    ("WEBHOOK_SECRETS=short up", 2, "WEBHOOK_SECRETS: It has 5 characters", "`openssl rand -hex 32`"),
    ("ROLES_FILE={dir}/nowhere up", 2, "nowhere: No such file or directory", "by --roles"),
    ("LOG_KEY_FILE={dir}/nowhere up", 2, "LOG_KEY_FILE", "correct the file"),
    ("DRAIN_TIMEOUT=long up", 2, "DRAIN_TIMEOUT: It is not an integer", "correct DRAIN_TIMEOUT"),
]
REQUESTS: list[tuple[str, str, Any, int, str]] = [
    # method, path, body, status, the remedy or what names the fault
    ("POST", "/deliberations", {}, 422, "Add it."),
    ("POST", "/deliberations", {"task": "x", "role": "QE1"}, 422, "Give one of"),
    ("POST", "/deliberations", {"task": "x", "agents": ["DEV"]}, 422, "Give an object."),
    ("POST", "/deliberations", {"task": "x", "webhook": "https://a.example"}, 422, "Give an object with url."),
    ("POST", "/deliberations", {"task": "x", "strategy": "votes"}, 422, "Did you mean vote?"),
    ("POST", "/deliberations", {"task": "x", "rounds": "1"}, 422, "Give an integer"),
    ("POST", "/deliberations", {"task": " "}, 422, "Say what to deliberate about."),
    ("POST", "/deliberations", [], 422, "Give an object."),
    ("POST", "/deliberation", {"task": "x"}, 404, "/openapi.json"),
    ("PUT", "/deliberations", {"task": "x"}, 405, "This path supports GET, HEAD, POST"),
    ("GET", "/deliberations/nothing", None, 404, "There is no deliberation nothing"),
    ("GET", "/deliberations/NOTHING", None, 404, "ids match [a-z0-9_-]{1,64}"),
    ("GET", "/deliberations/nothing?view=sumary", None, 422, "Did you mean summary?"),
    ("GET", "/deliberations?stat=failed", None, 422, "Did you mean status?"),
    ("GET", "/deliberations?status=complete", None, 422, "Did you mean completed?"),
    ("GET", "/deliberations?limit=0", None, 422, "Give 1 or more."),
    ("GET", "/deliberations/nothing/events?delta=1", None, 422, "Did you mean deltas?"),
    ("GET", "/deliberations/nothing/events?after=x", None, 400, "Take the `id` of an event, 0 for the beginning"),
    ("GET", "/deliberations?cursor=x", None, 400, "Take `next_cursor` of a page"),
    ("GET", "/events?types=call.finish", None, 422, "Did you mean call.finished?"),
    ("GET", "/events?status=in-progress", None, 422, "Did you mean in_progress?"),
    ("GET", "/roles/devlop", None, 404, "Did you mean DEVOPS?"),
    ("POST", "/v1/chat/completions", {"model": "vot", "messages": [{"role": "user", "content": "x"}]}, 404, "vote"),
    ("POST", "/v1/chat/completions", {"model": "vote", "message": []}, 400, "Did you mean messages?"),
    ("GET", "/v1/models/council/DEF", None, 404, "Did you mean council/DEV?"),
    ("GET", "/v1/models/counsil", None, 404, "Did you mean council?"),
]
_READING = ("--help", "roles", "strategies", "list")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    urls: list[str] = []
    ready, stopping = threading.Event(), threading.Event()

    async def serve() -> None:
        async with listening(lists=True) as gateway:
            urls.append(str(gateway.client.base_url).rstrip("/"))
            ready.set()
            await asyncio.to_thread(stopping.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(20)
    yield urls[0]
    stopping.set()
    thread.join()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("files")
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    return directory


def run(line: str, url: str, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Exit code and lines on stderr of a command line. `NAME=value` at its beginning sets a variable."""
    monkeypatch.chdir(cwd)
    words = line.replace("{dir}", str(cwd)).replace("{long}", "x" * 300).split()
    variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    environment: dict[str, str | None] = {"DELIBERATE_URL": url, "KEY_PEPPER": None, "DELIBERATE_API_KEY": None}
    result = CliRunner().invoke(cli, words[len(variables) :], env=environment | variables)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stderr.splitlines()


@pytest.mark.parametrize(("line", "exit_code", "complaint", "remedy"), LINES, ids=[row[0][:60] for row in LINES])
def test_a_wrong_command_line_gets_one_line_with_a_remedy_that_works(
    url: str, files: Path, monkeypatch: pytest.MonkeyPatch, line: str, exit_code: int, complaint: str, remedy: str
) -> None:
    code, lines = run(line, url, files, monkeypatch)
    printed = "\n".join(lines)
    assert code == exit_code, printed
    assert lines[0].startswith("error ") and complaint in printed and remedy in printed
    # Each invalid row of a data set has a line of its own.
    assert len(lines) == 1 or "dataset_invalid" in lines[0]
    assert not (files / ".deliberate").is_dir() or not any((files / ".deliberate").glob("logs/*"))
    for command in re.findall(r"`deliberate ([^`]+)`", printed):
        name, *_ = command.split()
        wanted = command if any(word in command.split() for word in _READING) else f"{name} --help"
        assert run(wanted, url, files, monkeypatch)[0] == 0, wanted


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "named"), REQUESTS, ids=[f"{row[0]} {row[1]} {row[3]}" for row in REQUESTS]
)
def test_a_wrong_request_is_refused_with_its_remedy(
    url: str, method: str, path: str, body: Any, status: int, named: str
) -> None:
    response = httpx.request(method, url + path, json=body, headers={"Accept": "application/json"})
    assert response.status_code == status, response.text
    assert named in response.text
