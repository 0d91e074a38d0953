import re

from app.settings import Settings
from app.webhooks.sender.sender_process import SenderSettings
from tests.deploy import wiring
from tests.deploy.exposed_metrics import exposed
from tests.deploy.manifests import ROOT

RUNBOOK = (ROOT / "docs/operations.md").read_text()
# Words in capitals that are not variables of this product.
METRIC_ENDINGS = "total|seconds|bytes|lag|unacknowledged|circuit|viewers|active|reachable"
WORDS = {"REGISTRY", "USER", "PASSWORD", "STREAM", "DIRECTORY", "DELIBERATIONS"}


def variables_in(text: str) -> set[str]:
    code = " ".join(re.findall(r"`([^`\n]+)`", text))
    return set(re.findall(r"(?<![\w.-])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?![\w-])", code)) - WORDS


def test_documented_variables_are_known_settings() -> None:
    named = variables_in(RUNBOOK)
    known = wiring.settings_variables(Settings) | wiring.settings_variables(SenderSettings)
    known |= wiring.deployer_variables() | wiring.streams_variables()
    known |= wiring.trace_variables()
    assert named - known - wiring.ray_variables() == set()
    assert {"DRAIN_DELAY", "STREAM_REPLICAS", "ACK_WAIT", "RAY_START_HOOK"} <= named


def test_documented_metrics_exist() -> None:
    named = set(re.findall(rf"`((?!timeout_)[a-z_]+_(?:{METRIC_ENDINGS}))[`{{]", RUNBOOK))
    assert named - exposed() == set()
    assert len(named) >= 15


def test_documented_error_codes_exist() -> None:
    codes = wiring.strings_in(ROOT / "app/deliberation/errors.py")
    for code in ("journal_unavailable", "strategy_drift", "engine_unavailable", "engine_rejected"):
        assert code in codes
        assert f"`{code}`" in RUNBOOK
