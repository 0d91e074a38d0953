"""Files by the command line: uploaded, named as evidence, shown, listed and deleted."""

import asyncio
import hashlib
import io
import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from app.api.requests import INLINE_CHARS_MAX
from app.api.schemas import File, FileList
from app.cli import cli
from app.cli import files as files_command
from app.cli.client import GatewayClient
from app.cli.exits import CommandError
from app.cli.render.lists import files_table
from tests.components.cli.real_gateway import RealGateway, invoke, runner
from tests.components.inputs.files import pdf, picture

CONTRACT = b"The tenant pays on the first.\n"


def id_of(content: bytes) -> str:
    return f"file-{hashlib.sha256(content).hexdigest()}"


@pytest.fixture
def gateway() -> Iterator[RealGateway]:
    with RealGateway() as one:
        yield one


def written(folder: Path, name: str, content: bytes = CONTRACT) -> str:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return str(path)


def test_ask_uploads_files_and_names_them_as_evidence(gateway: RealGateway, tmp_path: Path) -> None:
    paper, screen = pdf(["One page."], ["Another."]), picture("PNG")
    named = [
        *(
            "--file",
            written(tmp_path, "Prüfung {a} [b].pdf", paper),
            "--image",
            written(tmp_path, "screen.png", screen),
        ),
        *("--file", written(tmp_path, "contract.txt"), "--file", written(tmp_path, "other/contract.txt", b"Another.")),
    ]
    result = invoke(gateway, "ask", "Who pays?", *named, "--detach", "--json")
    assert result.exit_code == 0, result.output
    evidence = json.loads(result.stdout)["evidence"]
    assert [(entry["id"], entry["title"], f"file-{entry['file']['sha256']}") for entry in evidence] == [
        ("Pr-fung-a-b-.pdf", "Prüfung {a} [b].pdf", id_of(paper)),
        ("screen.png", "screen.png", id_of(screen)),
        ("contract.txt", "contract.txt", id_of(CONTRACT)),
        ("contract.txt-2", "contract.txt", id_of(b"Another.")),
    ]
    assert [entry["file"]["kind"] for entry in evidence] == ["text", "picture", "text", "text"]
    for option in ([], ["--transcript"]):
        printed = " ".join(invoke(gateway, "show", "last", *option).stdout.replace("\\", "").split())
        assert f"screen.png: screen.png (screen.png, image/png, {len(screen)} bytes, {id_of(screen)})" in printed
        assert f"application/pdf, {len(paper)} bytes, 2 pages, {id_of(paper)}" in printed


def test_long_names_of_files_give_ids_that_differ(gateway: RealGateway, tmp_path: Path) -> None:
    name = "n" * 200
    paths = [written(tmp_path, f"{folder}/{name}.txt", folder.encode()) for folder in "abc"]
    options = [word for path in paths for word in ("--file", path)]
    result = invoke(gateway, "ask", "x", *options, "--file", paths[0], "--detach", "--json")
    ids = [entry["id"] for entry in json.loads(result.stdout)["evidence"]]
    assert ids == ["n" * 64, f"{'n' * 62}-2", f"{'n' * 62}-3"]


def test_ask_takes_a_file_from_standard_input_and_from_a_pipe(gateway: RealGateway, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    threading.Thread(target=pipe.write_bytes, args=(b"From a pipe.",), daemon=True).start()
    line = ["ask", "x", "--file", "-", "--file", str(pipe), "--detach", "--json", "--url", gateway.url]
    result = runner.invoke(cli, line, input=CONTRACT)
    assert result.exit_code == 0, result.output
    evidence = {entry["id"]: f"file-{entry['file']['sha256']}" for entry in json.loads(result.stdout)["evidence"]}
    assert evidence == {"stdin": id_of(CONTRACT), "pipe": id_of(b"From a pipe.")}


def test_a_quote_counts_the_files(gateway: RealGateway, tmp_path: Path) -> None:
    alone = json.loads(invoke(gateway, "ask", "x", "--quote", "--json").stdout)
    path = written(tmp_path, "long.txt", b"word " * 4_000)
    reading = json.loads(invoke(gateway, "ask", "x", "--file", path, "--quote", "--json").stdout)
    assert reading["at_most"]["prompt_tokens"] > alone["at_most"]["prompt_tokens"] + 4_000


@pytest.mark.parametrize(
    ("options", "complaint", "remedy"),
    [
        (["--file", "{dir}/none.txt"], "--file: {dir}/none.txt cannot be read: No such file", "name files that can be"),
        (["--image", "{dir}"], "--file: {dir} cannot be read: Is a directory", "`deliberate ask --files DIR`"),
        (
            ["--file", "/dev/null"],
            "/dev/null cannot be read: it is neither a file nor a pipe",
            "name files that can be",
        ),
        (["--task-file", "-", "--file", "-"], "--file - and the task would both read stdin", "--help"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_before_anything_is_sent(
    gateway: RealGateway, tmp_path: Path, options: list[str], complaint: str, remedy: str
) -> None:
    task = [] if "--task-file" in options else ["x"]
    good = ["--file", written(tmp_path, "contract.txt")]
    result = invoke(gateway, "ask", *task, *good, *(option.replace("{dir}", str(tmp_path)) for option in options))
    assert (result.exit_code, result.stdout) == (2, "")
    assert complaint.replace("{dir}", str(tmp_path)) in result.stderr and remedy in result.stderr
    assert json.loads(invoke(gateway, "files", "list", "--json").stdout) == {"files": []}


def test_a_file_that_no_agent_reads_is_refused_by_its_option(gateway: RealGateway, tmp_path: Path) -> None:
    path = written(tmp_path, "{0}.bin", b"\x7fELF\x02\x01\x01" + bytes(64))
    result = invoke(gateway, "ask", "x", "--file", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"--file {path}: The file is " in result.stderr and "Upload a text, a PDF" in result.stderr


@pytest.mark.parametrize(
    ("settings", "code"),
    [({"file_bytes_max": 1_024}, "body_too_large"), ({"tenant_file_bytes_max": 1_024}, "files_full")],
)
def test_a_refusal_that_names_no_field_names_the_file(settings: dict[str, int], code: str, tmp_path: Path) -> None:
    path = written(tmp_path, "contract.txt", b"x" * 2_000)
    with RealGateway(**settings) as small:
        result = invoke(small, "ask", "x", "--file", path)
    assert result.exit_code == 4
    assert f"error {code}: --file {path}: The file" in result.stderr


@pytest.mark.parametrize("broken", [httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError])
async def test_a_connection_that_breaks_within_a_file_says_what_may_be_wrong(
    tmp_path: Path, broken: type[httpx.TransportError]
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise broken("broken", request=request)

    path = written(tmp_path, "contract.txt")
    async with GatewayClient("http://gateway", transport=httpx.MockTransport(answer)) as client:
        with files_command.local_files([path]) as (file,), pytest.raises(CommandError) as refused:
            await files_command.upload(client, file)
    assert (refused.value.exit_code, refused.value.code) == (3, "upload_broke")
    assert refused.value.remedy == "try again, or send a smaller file"


def test_show_says_that_a_long_task_is_stored_as_a_file(gateway: RealGateway, tmp_path: Path) -> None:
    task = b"Say yes. " * (INLINE_CHARS_MAX // 8)
    assert invoke(gateway, "ask", "--task-file", written(tmp_path, "task.txt", task), "--detach").exit_code == 0
    for option in ([], ["--transcript"]):
        printed = " ".join(invoke(gateway, "show", "last", *option).stdout.replace("\\", "").split())
        assert f"whole task{'' if not option else ':'} task.txt, text/plain, " in printed
        assert id_of(task.strip()) in printed or id_of(task) in printed


def test_files_are_uploaded_listed_and_deleted(gateway: RealGateway, tmp_path: Path) -> None:
    empty = invoke(gateway, "files", "list")
    assert "no files; `deliberate files upload PATH` stores one" in empty.stdout
    paths = [written(tmp_path, f"{'a' * 150}.txt", b"One."), written(tmp_path, "two.pdf", pdf(["Two."]))]
    uploaded = invoke(gateway, "files", "upload", *paths)
    assert uploaded.exit_code == 0 and id_of(b"One.") in uploaded.stdout and "1 page" in uploaded.stdout
    again = invoke(gateway, "files", "upload", paths[0], "--json")
    assert json.loads(again.stdout)["id"] == id_of(b"One.")
    listed = invoke(gateway, "files", "list", width=80)
    assert all(len(line) <= 80 for line in listed.stdout.splitlines())
    assert id_of(b"One.")[:10] in listed.stdout and "…" in listed.stdout
    shown = json.loads(invoke(gateway, "files", "list", "--json").stdout)["files"]
    assert [file["name"] for file in shown] == [f"{'a' * 150}.txt", "two.pdf"]
    several = invoke(gateway, "files", "delete", "file-")
    assert several.exit_code == 2 and "2 ids begin with 'file-'" in several.stderr
    unknown = invoke(gateway, "files", "delete", id_of(b"One.")[:12], "file-x")
    assert unknown.exit_code == 4 and "`deliberate files list` shows the ids" in unknown.stderr
    deleted = invoke(gateway, "files", "delete", id_of(b"One.")[:12], "--json")
    assert json.loads(deleted.stdout) == {"id": id_of(b"One."), "deleted": True}
    assert len(json.loads(invoke(gateway, "files", "list", "--json").stdout)["files"]) == 1


def test_the_list_says_when_a_file_ends() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    file = File(
        id=id_of(b"One."),
        name="one.txt",
        media_type="text/plain",
        kind="text",
        bytes=4,
        tokens=1,
        pages=None,
        created_at=now,
        expires_at=now + timedelta(minutes=59),
    )
    shown = io.StringIO()
    Console(file=shown, width=80).print(files_table(FileList(files=(file,)), now))
    assert shown.getvalue().rstrip().endswith("in 59 min")


def test_a_file_that_a_deliberation_names_is_in_use(gateway: RealGateway, tmp_path: Path) -> None:
    invoke(gateway, "ask", "x", "--file", written(tmp_path, "contract.txt"), "--detach")
    assert "in use" in invoke(gateway, "files", "list").stdout
    refused = invoke(gateway, "files", "delete", id_of(CONTRACT))
    assert refused.exit_code == 4 and "still_live" in refused.stderr


@pytest.mark.parametrize(
    ("size_bytes", "terminal", "bar"), [(3_000_000, True, True), (3_000_000, False, False), (9, True, False)]
)
def test_a_terminal_shows_a_bar_for_a_large_file(
    gateway: RealGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int, terminal: bool, bar: bool
) -> None:
    shown = io.StringIO()

    def console(**options: bool) -> Console:
        return Console(file=shown, force_terminal=terminal, width=100, highlight=False, soft_wrap=True)

    monkeypatch.setattr(files_command, "Console", console)
    path = written(tmp_path, "log.txt", b"x" * size_bytes)

    async def uploaded() -> str:
        async with GatewayClient(gateway.url) as client:
            with files_command.local_files([path]) as (file,):
                return (await files_command.upload(client, file))["id"]

    assert asyncio.run(uploaded()) == id_of(b"x" * size_bytes)
    assert ("log.txt" in shown.getvalue(), "3.0/3.0 MB" in shown.getvalue()) == (bar, bar)
