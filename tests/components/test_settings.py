"""Settings: from the environment, within limits, and all of them documented."""

import pytest
from pydantic import ValidationError

from app.settings import Settings
from tests.components.docs.tables import settings_table


def test_operators_names_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "nats://elsewhere:1")
    monkeypatch.setenv("DELIBERATION_TIMEOUT", "9")
    monkeypatch.setenv("DELIBERATION_CLEANUP", "3601")
    settings = Settings()
    assert (settings.nats_url, settings.deliberation_timeout_s, settings.retention_s) == (
        "nats://elsewhere:1",
        9,
        3_601,
    )


def test_the_gateway_listens_only_on_localhost_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOST", raising=False)
    assert Settings().host == "127.0.0.1"


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


def test_the_table_lists_every_setting_with_its_description() -> None:
    table = settings_table(Settings)
    for name, field in Settings.model_fields.items():
        assert f"| `{field.validation_alias}` |" in table, name
        assert field.description
        assert field.description in table
