import re

from app.admission.backlog import Backlog
from app.admission.spends import DailySpends, SpendLimits
from app.catalog.index import Catalog
from app.observability.metrics import Metrics
from app.routes.connections import ConnectionTable
from app.routes.dependencies import SystemClock
from app.settings import Settings
from app.webhooks.sender.sender_process import SenderSettings
from tests.deploy import wiring
from tests.deploy.manifests import ROOT

RUNBOOK = (ROOT / "docs/operations.md").read_text()
# Words in capitals that are not variables of this product.
METRIC_ENDINGS = "total|seconds|bytes|lag|unacknowledged|circuit|viewers|active|reachable"
WORDS = {"REGISTRY", "USER", "PASSWORD", "STREAM", "DIRECTORY", "DELIBERATIONS"}


def exposed() -> set[str]:
    catalog = Catalog(SystemClock(), Backlog(SystemClock(), 1, {}), retention_s=60)
    limits = SpendLimits("EUR", None, {})
    metrics = Metrics(catalog, {}, ConnectionTable(1, 1), dict, spends=DailySpends(SystemClock(), limits))
    text = metrics.exposition(senders=(), projectors=(), planners=()).decode()
    return set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))


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
