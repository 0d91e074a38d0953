from datetime import timedelta
from typing import cast

from app.deliberation.facts import Fact, encode
from app.deliberation.fold import fold
from app.deliberation.ports import Record
from app.log.work_queue import QueueItem, WorkQueue
from serve_deployments.coordinator.work import Work
from tests.unit.facts_of import ID, NOW, accepted, opened

TENANT = "default"


def work_of(*facts: Fact, resumed: bool = False) -> Work:
    record = Record(f"deliberations.{TENANT}.{ID}.accepted", 1, encode(accepted()))
    # These tests acknowledge nothing.
    queue = cast("WorkQueue", None)
    work = Work(TENANT, ID, queue, QueueItem(record, 1, "reply"), resumed, NOW + timedelta(seconds=60))
    state = fold(enumerate((accepted(), *facts), start=1))
    assert state is not None
    work.state = state
    return work


def running() -> Work:
    return work_of(opened())
