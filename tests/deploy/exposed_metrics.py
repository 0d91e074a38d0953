"""The names of the metrics that a gateway exposes."""

import re

from app.admission.backlog import Backlog
from app.admission.spends import DailySpends, SpendLimits
from app.catalog.index import Catalog
from app.observability.metrics import Metrics
from app.routes.connections import ConnectionTable
from app.routes.dependencies import SystemClock


def exposed() -> set[str]:
    catalog = Catalog(SystemClock(), Backlog(SystemClock(), 1, {}), retention_s=60)
    limits = SpendLimits("EUR", None, {})
    metrics = Metrics(catalog, {}, ConnectionTable(1, 1), dict, spends=DailySpends(SystemClock(), limits))
    metrics.show_plans({})
    text = metrics.exposition(senders=(), projectors=()).decode()
    return set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
