from serve_deployments.engine.limits import (
    FAILURES_TO_OPEN,
    OPEN_MAX_S,
    OPEN_S,
    RETRIES_SAVED_MAX,
    SAMPLES_MIN,
    Circuit,
    Hedges,
    RetryBudget,
)


def test_failures_in_a_row_open_a_circuit_and_an_answer_resets_the_count() -> None:
    circuit = Circuit()
    for number in range(1, FAILURES_TO_OPEN):
        circuit.failed(float(number), unreachable=False)
    circuit.succeeded()
    for number in range(1, FAILURES_TO_OPEN):
        circuit.failed(float(number), unreachable=False)
        assert circuit.state(float(number)) == "closed"
    circuit.failed(10.0, unreachable=False)
    assert (circuit.state(10.0), circuit.admits(10.0)) == ("open", False)


def test_an_unreachable_engine_opens_its_circuit_at_once_and_one_request_probes_it() -> None:
    circuit = Circuit()
    circuit.failed(10.0, unreachable=True)
    after_s = 10.0 + OPEN_S
    assert (circuit.admits(after_s - 0.01), circuit.admits(after_s), circuit.state(after_s)) == (
        False,
        True,
        "half_open",
    )
    circuit.begin()
    assert not circuit.admits(after_s), "one request probes"
    circuit.ended()
    assert circuit.admits(after_s), "it was cancelled: another one may probe"
    circuit.begin()
    circuit.succeeded()
    assert (circuit.state(after_s), circuit.admits(after_s)) == ("closed", True)


def test_the_first_byte_closes_a_circuit_and_broken_answers_open_it_again() -> None:
    circuit = Circuit()
    circuit.failed(0.0, unreachable=True)
    circuit.begin()
    circuit.reached()
    assert (circuit.state(0.0), circuit.admits(0.0)) == ("closed", True), (
        "other requests need not wait for the end of the answer"
    )
    for _ in range(2, FAILURES_TO_OPEN + 1):
        assert circuit.state(0.0) == "closed"
        circuit.failed(0.0, unreachable=False)
    assert circuit.state(0.0) == "open"


def test_a_connection_ends_an_outage_and_leaves_the_circuit_open_that_failed_requests_opened() -> None:
    circuit = Circuit()
    circuit.failed(0.0, unreachable=True)
    circuit.connected()
    assert circuit.state(0.0) == "closed"
    for _ in range(FAILURES_TO_OPEN):
        circuit.failed(1.0, unreachable=False)
        circuit.connected()
    assert circuit.state(1.0) == "open"


def test_each_failed_probe_doubles_the_open_time_up_to_a_bound() -> None:
    circuit, now_s, rests = Circuit(), 0.0, list[float]()
    circuit.failed(now_s, unreachable=True)
    for _ in range(6):
        assert circuit.opened_until_s is not None
        rests.append(circuit.opened_until_s - now_s)
        now_s = circuit.opened_until_s
        circuit.begin()
        circuit.failed(now_s, unreachable=False)
    assert rests == [0.5, 1.0, 2.0, 4.0, OPEN_MAX_S, OPEN_MAX_S]


def test_retries_are_a_tenth_of_the_traffic_and_one_a_second() -> None:
    budget = RetryBudget()
    at_once = 0
    while budget.withdraw(0.0) == 0.0:
        at_once += 1
    assert at_once == RETRIES_SAVED_MAX / 2
    assert budget.withdraw(0.0) == 2.0, "the second retry in debt waits for two seconds"
    for _ in range(30):
        budget.deposit()
    assert budget.withdraw(0.0) == 0.0
    assert budget.withdraw(100.0) == 0.0 and budget.saved == RETRIES_SAVED_MAX - 1
    for _ in range(3):
        budget.refund()
    assert budget.saved == RETRIES_SAVED_MAX


def test_a_call_is_hedged_after_the_95th_percentile_of_its_kind_within_the_share() -> None:
    hedges = Hedges()
    for number in range(1, SAMPLES_MIN):
        hedges.answered("answer", float(number))
        assert hedges.after_s("answer") is None
    hedges.answered("answer", 100.0)
    assert hedges.after_s("answer") == 19.0
    assert hedges.after_s("score") is None
    assert not hedges.acquire(), "one hedge for fifty calls"
    for _ in range(30):
        hedges.answered("answer", 1.0)
    assert hedges.acquire() and not hedges.acquire()
