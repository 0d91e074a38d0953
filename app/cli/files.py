"""Files as a command sends them, and `deliberate files list | upload | delete`."""

import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console, Group
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from app.api.schemas import File, FileList
from app.cli.client import GatewayClient, GatewayRefused, JsonObject, parsed
from app.cli.exits import EXIT_HELP, CommandError, Exit, FieldFault, cause, naming_options, output
from app.cli.render.lines import heartbeats
from app.cli.render.lists import file_text, files_table
from app.cli.render.text import line_of, plain
from app.cli.resources import print_resource
from app.cli.target import on_gateway

files_cli = typer.Typer()

STDIN = "-"
# Smaller ones are sent before a bar could be read.
BAR_BYTES_MIN = 1_000_000
_EVIDENCE_ID_CHARS_MAX = 64
_TITLE_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class LocalFile:
    """An open file, and how the command line names it, such as `--file a.pdf`."""

    option: str
    name: str
    content: BinaryIO
    bytes: int


@contextmanager
def local_files(paths: Sequence[str], option: str = "--file") -> Generator[list[LocalFile]]:
    """All files open, so that one that cannot be read is an error before anything is sent; raises CommandError."""
    with ExitStack() as opened:
        files = list[LocalFile]()
        # A file that is named twice is one.
        for path in dict.fromkeys(paths):
            try:
                content = opened.enter_context(_opened(path))
            except OSError as error:
                remedy = "name files that can be read"
                if isinstance(error, IsADirectoryError):
                    remedy += "; `deliberate ask --files DIR` lets agents read a directory"
                detail = f"{option}: {path} cannot be read: {cause(error)}"
                raise CommandError(Exit.USAGE, "unreadable_file", detail, remedy=remedy) from error
            # A name that is not UTF-8 keeps what is.
            name = "stdin" if path == STDIN else os.fsencode(Path(path).name).decode(errors="replace")
            files.append(LocalFile(f"{option} {path}", name, content, os.fstat(content.fileno()).st_size))
        yield files


@contextmanager
def _opened(path: str) -> Generator[BinaryIO]:
    """A file, or a copy of standard input or of a pipe, which has a length; raises OSError."""
    with ExitStack() as opened:
        content = sys.stdin.buffer if path == STDIN else opened.enter_context(open(path, "rb"))
        if path != STDIN:
            mode = os.fstat(content.fileno()).st_mode
            if stat.S_ISREG(mode):
                yield content
                return
            if not stat.S_ISFIFO(mode):
                raise OSError(0, "it is neither a file nor a pipe")
        copy = opened.enter_context(tempfile.TemporaryFile())
        shutil.copyfileobj(content, copy)
        copy.flush()
        yield copy


async def upload(gateway: GatewayClient, file: LocalFile) -> JsonObject:
    """The gateway's description of a file that it has stored. A terminal shows a bar; raises CommandError."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    hidden = file.bytes < BAR_BYTES_MIN or not console.is_terminal
    named = file.option.replace("{", "{{").replace("}", "}}")
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        content = progress.wrap_file(file.content, file.bytes, description=line_of(file.name, 40))
        print_line = partial(progress.console.print, markup=False)
        waiting = f"still waiting for {gateway.url} to store {line_of(file.name)}"
        try:
            with naming_options({"/file": named}):
                async with heartbeats(lambda: waiting, print_line):
                    return await gateway.upload(file.name, content)
        except GatewayRefused as error:
            if not error.fields:
                error.detail = f"{file.option}: {error.detail}"
            raise


async def uploaded_evidence(gateway: GatewayClient, files: Sequence[LocalFile]) -> list[JsonObject]:
    """The `evidence` of a request: each file uploaded, with an id and a title by its name; raises CommandError."""
    evidence = dict[str, JsonObject]()
    for file in files:
        stored = await upload(gateway, file)
        id = _evidence_id(file.name, evidence)
        evidence[id] = {"id": id, "title": line_of(file.name, _TITLE_CHARS_MAX) or id, "file": stored["id"]}
    return list(evidence.values())


def _evidence_id(name: str, taken: "dict[str, JsonObject]") -> str:
    base = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "file"
    id, number = base[:_EVIDENCE_ID_CHARS_MAX], 1
    while id in taken:
        number += 1
        end = f"-{number}"
        id = base[: _EVIDENCE_ID_CHARS_MAX - len(end)] + end
    return id


@files_cli.command("list", epilog=EXIT_HELP)
@on_gateway
async def list_files(gateway: GatewayClient, *, as_json: bool) -> Exit:
    """List the files of the gateway, oldest first."""
    table = partial(files_table, now=datetime.now(UTC))
    return await print_resource(gateway, "/files", FileList, table, as_json=as_json)


@files_cli.command("upload", epilog=EXIT_HELP)
@on_gateway
async def upload_files(
    gateway: GatewayClient,
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Texts, PDF, docx or pictures; - is stdin.")],
    *,
    as_json: bool,
) -> Exit:
    """Upload files, for `evidence` of requests. A file that no deliberation names is removed after an hour."""
    with local_files(paths, "PATH") as files:
        for file in files:
            document = await upload(gateway, file)
            stored = parsed(File, document)
            about = Group(plain(stored.id), Text(f"  {file_text(stored)}", "dim"))
            output(document, lambda about=about: about, as_json=as_json)
    return Exit.SUCCESS


@files_cli.command("delete", epilog=EXIT_HELP)
@on_gateway
async def delete_files(
    gateway: GatewayClient,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of files, or unique beginnings of them.")],
    *,
    as_json: bool,
) -> Exit:
    """Delete files that no deliberation names."""
    kept = parsed(FileList, await gateway.read("/files")).files
    for id in [_the_file(beginning, kept) for beginning in ids]:
        await gateway.request("DELETE", f"/files/{id}")
        output({"id": id, "deleted": True}, lambda id=id: plain(f"{id} is deleted"), as_json=as_json)
    return Exit.SUCCESS


def _the_file(beginning: str, kept: Sequence[File]) -> str:
    matching = [file for file in kept if file.id.startswith(beginning)]
    if not matching:
        detail, remedy = f"no file has an id that begins with {beginning!r}", "`deliberate files list` shows the ids"
        raise CommandError(Exit.REFUSED, "not_found", detail, remedy=remedy)
    if len(matching) > 1:
        candidates = [FieldFault(file.id, file_text(file)) for file in matching]
        detail = f"{len(matching)} ids begin with {beginning!r}"
        raise CommandError(Exit.USAGE, "ambiguous_id", detail, fields=candidates, remedy="type more of the id")
    return matching[0].id
