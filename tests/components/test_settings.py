"""Settings: from the environment, within limits, and all of them documented."""

import pytest
from pydantic import ValidationError

from app.log.stream_settings import Publication
from app.main import main
from app.settings import Settings
from serve_deployments.arguments import CoordinatorArgs, WorkerArgs


def test_operators_names_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "nats://elsewhere:1")
    monkeypatch.setenv("DELIBERATION_TIMEOUT", "9")
    monkeypatch.setenv("DELIBERATION_CLEANUP", "3601")
    settings = Settings()
    assert settings.nats_url == "nats://elsewhere:1"
    assert (settings.deliberation_timeout_s, settings.retention_s) == (9, 3_601)


def test_the_gateway_listens_only_on_localhost_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOST", raising=False)
    assert Settings().host == "127.0.0.1"


@pytest.mark.parametrize(
    ("value", "publications"),
    [(None, ("announcements",)), ("", ()), ("responses, texts", ("responses", "texts"))],
)
def test_ends_are_announced_unless_other_messages_or_none_are_named(
    monkeypatch: pytest.MonkeyPatch, value: str | None, publications: tuple[Publication, ...]
) -> None:
    monkeypatch.delenv("PUBLISH", raising=False)
    if value is not None:
        monkeypatch.setenv("PUBLISH", value)
    for settings in (Settings(), CoordinatorArgs(), WorkerArgs()):
        assert settings.publications == publications


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PORT", "65536"),
        ("DELIBERATION_TIMEOUT", "0"),
        ("DELIBERATION_CLEANUP", "3599"),
        ("ACK_WAIT", "5"),
        ("QUEUE_DEPTH_MAX", "many"),
        ("LOG_LEVEL", "loud"),
    ],
)
def test_a_value_outside_its_limits_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValidationError, match=variable):
        Settings()


def test_tenants_have_retentions_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHIVE_RETENTIONS", " acme=604800, globex=3600,")
    monkeypatch.setenv("DELIBERATION_CLEANUP", "7200")
    monkeypatch.setenv("DATABASE_URL", "sqlite:///archive.db")
    settings = Settings()

    kept_s = {tenant: settings.kept_s(tenant) for tenant in ("acme", "globex", "umbrella")}

    assert kept_s == {"acme": 604_800, "globex": 7_200, "umbrella": settings.archive_retention_s}


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("acme", "Write acme=N in ARCHIVE_RETENTIONS, with N from 3600 to"),
        ("acme=", "Write acme=N in ARCHIVE_RETENTIONS"),
        ("acme=90d", "Write acme=N in ARCHIVE_RETENTIONS"),
        ("acme=-5", "Write acme=N in ARCHIVE_RETENTIONS"),
        ("acme=3599", "Write acme=N in ARCHIVE_RETENTIONS"),
        ("acme=315360001", "Write acme=N in ARCHIVE_RETENTIONS"),
        ("acme=7200,Acme Inc=7200", "Write ARCHIVE_RETENTIONS as acme=604800,globex=86400"),
        ("=7200", "Write ARCHIVE_RETENTIONS as"),
        ("acme=7200,acme=7200", "Give it one value"),
    ],
)
def test_a_wrong_retention_is_one_line_with_the_variable_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str, remedy: str
) -> None:
    monkeypatch.setenv("ARCHIVE_RETENTIONS", given)

    with pytest.raises(SystemExit) as ended:
        main()

    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert printed.startswith("ARCHIVE_RETENTIONS: ") and remedy in printed and printed.count("\n") == 1
