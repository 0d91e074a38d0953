from datetime import timedelta
from typing import cast

from app.deliberation.facts import Fact, encode
from app.deliberation.fold import fold
from app.deliberation.ports import Record
from app.log.work_queue import QueueItem, WorkQueue
from serve_deployments.coordinator.execution import Execution
from tests.unit.facts_of import ID, NOW, accepted, opened

TENANT = "default"


def execution_of(*facts: Fact, resumed: bool = False) -> Execution:
    record = Record(f"deliberations.{TENANT}.{ID}.accepted", 1, encode(accepted()))
    # These tests acknowledge nothing.
    queue = cast("WorkQueue", None)
    execution = Execution(TENANT, ID, queue, QueueItem(record, 1, "reply"), resumed, NOW + timedelta(seconds=60))
    state = fold(enumerate((accepted(), *facts), start=1))
    assert state is not None
    execution.state = state
    return execution


def running() -> Execution:
    return execution_of(opened())
