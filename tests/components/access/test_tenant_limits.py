import asyncio
import re
import statistics
from collections import Counter
from time import perf_counter
from typing import Any

import httpx

from tests.components.access.keyed import PEPPER, accepted, bearer, make_key, play
from tests.components.routes.listening import listening
from tests.components.routes.served import Served, served
from tests.conditions import until

OTHERS = 5
ROUNDS = 10


def rate(response: httpx.Response) -> tuple[int, int]:
    found = re.fullmatch(r'"requests";r=(\d+);t=(\d+)', response.headers["ratelimit"])
    assert found is not None
    return int(found[1]), int(found[2])


async def test_every_answer_has_the_rate_and_a_refusal_has_retry_after() -> None:
    async with served(key_pepper=PEPPER, tenant_requests_per_minute=3) as gateway:
        key, second, rival = (
            await make_key(gateway.journal, "acme"),
            await make_key(gateway.journal, "acme", ("read",)),
            await make_key(gateway.journal, "rival"),
        )
        for left, path, status, given in (
            (2, "/roles", 200, key),
            (1, "/roles/NONE", 404, key),
            (0, "/metrics", 403, second),
        ):
            response = await gateway.client.get(path, headers=bearer(given))
            assert (response.status_code, rate(response)[0]) == (status, left), "keys of one tenant share its rate"
            assert response.headers["ratelimit-policy"] == '"requests";q=3;w=60'
        refused = await gateway.client.get("/deliberations/x", headers=bearer(key))
        assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (429, "rate_limited", True)
        assert rate(refused)[0] == 0
        assert int(refused.headers["retry-after"]) == rate(refused)[1] > 0
        chat = await gateway.client.post("/v1/chat/completions", content="{", headers=bearer(key))
        assert (chat.status_code, chat.json()["error"]["type"]) == (429, "rate_limit_error")
        assert chat.json()["error"]["code"] == "rate_limit_exceeded"
        assert (await gateway.client.get("/roles", headers=bearer(rival))).status_code == 200
        assert (await gateway.client.get("/healthz", headers=bearer(key))).status_code == 200
        unknown = await gateway.client.get("/roles", headers=bearer("dlb_nothing"))
        assert unknown.status_code == 401 and "ratelimit" not in unknown.headers


async def test_session_requests_count_for_their_tenant() -> None:
    async with served(key_pepper=PEPPER, tenant_requests_per_minute=2) as gateway:
        key = await make_key(gateway.journal)
        await gateway.client.post("/login", json={"key": key})
        assert [(await gateway.client.get("/roles")).status_code for _ in range(3)] == [200, 200, 429]


async def test_a_tenant_at_its_limit_does_not_block_others() -> None:
    async with served(key_pepper=PEPPER, tenant_in_flight_max=2, queue_depth_max=3) as gateway:
        acme, rival = await make_key(gateway.journal, "acme"), await make_key(gateway.journal, "rival")
        first = await accepted(gateway, acme, {"Idempotency-Key": "k"})
        await accepted(gateway, acme)
        refused = await gateway.client.post("/deliberations", json={"task": "t"}, headers=bearer(acme))
        assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
        assert "2 deliberations of yours" in refused.json()["detail"]
        assert int(refused.headers["retry-after"]) > 0
        assert await accepted(gateway, acme, {"Idempotency-Key": "k"}) == first, "a replay is no new work"
        await accepted(gateway, rival)
        full = await gateway.client.post("/deliberations", json={"task": "t"}, headers=bearer(rival))
        assert full.status_code == 429 and "yours" not in full.json()["detail"]
        await play(gateway, "acme", first)
        await accepted(gateway, acme)


async def test_streams_are_bounded_by_tenant_over_all_addresses() -> None:
    async with listening(key_pepper=PEPPER, streams_per_client_max=1) as gateway:
        acme, rival = await make_key(gateway.journal, "acme"), await make_key(gateway.journal, "rival")
        paths: dict[str, str] = {}
        for key in (acme, rival):
            made = await gateway.client.post("/deliberations", json={"task": "t"}, headers=bearer(key))
            paths[key] = f"/deliberations/{made.json()['id']}/events"
        async with gateway.client.stream("GET", paths[acme], headers=bearer(acme)) as first:
            assert first.status_code == 200
            second = await make_key(gateway.journal, "acme")
            refused = await gateway.client.get(paths[acme], headers=bearer(second))
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
            async with gateway.client.stream("GET", paths[rival], headers=bearer(rival)) as other:
                assert other.status_code == 200


async def _round(gateway: Served, key: str, statuses: Counter[int]) -> float:
    began_s = perf_counter()
    made = await gateway.client.post("/deliberations", json={"task": "t"}, headers=bearer(key))
    path = f"/deliberations/{made.json()['id']}" if made.status_code == 202 else "/stats"
    read = await gateway.client.get(path, headers=bearer(key))
    listed = await gateway.client.get("/deliberations?limit=5", headers=bearer(key))
    statuses.update(answer.status_code for answer in (made, read, listed))
    return (perf_counter() - began_s) * 1_000


async def test_a_tenant_with_100_times_the_load_does_not_slow_others() -> None:
    """No request of the others is refused, and the median of their rounds stays in the same class.

    Rounds without and with the loud tenant alternate, so that other load of the machine weighs on both. The bound on
    time is loose, because all tenants run in one loop. Without bounds of tenants the loud one fills the queue, and the
    others are refused.
    """
    limits: dict[str, Any] = {"tenant_requests_per_minute": 1_000, "tenant_in_flight_max": 50, "queue_depth_max": 160}
    alone, beside = list[float](), list[float]()
    async with served(key_pepper=PEPPER, **limits, lists=True, lagging=True) as gateway:
        loud = await make_key(gateway.journal, "loud")
        keys = [await make_key(gateway.journal, f"quiet-{number}") for number in range(OTHERS)]
        theirs, its, loudly = Counter[int](), Counter[int](), asyncio.Event()

        async def flood() -> None:
            while True:
                await loudly.wait()
                await _round(gateway, loud, its)
                # A client's network takes longer; without a pause the loop would leave no time to the archive's thread.
                await asyncio.sleep(0.001)

        async with asyncio.TaskGroup() as group:
            floods = [group.create_task(flood()) for _ in range(4)]
            for number in range(ROUNDS):
                loudly.clear()
                alone += await asyncio.gather(*(_round(gateway, key, theirs) for key in keys))
                loudly.set()
                await until(lambda wanted=100 * 3 * (number + 1): its.total() >= wanted, timeout_s=60)
                beside += await asyncio.gather(*(_round(gateway, key, theirs) for key in keys))
            for each in floods:
                each.cancel()
    assert theirs == {202: 2 * OTHERS * ROUNDS, 200: 4 * OTHERS * ROUNDS}, "nobody else is refused"
    assert its[202] == 50 and its[429] > its.total() / 2, "the loud one is"
    quiet_ms, loud_ms = statistics.median(alone), statistics.median(beside)
    figures = f"a round of the others: {quiet_ms:.1f} ms alone, {loud_ms:.1f} ms beside {its.total()} requests of one"
    print(figures)
    assert loud_ms < 5 * quiet_ms + 50, figures
