"""Both sides of the benchmark of real engines bring councils to their end, here over a simulator."""

import pytest

from benchmarks.engines.councils import Bare, Product, bounded, run
from benchmarks.engines.gpu import model_of
from benchmarks.prefix import ROLES
from tests.integration.simulator.server_process import running


@pytest.mark.parametrize("side", ["product", "bare script"])
async def test_councils_end_and_their_cached_share_is_counted(side: str) -> None:
    with running("--seed", "3") as simulator:
        urls = [simulator.url]
        asked = [bounded(number, "council", 3, 1_024) for number in (1, 2)]
        answering = Product(urls, ROLES[:3]) if side == "product" else Bare(urls, model_of(urls[0]))
        found = await run(answering, asked, at_once=2)
    assert (found.councils, found.failed) == (2, 0)
    assert 0.3 < found.cached_share < 0.95
    assert len(found.ttft_s) >= 18 and all(seconds > 0 for seconds in found.ttft_s)
