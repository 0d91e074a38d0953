"""Files and streams of public reports, as the commands read them."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.ask import parse_rubric, task_text
from app.cli.bench.dataset import read_dataset
from app.process_settings import read_text
from app.secret_files import read_variables
from tests.reported_inputs import REPORTED

BOM = b"\xef\xbb\xbf"


def written(folder: Path, name: str) -> Path:
    """The file of a report, with a byte order mark."""
    report = REPORTED[name]["input"]
    path = folder / report["file"]
    path.write_bytes(BOM + report["text"].encode())
    return path


def test_a_rubric_with_a_mark_is_a_list(tmp_path: Path) -> None:
    (criterion,) = parse_rubric(f"@{written(tmp_path, 'rubric')}")
    assert isinstance(criterion, dict) and criterion["id"] == "correctness"


def test_a_task_with_a_mark_begins_with_its_text(tmp_path: Path) -> None:
    assert task_text(None, str(written(tmp_path, "task"))) == "Name a colour.\nThanks.\n"


def test_a_data_set_with_a_mark_is_read(tmp_path: Path) -> None:
    (question,) = read_dataset(str(written(tmp_path, "data-set")), 1)
    assert question.is_right("42")


def test_files_of_settings_and_secrets_may_have_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_bytes(BOM + b"NAME=value\r\n")
    assert read_variables(str(path)) == {"NAME": "value"} and read_text(path).startswith("NAME")


def test_a_task_comes_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (("-", None), (None, "-")):
        monkeypatch.setattr("sys.stdin", io.StringIO("\ufeffName a colour.\n"))
        assert task_text(*arguments) == "Name a colour.\n"


PRINTING = """
import typer
from app.cli.exits import Exit, print_json, run

async def work():
    for number in range(100_000):
        print_json({"number": number})
    return Exit.SUCCESS

try:
    run(work, as_json=True)
except typer.Exit as end:
    raise SystemExit(end.exit_code)
"""


def test_a_closed_pipe_ends_a_command_without_a_word() -> None:
    command = subprocess.Popen([sys.executable, "-c", PRINTING], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert command.stdout is not None and command.stderr is not None
    assert command.stdout.readline() == b'{"number":0}\n'
    command.stdout.close()
    assert command.stderr.read() == b""
    assert command.wait(30) == 141
