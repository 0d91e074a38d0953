"""Rules and dashboard: names and links in step, and the times of each alert by `promtool`."""

import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.deploy.exposed_metrics import exposed
from tests.deploy.manifests import ROOT
from tests.deploy.monitoring import MONITORING, RULES, dashboard_expressions, metrics_in, program, rules

ALERTS, RECORDS = rules("alert"), rules("record")
# `up` is Prometheus' own.
SERIES = exposed() | RECORDS.keys() | {"up"}


def known(name: str) -> bool:
    return name in SERIES or re.sub("_(bucket|count|sum)$", "", name) in SERIES


@pytest.mark.parametrize("expression", [*dashboard_expressions(), *(each["expr"] for each in rules("record").values())])
def test_every_series_of_dashboard_and_records_exists(expression: str) -> None:
    named = list(metrics_in(expression))
    assert named and [name for name in named if not known(name)] == []


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_reads_series_that_exist_and_links_to_its_runbook(name: str) -> None:
    named = list(metrics_in(ALERTS[name]["expr"]))
    assert named and [each for each in named if not known(each)] == []
    page, _, anchor = ALERTS[name]["annotations"]["runbook_url"].partition("#")
    headings = re.findall("^## (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in [heading.lower() for heading in headings if heading == name]


def test_the_runbook_has_no_alert_of_the_past() -> None:
    assert re.findall("^## (.+)$", (ROOT / "docs/alerts.md").read_text(), re.MULTILINE) == list(ALERTS)


def test_a_panel_reads_the_source_that_the_dashboard_offers() -> None:
    text = (MONITORING / "dashboard.json").read_text()
    assert set(re.findall(r'"uid": "([^"]+)"', text)) == {"deliberation-gateway", "${datasource}"}


class Cause(NamedTuple):
    """Series that provoke an alert: their value, or their growth in a minute, while it lasts and after it."""

    series: dict[str, tuple[float, float]]
    labels: dict[str, str] = {}


ENDED = 'deliberation_seconds_count{instance="a",replica="c",strategy="vote",status="%s"}'
CAUSES = {
    "GatewayDown": Cause(
        {'up{job="deliberation-gateway",instance="a"}': (0, 1), 'up{job="deliberation-gateway",instance="b"}': (1, 1)},
        {"job": "deliberation-gateway", "instance": "a"},
    ),
    "LogUnreachable": Cause({'log_reachable{instance="a"}': (0, 1), 'log_reachable{instance="b"}': (1, 1)}),
    "CoordinatorMissing": Cause({"coordinators": (0, 1), "log_reachable": (1, 1)}),
    "ClusterMissing": Cause(
        {
            'cluster_coordinators{cluster="us"}': (0, 1),
            'cluster_coordinators{cluster="eu"}': (1, 1),
            "coordinators": (1, 2),
        },
        {"cluster": "us"},
    ),
    "ServerErrors": Cause(
        {
            'gateway_requests_total{status="503",route="/deliberations"}': (2, 0),
            'gateway_requests_total{status="200",route="/deliberations"}': (90, 90),
        }
    ),
    "QueueHeadWaits": Cause({'queue_head_wait_seconds{instance="a"}': (61, 59)}),
    "SubmissionsRefused": Cause({'deliberations_refused_total{instance="a"}': (1, 0)}),
    "DeliberationsFail": Cause({ENDED % "timeout": (6, 4), ENDED % "completed": (94, 96)}),
    "VerdictsDegraded": Cause(
        {
            'deliberations_degraded_total{instance="a",replica="c",strategy="vote"}': (21, 19),
            ENDED % "completed": (100, 100),
        }
    ),
    "CoordinatorsLost": Cause(
        {'deliberation_takeovers_total{replica="c",after="loss"}': (1, 0)},
        {"after": "loss"},
    ),
    "CallsFail": Cause(
        {
            'agent_calls_total{replica="r",role="QA",outcome="failed"}': (11, 9),
            'agent_calls_total{replica="r",role="QA",outcome="answered"}': (89, 91),
        },
        {"role": "QA"},
    ),
    "EngineCircuitOpen": Cause(
        {
            'engine_circuit{replica="r",engine="http://e",state="open"}': (1, 0),
            'engine_circuit{replica="s",engine="http://e",state="open"}': (1, 1),
        },
        {"engine": "http://e"},
    ),
    "ToolServerAway": Cause(
        {
            'tool_server_away{role="QA",replica="r",server="shelf"}': (1, 0),
            'tool_server_away{role="QA",replica="s",server="shelf"}': (0, 0),
        },
        {"role": "QA", "server": "shelf"},
    ),
    "WorkspaceRemovalsFail": Cause(
        {'workspace_removals_failed_total{role="QA",replica="r"}': (1, 0)}, {"role": "QA", "replica": "r"}
    ),
    "WebhookSenderMissing": Cause({"webhook_senders": (0, 1)}),
    "WebhooksLag": Cause(
        {'log_consumer_lag{stream="WEBHOOKS",consumer="attempts"}': (1_001, 999), "webhook_senders": (1, 1)},
        {"consumer": "attempts"},
    ),
    "ArchiveMissing": Cause({"archive_projectors": (0, 1)}),
    "ArchiveLags": Cause({'log_consumer_lag{consumer="archive"}': (10_001, 9_999), "archive_projectors": (1, 1)}),
    "LogRecordsRefused": Cause({'log_records_refused_total{signature="log"}': (1, 0)}, {"signature": "log"}),
    "TenantNearSpend": Cause(
        {
            'tenant_spend{tenant="t",currency="EUR"}': (9.1, 8.9),
            'tenant_spend_limit{tenant="t",currency="EUR"}': (10, 10),
        },
        {"tenant": "t", "currency": "EUR"},
    ),
}


def minutes_of(rule: dict[str, Any]) -> int:
    return int(rule.get("for", "0m").removesuffix("m"))


def values(name: str, during: float, after: float, minutes: int) -> str:
    if re.match(r"\w+_(total|count)\b", name):
        return f"0+{during}x{minutes} {during * minutes + after}+{after}x30"
    return f"{during}+0x{minutes} {after}+0x30"


def run_promtool(place: Path, **test: Any) -> None:
    path = place / "test.yml"
    text = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [{"interval": "1m", **test}]}
    path.write_text(yaml.safe_dump(text))
    done = subprocess.run([program("promtool"), "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_fires_after_its_time_and_clears(name: str, tmp_path: Path) -> None:
    rule, cause = ALERTS[name], CAUSES[name]
    wait = minutes_of(rule)
    lasts = wait + 10
    firing = {"exp_labels": rule["labels"] | cause.labels, "exp_annotations": rule["annotations"]}
    moments = [(wait - 1, [])] if wait else []
    moments += [(wait + 3, [firing]), (lasts + 12, [])]
    run_promtool(
        tmp_path,
        input_series=[
            {"series": series, "values": values(series, *both, lasts)} for series, both in cause.series.items()
        ],
        alert_rule_test=[
            {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": expected} for minute, expected in moments
        ],
    )


@pytest.mark.parametrize(
    ("record", "series", "expected"),
    [
        ("deliberation:ended:rate5m", [("a", "0+60x20"), ("b", "0+60x20")], 1.0),
        # The gateway b starts later, and reads the same figures.
        ("deliberation:ended:rate5m", [("a", "0+60x20"), ("b", "_x6 360+60x14")], 1.0),
        # The coordinator starts again under its name.
        ("deliberation:ended:rate5m", [("a", "0+60x7 60+60x13"), ("b", "0+60x7 60+60x13")], 1.0),
    ],
)
def test_a_deliberation_counts_once_over_gateways_and_restarts(
    record: str, series: list[tuple[str, str]], expected: float, tmp_path: Path
) -> None:
    name = 'deliberation_seconds_count{instance="%s",replica="c",strategy="vote",status="completed"}'
    labels = f'{record}{{strategy="vote",status="completed"}}'
    run_promtool(
        tmp_path,
        input_series=[{"series": name % instance, "values": each} for instance, each in series],
        promql_expr_test=[
            {"expr": record, "eval_time": "10m", "exp_samples": [{"labels": labels, "value": expected}]},
        ],
    )


def test_a_takeover_before_the_first_scrape_counts(tmp_path: Path) -> None:
    name = 'deliberation_takeovers_total{instance="a",replica="%s",after="loss"}'
    run_promtool(
        tmp_path,
        input_series=[
            {"series": name % "old", "values": "0x20"},
            {"series": name % "new", "values": "_x8 2+0x12"},
        ],
        promql_expr_test=[
            {
                "expr": "deliberation:takeovers:increase5m",
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": 'deliberation:takeovers:increase5m{after="loss"}', "value": count}],
            }
            for minute, count in ((7, 0), (10, 2), (19, 0))
        ],
    )


def test_the_files_are_valid_for_prometheus() -> None:
    for command in (["check", "rules", RULES], ["check", "config", "--syntax-only", MONITORING / "prometheus.yml"]):
        done = subprocess.run([program("promtool"), *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
