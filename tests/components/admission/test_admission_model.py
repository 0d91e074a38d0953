from typing import Any

import pytest

from tests.components.admission.engine_model import Model


@pytest.mark.parametrize("sequential", [0, 20])
@pytest.mark.parametrize("gateways", [1, 3])
def test_a_burst_of_a_thousand_is_accepted_and_completes_cold_and_after_sequential_work(
    sequential: int, gateways: int
) -> None:
    model = Model(per_s=150, alone_s=0.5, timeout_s=300, gateways=gateways)
    for _ in range(sequential):
        model.ask()
        model.finish()
    for _ in range(1_000):
        model.ask()
    model.finish()
    assert (model.refused, model.missed, model.done) == (0, 0, sequential + 1_000)


def test_a_burst_that_arrives_over_twenty_seconds_is_accepted_while_it_drains_in_time() -> None:
    model = Model(per_s=30, alone_s=0.5, timeout_s=300)
    model.flood(per_s=100, seconds=18)
    model.finish()
    assert (model.refused, model.missed) == (0, 0)
    assert model.accepted > 1_500


@pytest.mark.parametrize(
    ("model", "seconds"),
    [
        (Model(per_s=3.4, alone_s=2.4, timeout_s=60), 120),
        (Model(per_s=10, alone_s=3, timeout_s=60), 120),
        (Model(per_s=10, alone_s=3, timeout_s=300, depth_max=10_000), 120),
        (Model(per_s=1, alone_s=20, timeout_s=300), 400),
        (Model(per_s=40, alone_s=1, timeout_s=10), 60),
    ],
)
def test_at_ten_times_capacity_goodput_stays_and_accepted_work_completes(model: Model, seconds: float) -> None:
    goodput = model.flood(10 * model.per_s, seconds)
    model.finish()
    assert goodput > 0.85
    assert model.missed <= model.accepted * 0.001


@pytest.mark.parametrize(
    ("limit", "model", "seconds"),
    [
        pytest.param(2_048, {"per_s": 3.4, "alone_s": 2.4, "timeout_s": 60}, 120, id="none: half done at the deadline"),
        pytest.param(256, {"per_s": 3.4, "alone_s": 2.4, "timeout_s": 60}, 120, id="a small engine"),
        pytest.param(64, {"per_s": 10, "alone_s": 20, "timeout_s": 300}, 400, id="a large engine"),
    ],
)
def test_no_constant_limit_serves_a_small_and_a_large_engine(limit: int, model: dict[str, Any], seconds: float) -> None:
    adaptive, constant = Model(**model), Model(**model, limit=limit)
    goodputs = [each.flood(3 * each.per_s, seconds) for each in (adaptive, constant)]
    print(f"goodput {goodputs[0]:.2f}, with a limit of {limit} {goodputs[1]:.2f}")
    assert goodputs[0] > 1.5 * goodputs[1]


def test_below_capacity_nothing_is_refused() -> None:
    model = Model(per_s=10, alone_s=3)
    assert 0.6 < model.flood(7, 120) < 0.8
    assert (model.refused, model.missed) == (0, 0)


@pytest.mark.parametrize("gateways", [1, 3])
@pytest.mark.parametrize("flooded", [False, True])
def test_most_clients_that_honour_retry_after_are_accepted_at_their_first_return(gateways: int, flooded: bool) -> None:
    model = Model(gateways=gateways)
    model.obey(32, 30)
    if flooded:
        model.flood(34, 60)
    goodput, returned, let_in = model.obey(320, 120)
    model.finish()
    assert returned >= 50
    assert let_in > 0.6 * returned
    assert goodput > 0.9
    assert model.missed == 0


def test_without_jitter_most_clients_come_back_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model can fail."""
    monkeypatch.setattr("app.admission.backlog.SPREAD", 0.0)
    model = Model()
    model.obey(32, 30)
    _, returned, let_in = model.obey(320, 120)
    assert let_in < 0.4 * returned
