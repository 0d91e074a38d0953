"""The files of deploy/monitoring, and the programs of a real Prometheus."""

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import yaml

from tests.deploy.manifests import ROOT

MONITORING = ROOT / "deploy/monitoring"
RULES = MONITORING / "rules.yml"
MISSING = "Prometheus is missing; as root: apt-get install --no-install-recommends prometheus"


def program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, MISSING
    return found


def rules(kind: str) -> dict[str, dict[str, Any]]:
    """The rules that have `kind`, `record` or `alert`, by name."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule[kind]: rule for group in groups for rule in group["rules"] if kind in rule}


def dashboard_expressions() -> list[str]:
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def metrics_in(expression: str) -> Iterator[str]:
    """The names of the series that an expression selects."""
    labels_gone = re.sub(r"\{[^}]*\}|\b(?:by|without|on|ignoring) \([^)]*\)|\[[^]]*\]|offset \w+", "", expression)
    functions = r"\b(?:sum|max|min|rate|increase|min_over_time|histogram_quantile|and|or|unless|by|on)\b"
    yield from re.findall(r"[a-z_][a-z_:0-9]*", re.sub(functions, "", re.sub(r"(?<![\w:])[\d.]+", "", labels_gone)))
