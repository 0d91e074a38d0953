import asyncio
import errno
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.archive.database.connection import Database
from app.archive.database.migrate import migrate
from app.archive.database.rows import Written
from app.archive.database.store import ArchivedRow, RowFilter, Store
from app.cli import cli
from app.cli.stack.layout import StackOptions, plan_stack
from app.deliberation.errors import ArchiveUnavailable
from app.deliberation.facts import encode, prefix, suffix
from app.deliberation.fold import state_of
from app.deliberation.ports import Record
from tests.story import NOW, Story


async def archive_in(directory: Path) -> str:
    url = f"sqlite:///{directory / 'archive.db'}"
    await migrate(url)
    database = Database(url)
    await Store(database).delete("acme", "gone", NOW)
    await database.close()
    return url


def ran(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, [str(each) for each in arguments], input=stdin)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.delenv("DATABASE_URL", raising=False)


@pytest.fixture
async def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    await archive_in(tmp_path / "source")
    return tmp_path / "source"


def test_an_export_is_a_private_file_that_an_import_takes(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    made = ran("archive", "migrate", "--database-url", f"sqlite:///{target}")
    written = ran("export", tmp_path / "all.ndjson", "--data-dir", source)
    read = ran("import", tmp_path / "all.ndjson", "--database-url", f"sqlite:///{target}")

    assert [each.exit_code for each in (made, written, read)] == [0, 0, 0]
    assert "exported 0 deliberations and 1 tombstone" in written.stderr
    assert "imported 0 deliberations and 1 tombstone" in read.stderr
    assert (tmp_path / "all.ndjson").stat().st_mode & 0o777 == 0o600


def test_the_standard_streams_carry_lines_alone(source: Path, tmp_path: Path) -> None:
    written = ran("export", "-", "--data-dir", source, "--tenant", "acme", "--from", "2026-01-01", "--to", "2026-01-02")
    ran("archive", "migrate", "--database-url", f"sqlite:///{tmp_path / 'target.db'}")
    read = ran("import", "-", "--database-url", f"sqlite:///{tmp_path / 'target.db'}", stdin=written.stdout_bytes)

    lines = [json.loads(line) for line in written.stdout.splitlines()]
    assert lines[1] == {"tenant": "acme", "id": "gone", "deleted_at": "2026-01-01T00:00:00+00:00"}
    assert lines[2] == {"deliberations": 0, "tombstones": 1}
    assert read.exit_code == 0


def test_a_file_that_exists_is_not_written_over(source: Path, tmp_path: Path) -> None:
    (tmp_path / "all.ndjson").write_text("precious")

    written = ran("export", tmp_path / "all.ndjson", "--data-dir", source)

    assert written.exit_code == 2 and "all.ndjson cannot be used: File exists" in written.stderr
    assert (tmp_path / "all.ndjson").read_text() == "precious"


@pytest.mark.parametrize("name", ["all.ndjson", "all.parquet"])
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ArchiveUnavailable("The archive does not answer."), 3),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 2),
        (None, 130),
    ],
    ids=["archive", "disk", "interrupt"],
)
def test_an_export_that_does_not_end_leaves_no_file_and_can_be_repeated(
    name: str, failure: Exception | None, code: int, source: Path, tmp_path: Path
) -> None:
    async def rows(store: Store, chosen: RowFilter) -> AsyncGenerator[ArchivedRow]:
        yield ArchivedRow("acme", "gone", NOW, deleted=True, archived=None)
        if failure is not None:
            raise failure
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)

    (tmp_path / "exports").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Store, "rows", rows)
        stopped = ran("export", tmp_path / "exports" / name, "--data-dir", source)
    left = list((tmp_path / "exports").iterdir())
    again = ran("export", tmp_path / "exports" / name, "--data-dir", source)

    assert stopped.exit_code == code and left == []
    assert again.exit_code == 0 and [path.name for path in (tmp_path / "exports").iterdir()] == [name]


def test_a_file_that_appears_during_an_export_is_kept(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def rows(store: Store, chosen: RowFilter) -> AsyncGenerator[ArchivedRow]:
        (tmp_path / "all.ndjson").write_text("precious")
        yield ArchivedRow("acme", "gone", NOW, deleted=True, archived=None)

    monkeypatch.setattr(Store, "rows", rows)
    refused = ran("export", tmp_path / "all.ndjson", "--data-dir", source)

    assert refused.exit_code == 2 and (tmp_path / "all.ndjson").read_text() == "precious"
    assert not list(tmp_path.glob(".export-*"))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file here fails when it is read")
def test_a_file_that_cannot_be_read_is_one_line_with_the_reason(source: Path) -> None:
    refused = ran("import", "/proc/self/mem", "--data-dir", source)

    assert refused.exit_code == 2 and refused.stderr.count("\n") == 1
    assert "/proc/self/mem cannot be used: Input/output error" in refused.stderr


def test_lines_arrive_in_parts_of_any_size(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran("export", tmp_path / "all.ndjson", "--data-dir", source)
    for size in (1, 7, 1_000):
        monkeypatch.setattr("app.cli.admin.transfer.READ_BYTES", size)
        target = f"sqlite:///{tmp_path / str(size)}.db"
        ran("archive", "migrate", "--database-url", target)
        read = ran("import", tmp_path / "all.ndjson", "--database-url", target)
        assert "imported 0 deliberations and 1 tombstone" in read.stderr


async def test_an_import_that_waits_for_a_line_can_be_interrupted(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    url = await archive_in(tmp_path / "target")
    program = (sys.executable, "-c", "from app.cli import main; main()")
    process = await asyncio.create_subprocess_exec(
        *program, "import", "-", "--database-url", url, stdin=PIPE, stderr=PIPE
    )
    assert process.stdin is not None and process.stderr is not None
    process.stdin.write(b'{"format":"deliberate.archive","version":1,"logs":["0a1b2c3d"]}\n{"tenant":')
    database = Database(url)
    try:
        async with asyncio.timeout(20):
            # It waits for the rest of the second line once it has taken the first.
            while not await Store(database).logs():
                await asyncio.sleep(0.02)
            process.send_signal(signal.SIGINT)
            code, said = await process.wait(), await process.stderr.read()
    finally:
        process.stdin.close()
        await process.wait()
        await database.close()

    assert code == 130 and said == b""


def _accepted(tenant: str, at: datetime) -> Written:
    story = Story(tenant)
    facts = [story.accepted().model_copy(update={"ts": at}), story.opened(), story.completed()]
    stem = prefix(tenant, story.id)
    records = [Record(f"{stem}.{suffix(fact)}", place, encode(fact)) for place, fact in enumerate(facts, 1)]
    return Written(tenant, story.id, at, state_of(records), records)


@pytest.fixture
async def oldest(tmp_path: Path) -> datetime:
    database, day = Database(await archive_in(tmp_path)), timedelta(days=1)
    now = datetime.now(UTC)
    await Store(database).write("0a1b2c3d", [_accepted("old", now - 91 * day), _accepted("new", now - 89 * day)])
    await database.close()
    return now - 91 * day


def test_an_import_says_that_the_oldest_is_past_the_retention(oldest: datetime, tmp_path: Path) -> None:
    hints = list[list[str]]()
    for tenant in ("old", "new"):
        target = f"sqlite:///{tmp_path / tenant}.db"
        ran("archive", "migrate", "--database-url", target)
        ran("export", tmp_path / tenant, "--data-dir", tmp_path, "--tenant", tenant)
        said = ran("import", tmp_path / tenant, "--database-url", target).stderr.splitlines()
        assert said[0] == "imported 1 deliberation and 0 tombstones"
        hints.append(said[1:])

    assert len(hints[0]) == 1 and hints[1] == []
    assert oldest.isoformat(timespec="seconds") in hints[0][0] and "ARCHIVE_RETENTIONS" in hints[0][0]


def test_every_command_finds_the_archive_of_the_stack_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan_stack(StackOptions(port=0, nats_port=0), lambda _: None)
    missing = ran("archive", "migrate")
    assert missing.exit_code == 2 and ".deliberate/archive.db" in missing.stderr and "--database-url" in missing.stderr

    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/elsewhere.db")
    plan_stack(StackOptions(port=0, nats_port=0), lambda _: None)
    monkeypatch.delenv("DATABASE_URL")
    assert ran("archive", "migrate").exit_code == ran("export", "-").exit_code == 0
    assert (tmp_path / "elsewhere.db").exists() and not (tmp_path / ".deliberate/archive.db").exists()
    assert (tmp_path / ".deliberate/database_url").stat().st_mode & 0o077 == 0

    plan_stack(StackOptions(port=0, nats_port=0), lambda _: None)
    (tmp_path / ".deliberate/archive.db").touch()
    assert ran("export", "-").exit_code == 3, "it has no tables yet"
    assert ran("archive", "migrate").exit_code == ran("export", "-").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("archive", "migrate", "--data-dir", "{dir}/none"), 2, "there is no archive"),
        (("export", "x", "--data-dir", "{dir}/none"), 2, "there is no archive"),
        (("export", "x", "--database-url", "mysql://u:hunter2@h/d"), 2, "use sqlite:///path or postgresql://"),
        (("export", "x", "--database-url", "sqlite:///{dir}/none/x.db"), 3, "does not answer"),
        (("export", "x", "--from", "yesterday"), 2, "'yesterday' is no time; write 2026-01-31"),
        (("export", "x", "--tenant", "A B"), 2, "a tenant consists of"),
        (("import", "{dir}/none", "--data-dir", "{dir}/source"), 2, "none cannot be used: No such file"),
        (("import", "{dir}/bad", "--data-dir", "{dir}/source"), 1, "Line 1 is not JSON"),
    ],
)
def test_a_wrong_line_is_one_line_with_the_remedy(
    arguments: tuple[str, ...], code: int, complaint: str, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad").write_text("nonsense")

    done = ran(*(each.format(dir=tmp_path) for each in arguments))

    assert done.exit_code == code and complaint in done.stderr and "→" in done.stderr
    assert done.stderr.count("\n") == 1 and "hunter2" not in done.stderr
    assert source.is_dir()


def test_a_table_without_pyarrow_names_the_package(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    refused = ran("export", tmp_path / "all.parquet", "--data-dir", source)

    assert refused.exit_code == 2 and "deliberation-gateway[parquet]" in refused.stderr
    assert not (tmp_path / "all.parquet").exists()
