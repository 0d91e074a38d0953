"""A `file:` URL: its file holds the server's URL with credentials, and counts anew at every connection."""

import asyncio
from pathlib import Path

import pytest

from app.deliberation.errors import JournalUnavailable
from app.log.connection import login, server_url
from app.log.journal import JetStreamJournal
from tests.conditions import until
from tests.conftest import NatsServer


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "holds no NATS URL"),
        (b" \n", "holds no NATS URL"),
        (b"secret", "holds no NATS URL"),
        (b"http://me:secret@here", "holds no NATS URL"),
        (b"nats://a:secret@b nats://c", "holds no NATS URL"),
        (b"\xff\xfe", "cannot be read: it is no text"),
    ],
)
def test_a_file_without_a_url_is_one_clear_line_without_its_content(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    file = tmp_path / "a b%20"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(JournalUnavailable) as refused:
        server_url(file.as_uri())
    assert complaint in str(refused.value) and str(file) in str(refused.value)
    assert "\n" not in str(refused.value) and "secret" not in str(refused.value)


def test_credentials_are_read_anew_and_kept_while_the_file_is_away(tmp_path: Path) -> None:
    inbox = {"inbox_prefix": "_INBOX.me"}
    assert login("nats://me:secret@here:4222") == ("nats://me:secret@here:4222", inbox)
    assert login("nats://m%2Ee:secret@here:4222")[1] == {}
    file = tmp_path / "url"
    file.write_text("nats://here:4222\n")
    assert login(file.as_uri()) == ("nats://here:4222", {})
    file.write_text("nats://me:old@here:4222\n")
    server, credentials = login(file.as_uri())
    assert server == "nats://here:4222"
    file.write_text("nats://me:new@here:4222\n")
    assert credentials.pop("inbox_prefix") == "_INBOX.me"
    assert {name: read() for name, read in credentials.items()} == {"user": "me", "password": "new"}
    file.unlink()
    assert credentials["password"]() == "new"
    file.write_text("nats://token@here")
    server, credentials = login(file.as_uri())
    assert (server, credentials["token"]()) == ("nats://here", "token")


def restart(server: NatsServer, config: Path, password: str) -> None:
    config.write_text(f'authorization {{ user: me, password: "{password}" }}')
    server.kill()
    server.start("-c", str(config))


async def test_a_connection_waits_for_its_file_and_follows_a_changed_password(
    own_nats_server: NatsServer, tmp_path: Path
) -> None:
    config, file = tmp_path / "nats.conf", tmp_path / "url"
    restart(own_nats_server, config, "first")
    journal = JetStreamJournal(file.as_uri(), name="tests")
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        opening = group.create_task(journal.open())
        await until(lambda: "cannot be read" in journal.refusal)
        file.write_text(own_nats_server.url.replace("//", "//me:first@"))
        await opening
        assert journal.server == f"127.0.0.1:{own_nats_server.port}"
        restart(own_nats_server, config, "second")
        await until(lambda: "refuses the credentials" in journal.refusal)
        assert not journal.client.is_connected and "first" not in journal.refusal
        file.write_text(own_nats_server.url.replace("//", "//me:second@"))
        await until(lambda: journal.client.is_connected)
        assert (await journal.request("$JS.API.INFO"))["streams"] == 0
    await journal.close()


async def test_a_journal_that_was_never_opened_can_be_closed(tmp_path: Path) -> None:
    await JetStreamJournal((tmp_path / "none").as_uri(), name="tests").close()
