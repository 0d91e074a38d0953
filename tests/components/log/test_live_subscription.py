from types import SimpleNamespace
from typing import Any, cast

from nats.aio.msg import Msg

from app.deliberation.ports import Record
from app.log.journal import LiveSubscription
from app.log.signature import LogSigner


def message(number: int | None) -> Msg:
    headers = {} if number is None else {"Nats-Sequence": str(number)}
    return cast("Any", SimpleNamespace(subject="live.deliberations.t.d.end", data=b"{}", headers=headers))


async def test_records_come_in_the_order_of_the_log_from_several_subscriptions() -> None:
    delivered: list[Record] = []
    first, second = SimpleNamespace(pending_msgs=0), SimpleNamespace(pending_msgs=1)
    live = LiveSubscription(delivered.append, LogSigner(), several=True, subscriptions=cast("Any", [first, second]))
    await live.on_message(message(8))
    assert delivered == [], "an earlier one may wait at the other subscription"
    second.pending_msgs = 0
    await live.on_message(message(7))
    assert [record.sequence for record in delivered] == [7, 8]


async def test_a_message_of_a_stranger_holds_no_record_back() -> None:
    delivered: list[Record] = []
    first, second = SimpleNamespace(pending_msgs=0), SimpleNamespace(pending_msgs=1)
    live = LiveSubscription(delivered.append, LogSigner(), several=True, subscriptions=cast("Any", [first, second]))
    await live.on_message(message(8))
    second.pending_msgs = 0
    await live.on_message(message(None))
    assert [record.sequence for record in delivered] == [8]
