"""An upgrade and the way back, one part after the other, under load: docs/operations.md, "Upgrade".

pytest -s tests/upgrade
"""

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

from app.log.stream_settings import coordinator_queues
from tests.components.webhooks.receiving import receiving
from tests.conditions import until, until_empty
from tests.integration.planning.conftest import announce, plan_event
from tests.upgrade.load import Load, loaded
from tests.upgrade.two_versions import Installation, Name, installation

# In the documented order. The coordinators before stay beside the next ones until the gateways are replaced.
ONE_BY_ONE = "archive", "webhooks", "worker"
ALL = *ONE_BY_ONE, "coordinator", "gateway"
COUNCILS_AT_EACH_STEP = 4
WITHIN_S = 60


class Steps:
    def __init__(self, parts: Installation, load: Load) -> None:
        self._parts = parts
        self._load = load
        self._plans = 0
        self.mixed: list[list[str]] = []

    async def work(self) -> None:
        """Return once councils that were accepted from now on, and those before, have ended; with a plan among them."""
        self._plans += 1
        await announce(self._parts.journal, plan_event(self._plans, roles=["DEV"]))
        accepted = self._load.accepted
        count = len(accepted) + COUNCILS_AT_EACH_STEP
        await until(lambda: len(accepted) >= count, WITHIN_S)
        begun = set(accepted[:count])
        await until(lambda: begun <= self._load.ended.keys(), WITHIN_S)

    async def replace(self, part: str, by: Name) -> None:
        before: Name = "before" if by == "next" else "next"
        await self._parts.start(part, by)
        await self.work()
        self.mixed.append(await self._parts.version_findings())
        await self._parts.stop(part, before)
        await self.work()

    async def until_listed(self, ids: set[str]) -> None:
        """Return once each gateway lists these deliberations as completed, which only the archive can."""
        for port in self._parts.ports:
            until_s = monotonic() + WITHIN_S
            while lacking := ids - await self._listed(port):
                assert monotonic() < until_s, {
                    id: await self._parts.get(f"/deliberations/{id}", port) for id in lacking
                }
                await asyncio.sleep(0.2)

    async def _listed(self, port: int) -> set[str]:
        found, path = set[str](), "/deliberations?status=completed&limit=100"
        cursor: str | None = ""
        while cursor is not None:
            page = await self._parts.get(f"{path}&cursor={cursor}" if cursor else path, port)
            assert page is not None
            found |= {each["id"] for each in page["items"]}
            cursor = page["next_cursor"]
        return found


async def test_an_upgrade_and_the_way_back_lose_nothing(tmp_path: Path) -> None:
    began_s = monotonic()
    async with receiving() as receiver, installation(tmp_path) as parts:
        for part in ALL:
            await parts.start(part, "before")
        started_s = monotonic()
        async with loaded(parts, receiver.url()) as load:
            steps = Steps(parts, load)
            await steps.work()
            assert await parts.version_findings() == []
            for part in ONE_BY_ONE:
                await steps.replace(part, "next")
            await parts.start("coordinator", "next")
            await steps.replace("gateway", "next")
            await steps.work()
            await parts.stop("coordinator", "before")
            await steps.work()
            upgraded_s = monotonic()
            assert await parts.version_findings() == []

            for part in ALL:
                await parts.start(part, "before")
            await steps.work()
            back = await parts.version_findings()
            await steps.until_listed(set(load.ended))
            for part in ("gateway", *ONE_BY_ONE):
                await parts.stop(part, "next")
            await steps.work()
            await parts.stop("coordinator", "next")
            await steps.work()
            assert await parts.version_findings() == []
        ended = set(load.ended)
        for consumer in coordinator_queues(()):
            await until_empty(parts.journal, "DELIBERATIONS", consumer)
        await steps.until_listed(ended)
        ends = await stored_ends(parts)
        await until(lambda: len({each.id for each in receiver.received}) >= len(ended), WITHIN_S)
    versions = sorted({each for each in load.strategies.values()})
    print(
        f"{parts.versions['before'].version} and {parts.versions['next'].version}: {len(ends)} deliberations in "
        f"{monotonic() - started_s:.0f} s, {load.resumed} streams resumed at another gateway; the parts started in "
        f"{started_s - began_s:.0f} s, and the upgrade took {upgraded_s - started_s:.0f} s; strategies: {versions}"
    )
    assert load.unlike == [] and load.resumed > 0
    assert set(load.ended.values()) == {"completed"}
    assert set(load.accepted) == ended and ended <= ends.keys() and set(ends.values()) == {1}
    assert {name for name, _ in versions} == {"council", "vote"} and len(versions) == 3
    # A gateway finds the versions to differ whichever part is of another version.
    assert [sorted(found) for found in steps.mixed] == [
        ["before: versions_differ"],
        ["before: versions_differ"],
        ["before: versions_differ"],
        ["before: versions_differ", "next: versions_differ"],
    ]
    assert sorted(back) == ["before: versions_differ", "next: versions_differ"]


async def stored_ends(parts: Installation) -> dict[str, int]:
    asked = b'{"subjects_filter": "deliberations.*.*.end"}'
    found: dict[str, Any] = await parts.journal.request("$JS.API.STREAM.INFO.DELIBERATIONS", asked)
    return {subject.split(".")[2]: count for subject, count in found["state"]["subjects"].items()}
