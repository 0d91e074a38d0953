import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from app.access.keys import Pepper
from app.cli import cli
from app.cli.admin.streams import find_log
from app.cli.exits import CommandError
from app.cli.options import DATA_DIR, program
from app.cli.target import LocalStack, context_file, find_local, find_target, options_for

HERE, THERE, NAMED = "http://127.0.0.1:8080", "http://127.0.0.1:8081", "http://gateway.example"
runner = CliRunner()


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("DELIBERATE_URL", "DELIBERATE_API_KEY", "NATS_URL", "LOG_KEY_FILE", "WEBHOOK_SECRETS", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


def runs(data_dir: Path, url: str = HERE, **more: Any) -> LocalStack:
    data_dir.mkdir(parents=True)
    state = {"url": url, "log": {"id": "e1"}, "supervisor_pid": os.getpid(), **more}
    (data_dir / "stack.json").write_text(json.dumps(state))
    found = LocalStack.running_in(data_dir)
    assert found is not None
    return found


def invoke(*arguments: str, stdin: str | None = None) -> Result:
    return runner.invoke(cli, arguments, input=stdin, env={"COLUMNS": "300"})


def test_the_first_name_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs(DATA_DIR)
    assert find_target(None, None, None).url == HERE
    assert invoke("context", "use", NAMED).exit_code == 0
    assert find_target(None, None, None).url == NAMED
    monkeypatch.setenv("DELIBERATE_URL", "http://of.variable")
    assert find_target(None, None, None).url == "http://of.variable"
    runs(tmp_path / "other", THERE)
    assert find_target(None, tmp_path / "other", None).url == THERE
    assert find_target("http://of.option", None, None).url == "http://of.option"
    with pytest.raises(typer.BadParameter, match="not both"):
        find_target("http://of.option", DATA_DIR, None)


@pytest.mark.parametrize(
    "line", ["list", "ask x", "status", "show last", "keys list", "streams plan", "webhooks secret"]
)
def test_without_a_stack_a_command_says_how_to_get_one(line: str) -> None:
    result = invoke(*line.split())
    assert (result.exit_code, result.stdout) == (3, "")
    assert "error no_stack: no stack runs in .deliberate here" in result.stderr and "`deliberate up`" in result.stderr


@pytest.mark.parametrize(
    "state", ["", "[]", "{}", '{"supervisor_pid": "x"}', f'{{"url": "u", "supervisor_pid": {2**22}}}']
)
def test_a_stack_that_has_ended_is_not_found(state: str) -> None:
    DATA_DIR.mkdir()
    (DATA_DIR / "stack.json").write_text(state)
    assert LocalStack.running_in(DATA_DIR) is None


def test_no_key_is_made_that_the_stack_would_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_PEPPER", "p" * 40)
    runs(DATA_DIR, key_pepper=Pepper("q" * 40).id)
    result = invoke("keys", "create", "me", "--tenant", "mine")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "error another_pepper: KEY_PEPPER is not that of the stack in .deliberate" in result.stderr
    assert "the value with which `deliberate up` was started" in result.stderr


def test_a_context_is_private_and_keeps_a_key_only_when_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELIBERATE_API_KEY", "of-the-environment")
    assert invoke("context", "use", f"{NAMED}/").exit_code == 0
    assert json.loads(context_file().read_text()) == {"url": NAMED, "api_key": None}
    result = invoke("context", "use", NAMED, "--api-key", "-", stdin="secret-key\n")
    assert "secret-key" not in result.output
    assert context_file().stat().st_mode & 0o777 == 0o600
    assert context_file().parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("DELIBERATE_API_KEY")
    assert find_target(None, None, None).api_key == "secret-key"
    assert find_target(None, None, "given").api_key == "given"
    assert find_target("http://elsewhere", None, None).api_key is None, "the key belongs to the context's gateway"
    shown = invoke("context", "show", "--json").stdout
    assert json.loads(shown) == {"url": NAMED, "source": "the context", "key": True}
    assert invoke("context", "clear").exit_code == 0 and not context_file().exists()
    assert "there was no context" in invoke("context", "clear").stdout


@pytest.mark.parametrize("arguments", [["not a url"], ["ftp://x"], [NAMED, "--api-key", "two words"]])
def test_a_context_that_cannot_work_is_not_kept(arguments: list[str]) -> None:
    assert invoke("context", "use", *arguments).exit_code == 2
    assert not context_file().exists()


def test_an_unreadable_context_has_a_remedy() -> None:
    context_file().parent.mkdir(parents=True)
    context_file().write_text('{"url": 3, "api_key": "secret-key"}')
    result = invoke("list")
    assert result.exit_code == 2 and "`deliberate context clear` removes it" in result.stderr
    assert "secret-key" not in result.output


def test_an_unreachable_gateway_is_named_with_what_named_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELIBERATE_URL", "http://127.0.0.1:1")
    assert "no gateway answers at http://127.0.0.1:1 (from DELIBERATE_URL)" in invoke("list").stderr
    monkeypatch.delenv("DELIBERATE_URL")
    runs(DATA_DIR, "http://127.0.0.1:1")
    assert "(from the stack in .deliberate)" in invoke("list").stderr


def test_a_log_is_that_of_the_running_stack() -> None:
    stack = runs(DATA_DIR)
    found = find_log(None, None, user="keys", of_stack=True)
    assert (found.url, found.stack) == ((DATA_DIR.resolve() / "nats_urls/keys").as_uri(), stack)
    given = find_log("nats://elsewhere:4222", None, user="keys", of_stack=True)
    assert (given.url, given.stack, given.key_file) == ("nats://elsewhere:4222", stack, None), "it is compared"
    assert find_log("nats://elsewhere:4222", None, user="streams", of_stack=False).stack is None


def test_a_url_names_the_log_where_no_stack_runs() -> None:
    assert find_log("nats://elsewhere:4222", None, user="keys", of_stack=True).stack is None
    with pytest.raises(CommandError, match="no stack runs in there"):
        find_log("nats://elsewhere:4222", Path("there"), user="keys", of_stack=True)


@pytest.mark.parametrize("named", ["http://localhost:8080/", "http://127.0.0.1:8080"])
def test_the_stack_here_may_be_named_by_its_url(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = runs(DATA_DIR)
    monkeypatch.setenv("DELIBERATE_URL", named)
    assert find_local(None, "remedy") == stack


@pytest.mark.parametrize("named", [NAMED, THERE, "https://127.0.0.1:8080", "nonsense"])
def test_what_needs_the_stack_here_refuses_while_another_is_named(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = runs(DATA_DIR)
    monkeypatch.setenv("DELIBERATE_URL", named)
    for line in ("keys list", "webhooks secret", "archive migrate", "export -", "import -"):
        result = invoke(*line.split())
        assert (result.exit_code, result.stdout) == (2, "")
        assert (
            "error another_stack: DELIBERATE_URL names" in result.stderr and "--data-dir .deliberate" in result.stderr
        )
    assert find_local(DATA_DIR, "remedy") == stack, "--data-dir says which"


def test_the_options_of_a_stack_fit_what_else_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert options_for(tmp_path / ".deliberate") == ""
    assert options_for(tmp_path / "a b") == f" --data-dir '{tmp_path}/a b'"
    monkeypatch.setenv("DELIBERATE_URL", NAMED)
    assert options_for(tmp_path / ".deliberate") == f" --data-dir {tmp_path}/.deliberate"


def test_a_hint_names_the_program_as_it_was_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = tmp_path / "bin/deliberate"
    here.parent.mkdir()
    here.touch(mode=0o755)
    monkeypatch.setattr("sys.argv", [str(here)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == "bin/deliberate"
    monkeypatch.setenv("PATH", str(here.parent))
    assert program() == "deliberate"
    monkeypatch.setattr("sys.argv", ["pytest"])
    assert program() == "deliberate"
