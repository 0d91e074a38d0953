import json
from typing import Any, cast

import pytest

from app.deliberation.ports import Record
from app.log.queue_worker import ItemDeferred
from app.planning.consumer import APPROVED, PlanConsumer
from app.planning.plans import Plans
from tests.components.planning.plans import PLAN
from tests.components.routes.served import Served


async def test_a_stopping_gateway_gives_an_event_back(gateway: Served) -> None:
    plans = Plans(gateway.gateway["deliberations"], gateway.gateway["settings"].plan_roles)
    consumer = PlanConsumer(cast(Any, gateway.journal), plans, ("default",))
    gateway.gateway["feed"].drain()

    with pytest.raises(ItemDeferred) as deferred:
        await consumer.on_event(Record(APPROVED, 1, json.dumps(PLAN).encode()))

    assert deferred.value.delay_s == 0 and consumer.counts == {}
