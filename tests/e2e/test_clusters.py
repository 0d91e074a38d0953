"""Two Ray clusters on one log split the work by labels; one of them is killed.

CLUSTER_DELIBERATIONS=1000 pytest -s tests/e2e/test_clusters.py
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import cycle, islice
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from app.cli.stack.supervisor import sweep
from app.deliberation.ports import Record
from app.log.signature import LOG_KEY_NAME
from app.log.stream_settings import coordinator_queues
from tests.conditions import until, until_empty
from tests.conftest import LOG_KEY, NatsServer
from tests.e2e.conftest import ONE_ROLE, Stack, connected, start_up, stop_up, stored

pytestmark = pytest.mark.e2e

DELIBERATIONS = int(os.environ.get("CLUSTER_DELIBERATIONS", "100"))
CLUSTERS = "eu", "us"
# Of five deliberations two have each label, and one has none.
LABELS = list(islice(cycle(("eu", "us", "eu", "us", None)), DELIBERATIONS))
SUBMITS_AT_ONCE = 8
WITHIN_S = 300


def share_log_key(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o700, exist_ok=True)
    (data_dir / LOG_KEY_NAME).write_text(LOG_KEY)


@asynccontextmanager
async def cluster(url: str, place: Path, *labels: str) -> AsyncGenerator[Stack]:
    """A stack with a Ray cluster, an engine and a gateway of its own, on a log that it shares."""
    share_log_key(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COORDINATOR_CLUSTERS", ",".join(labels))
        process, ready = await asyncio.to_thread(start_up, place, "--nats-url", url, "--roles", str(ONE_ROLE))
    try:
        async with connected(process, place, ready) as stack:
            yield stack
    finally:
        if process.poll() is None:
            assert await asyncio.to_thread(stop_up, process) == 0


async def kill(stack: Stack) -> None:
    """Kill every process of a stack at once: a supervisor that ends stops its children in order."""
    stack.process.send_signal(signal.SIGSTOP)
    await sweep(stack.mark)
    stack.process.kill()
    await asyncio.to_thread(stack.process.wait)


async def submit(stack: Stack) -> dict[str, str | None]:
    ids, waiting = dict[str, str | None](), iter(LABELS)

    async def one_after_another() -> None:
        for label in waiting:
            body: dict[str, Any] = {"cluster": label} if label else {}
            ids[await stack.submit(strategy="single", constraints={"timeout_seconds": 600}, **body)] = label

    async with asyncio.TaskGroup() as group:
        for _ in range(SUBMITS_AT_ONCE):
            group.create_task(one_after_another())
    return ids


async def called(stack: Stack) -> set[str]:
    """The deliberations whose calls reached the stack's engine."""
    return {name.partition(".")[0] for name in (await stack.engine_calls())["calls"]}


async def test_a_killed_cluster_loses_nothing_and_no_deliberation_ends_twice(
    own_nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERS", ",".join(CLUSTERS))
    url, ended = own_nats_server.url, set[str]()

    def take(record: Record) -> None:
        ended.add(record.tokens[2])

    async with cluster(url, tmp_path / "eu", "eu") as european:
        async with cluster(url, tmp_path / "us", "us") as american:
            await american.journal.subscribe(["deliberations.*.*.end"], take)
            began_s = monotonic()
            # The cluster that is killed is the slower one, so that it has work left when half has ended.
            await european.script(duration_ms=2_000)
            await american.script(duration_ms=1_000)
            submitting = asyncio.create_task(submit(american))
            await until(lambda: len(ended) >= DELIBERATIONS / 2, WITHIN_S)
            in_eu = await called(european)
            await kill(european)
            ended_at_kill, killed_s = len(ended), monotonic()

            ids = await submitting
            of = {label: {id for id, each in ids.items() if each == label} for label in (*CLUSTERS, None)}
            await until(lambda: ended >= of["us"] | of[None], WITHIN_S)
            survived_s = monotonic() - killed_s
            left = of["eu"] - ended
            assert left and not in_eu & of["us"] and not await called(american) & of["eu"]
            ready = (await american.client.get("/readyz")).json()
            assert [each["code"] for each in ready["degraded"]] == ["cluster_missing"]
            assert 'cluster_coordinators{cluster="eu"} 0.0' in (await american.client.get("/metrics")).text

        # The operator names the label of the dead cluster for the other one.
        renamed_s = monotonic()
        async with cluster(url, tmp_path / "us", *CLUSTERS) as both:
            subscription = await both.journal.subscribe(["deliberations.*.*.end"], take)
            ended |= {
                subject.split(".")[2]
                for subject in await stored(both.journal, "DELIBERATIONS", "deliberations.*.*.end")
            }
            await until(lambda: len(ended) == DELIBERATIONS, WITHIN_S)
            taken_s = monotonic() - renamed_s
            await subscription.close()
            # A deliberation is announced after its end, and acknowledged then.
            for consumer in coordinator_queues(CLUSTERS):
                await until_empty(both.journal, "DELIBERATIONS", consumer)
            ends = await stored(both.journal, "DELIBERATIONS", "deliberations.*.*.end")
            announced = await stored(both.journal, "ORCHESTRATOR_EVENTS", "orchestration.>")
            assert (await both.client.get("/readyz")).json()["degraded"] == []
    print(
        f"{DELIBERATIONS} deliberations; {ended_at_kill} had ended at the kill, after {killed_s - began_s:.0f} s. The "
        f"other cluster ended its own {survived_s:.0f} s later. {len(left)} of the dead one's waited, and ended within "
        f"{taken_s:.0f} s of the other cluster's start with their label."
    )
    assert ended == set(ids)
    assert set(ends.values()) == {1} and len(ends) == DELIBERATIONS
    assert announced == {"orchestration.deliberation.completed": DELIBERATIONS}
