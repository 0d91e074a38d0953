"""A URL of PostgreSQL means here what it means to libpq; what cannot be honoured is refused by its name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from app.archive.database.connection import engine_of
from app.cli import cli
from app.deliberation.errors import ArchiveUnavailable, InvalidRequest
from tests.integration.archive.conftest import opened
from tests.integration.archive.postgres import PostgresServer


@pytest.fixture(scope="module")
def tls() -> Iterator[tuple[str, Path]]:
    server = PostgresServer()
    certificate = server.use_tls()
    server.start()
    yield server.database("secured"), certificate
    server.remove()


@pytest.fixture(scope="module")
def plain(postgres: PostgresServer) -> str:
    return postgres.database("plain")


async def answer(url: str, question: str) -> Any:
    async with opened(url) as database, database.begin() as connection:
        return (await connection.execute(text(question))).scalar_one()


ENCRYPTED = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


@pytest.mark.parametrize("query", ["", "sslmode=disable", "sslmode=prefer", "sslmode=prefer&channel_binding=prefer"])
async def test_a_server_without_tls_answers_whoever_does_not_require_it(plain: str, query: str) -> None:
    assert await answer(f"{plain}?{query}", ENCRYPTED) is False


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("sslmode=require", "rejected SSL upgrade"),
        ("ssl=require", "rejected SSL upgrade"),
        ("sslmode=verify-full", "rejected SSL upgrade|root certificate file"),
        ("options=-c%20work_mem%3Dmuch", "invalid value for parameter"),
    ],
)
async def test_what_the_server_does_not_grant_is_an_error_with_its_cause(
    plain: str, query: str, complaint: str
) -> None:
    async with opened(f"{plain}?{query}") as database:
        with pytest.raises(ArchiveUnavailable, match=complaint):
            await database.check()


@pytest.mark.parametrize(
    ("query", "encrypted"),
    [
        ("sslmode=disable", False),
        ("sslmode=prefer", True),
        ("sslmode=require", True),
        ("ssl=require", True),
        ("sslmode=verify-full&sslrootcert={certificate}", True),
    ],
)
async def test_the_mode_decides_whether_the_connection_is_encrypted(
    tls: tuple[str, Path], query: str, encrypted: bool
) -> None:
    url, certificate = tls
    assert await answer(f"{url}?{query.format(certificate=certificate)}", ENCRYPTED) is encrypted


async def test_a_certificate_of_another_authority_is_refused(tls: tuple[str, Path], tmp_path: Path) -> None:
    other = PostgresServer()
    certificate = other.use_tls()
    async with opened(f"{tls[0]}?sslmode=verify-ca&sslrootcert={certificate}") as database:
        with pytest.raises(ArchiveUnavailable, match="certificate verify failed"):
            await database.check()
    other.remove()


@pytest.mark.parametrize(
    ("query", "question", "expected"),
    [
        ("application_name=the%20archive", "SELECT current_setting('application_name')", "the archive"),
        ("options=-c%20search_path%3Dother", "SELECT current_setting('search_path')", "other"),
        ("connect_timeout=10", "SELECT 1", 1),
        ("connect_timeout=0", "SELECT 1", 1),
        ("host=127.0.0.1&target_session_attrs=primary&prepared_statement_cache_size=0", "SELECT 1", 1),
        ("application_name=mine", "SELECT current_setting('jit')", "off"),
    ],
)
async def test_what_libpq_takes_from_a_url_reaches_the_server(
    plain: str, query: str, question: str, expected: object
) -> None:
    assert await answer(f"{plain}?{query}", question) == expected


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("postgresql://h/d?sslmode=on", "unknown 'sslmode'; write one of disable, allow, prefer, require"),
        ("postgresql://h/d?sslmode=require&channel_binding=require", "requires 'channel_binding'.*sslmode=verify-full"),
        ("postgresql://h/d?sslrootcert=/none/secret.pem", "'sslrootcert' that is no file"),
        ("postgresql://h/d?connect_timeout=soon", "'connect_timeout' that is no whole number"),
        ("postgresql://h/d?pgbouncer=secret", "'pgbouncer', which is not supported; remove it"),
        ("postgresql://h/d?password=secret", "'password', which is not supported; remove it"),
        ("sqlite:///archive.db?mode=secret", "'mode', which a path does not take; remove it"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name_alone(url: str, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint) as refused:
        engine_of(url)

    assert "secret" not in str(refused.value)


def test_a_migration_names_the_cause_on_one_line(plain: str) -> None:
    def migrated(query: str) -> Result:
        return CliRunner().invoke(cli, ["archive", "migrate", "--database-url", f"{plain}?{query}"])

    done = [migrated("sslmode=require"), migrated("channel_binding=require")]

    assert [each.exit_code for each in done] == [3, 2]
    assert "rejected SSL upgrade" in done[0].stderr and "channel_binding" in done[1].stderr
    assert all(each.stderr.count("\n") == 1 for each in done)
