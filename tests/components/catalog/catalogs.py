"""A catalog of its own, and the entries that it keeps."""

from app.admission.backlog import Backlog
from app.catalog.index import Catalog
from tests.fakes import FakeClock
from tests.story import NOW


def catalog(clock: FakeClock | None = None) -> Catalog:
    clock = clock or FakeClock(NOW)
    return Catalog(clock, Backlog(clock, 1_000, {}), retention_s=3_600)


def entries_of(kept: Catalog, tenant: str = "default") -> list[tuple[str, str]]:
    kept.caught_up = True
    return [(entry.id, entry.status) for entry in sorted(kept.running(tenant), key=lambda entry: -entry.sequence)]
