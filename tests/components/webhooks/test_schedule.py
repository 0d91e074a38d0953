from datetime import UTC, datetime, timedelta

import pytest

from app.api.schemas import dump
from app.deliberation.errors import InvalidToken
from app.deliberation.ports import Record
from app.webhooks.attempts import (
    Attempt,
    AttemptFailed,
    AttemptProblem,
    DeliveryEnded,
    DeliveryHistory,
    DeliveryKey,
    DeliveryRecord,
    Ending,
    Redelivered,
    RedeliveryRequested,
    decoded,
    deliveries,
)
from app.webhooks.sender.delivery import DELAYS_S, RETRY_AFTER_MAX_S, next_step
from app.webhooks.sender.posting import AttemptOutcome

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FACT = "deliberations.default.d1.end"
KEY = DeliveryKey("default", "d1", "dlv_1")
TAKEN = Attempt(at=NOW, duration_ms=500, status_code=200)
REFUSED = Attempt(at=NOW, duration_ms=500, status_code=500, problem=AttemptProblem(code="http_status", detail="500"))


def outcome(status: int | None, retry_after_s: float | None = None) -> AttemptOutcome:
    problem = None if status and 200 <= status < 300 else AttemptProblem(code="c", detail="d")
    return AttemptOutcome(Attempt(at=NOW, duration_ms=500, status_code=status, problem=problem), retry_after_s)


def delay_s(step: AttemptFailed | DeliveryEnded) -> float:
    assert isinstance(step, AttemptFailed)
    return (step.next_attempt_at - NOW).total_seconds() - 0.5


def test_the_delays_are_those_of_standard_webhooks() -> None:
    hours = [5, 300, 1_800, 2 * 3_600, 5 * 3_600, 10 * 3_600, 14 * 3_600, 20 * 3_600, 24 * 3_600]
    assert list(DELAYS_S) == hours
    assert sum(DELAYS_S) == 75 * 3_600 + 35 * 60 + 5


@pytest.mark.parametrize("number", range(1, len(DELAYS_S) + 1))
@pytest.mark.parametrize("status", [None, 404, 500, 503])
def test_a_failure_schedules_the_next_attempt_with_jitter(number: int, status: int | None) -> None:
    early = delay_s(next_step(FACT, number, outcome(status), DELAYS_S, 0.0))
    late = delay_s(next_step(FACT, number, outcome(status), DELAYS_S, 0.999))
    assert early == DELAYS_S[number - 1] < late < 1.2 * DELAYS_S[number - 1]


@pytest.mark.parametrize(
    ("number", "status", "ending"),
    [
        (1, 200, "delivered"),
        (10, 299, "delivered"),
        (1, 410, "stopped"),
        (10, 410, "stopped"),
        (10, 500, "exhausted"),
        (10, None, "exhausted"),
    ],
)
def test_success_410_and_the_last_attempt_end_the_delivery(number: int, status: int, ending: Ending) -> None:
    step = next_step(FACT, number, outcome(status), DELAYS_S, 0.5)
    assert isinstance(step, DeliveryEnded)
    assert (step.ending, step.attempt) == (ending, outcome(status).attempt)


@pytest.mark.parametrize(
    ("asked_s", "waited_s"), [(None, 5), (0, 5), (3, 5), (60, 60), (10**9, RETRY_AFTER_MAX_S), (float("inf"), 86_400)]
)
def test_a_receiver_may_ask_for_a_longer_delay_within_bounds(asked_s: float | None, waited_s: float) -> None:
    assert delay_s(next_step(FACT, 1, outcome(503, asked_s), DELAYS_S, 0.0)) == waited_s


FAILED_1 = AttemptFailed(fact=FACT, number=1, attempt=REFUSED, next_attempt_at=NOW + timedelta(seconds=5))
FAILED_2 = AttemptFailed(fact=FACT, number=2, attempt=REFUSED, next_attempt_at=NOW + timedelta(seconds=305))
DELIVERED = DeliveryEnded(fact=FACT, ending="delivered", attempt=TAKEN)
EXHAUSTED = DeliveryEnded(fact=FACT, ending="exhausted", attempt=REFUSED)
ASKED = RedeliveryRequested(fact=FACT, number=1, at=NOW)
AGAIN = Redelivered(fact=FACT, number=1, attempt=TAKEN)
AGAIN_REFUSED = Redelivered(fact=FACT, number=1, attempt=REFUSED)


@pytest.mark.parametrize(
    ("records", "started", "finished", "succeeded", "next_in_s", "pending_redelivery"),
    [
        ([], False, False, False, None, None),
        ([FAILED_1], True, False, False, 5, None),
        ([FAILED_2, FAILED_1], True, False, False, 305, None),
        ([FAILED_1, DELIVERED], True, True, True, None, None),
        ([DELIVERED], True, True, True, None, None),
        ([EXHAUSTED], True, True, False, None, None),
        ([FAILED_1, ASKED], True, False, False, 5, 1),
        ([FAILED_1, ASKED, AGAIN], True, True, True, None, None),
        ([FAILED_1, ASKED, AGAIN_REFUSED], True, False, False, 5, None),
        ([EXHAUSTED, ASKED, AGAIN], True, True, True, None, None),
    ],
)
def test_folds_records_in_any_order(
    records: list[DeliveryRecord],
    started: bool,
    finished: bool,
    succeeded: bool,
    next_in_s: float | None,
    pending_redelivery: int | None,
) -> None:
    for order in (records, records[::-1]):
        delivery = DeliveryHistory()
        for each in order:
            delivery.add(each)
        assert (delivery.started, delivery.finished, delivery.succeeded) == (started, finished, succeeded)
        assert delivery.next_attempt_at == (None if next_in_s is None else NOW + timedelta(seconds=next_in_s))
        assert delivery.pending_redelivery == pending_redelivery


@pytest.mark.parametrize("record", [FAILED_1, FAILED_2, DELIVERED, ASKED, AGAIN])
def test_a_record_round_trips_through_its_subject_and_bytes(record: DeliveryRecord) -> None:
    stored = Record(KEY.subject(record), 1, dump(record))
    assert decoded(stored.data) == record
    assert DeliveryKey.of(stored) == KEY
    assert list(deliveries([stored])) == ["dlv_1"]


def test_no_two_records_share_a_subject() -> None:
    every = [FAILED_1, FAILED_2, DELIVERED, ASKED, AGAIN, ASKED.model_copy(update={"number": 2})]
    assert len({KEY.subject(record) for record in every}) == len(every)


@pytest.mark.parametrize("hostile", ["*", ">", "a.b", "", "A", "x" * 65])
def test_rejects_invalid_tokens_in_subjects(hostile: str) -> None:
    for key in (
        DeliveryKey(hostile, "d1", "dlv_1"),
        DeliveryKey("t", hostile, "dlv_1"),
        DeliveryKey("t", "d1", hostile),
    ):
        with pytest.raises(InvalidToken):
            key.subject(FAILED_1)
