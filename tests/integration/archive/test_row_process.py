"""The process that makes rows makes the same ones as a thread, may be killed, and ends with its parent."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from app.archive.database.store import Archived, Store
from app.archive.row_process import Projected, RowProcess, project
from app.log.journal import JetStreamJournal
from tests.integration.archive.test_projector import projecting, read, stories, tell, until_copied
from tests.integration.archive.test_store import records_of, told
from tests.integration.cli.children import alive
from tests.story import Story

FOUND = [(("acme", story.id), records_of(story, told(story, "ein Wort"))) for story in stories(3)]
PARENT = """\
import asyncio
from multiprocessing import active_children
from app.archive.row_process import RowProcess

async def main():
    rows = RowProcess()
    await rows.project([], 1, "sqlite")
    await asyncio.wrap_future(rows.started)
    print(active_children()[0].pid, flush=True)
    await asyncio.Event().wait()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture
async def making() -> AsyncGenerator[RowProcess]:
    rows = RowProcess()
    yield rows
    rows.close()
    for process_id in children():
        await until_gone(process_id)


def children() -> list[int]:
    return [each.pid for each in active_children() if each.pid is not None]


async def until_gone(process_id: int) -> None:
    async with asyncio.timeout(20):
        while await asyncio.to_thread(alive, process_id):
            await asyncio.sleep(0.02)


async def start(rows: RowProcess) -> None:
    await rows.project([], 1, "sqlite")
    await asyncio.wrap_future(rows.started)


async def test_the_process_makes_the_rows_that_a_thread_makes(
    making: RowProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = project(FOUND, 1, "sqlite")
    assert await making.project(FOUND, 1, "sqlite") == expected, "made by a thread, before the process has started"
    await start(making)
    # From here on a thread would make nothing.
    monkeypatch.setattr(asyncio, "to_thread", None)

    assert await making.project(FOUND, 1, "sqlite") == expected
    assert len(expected) == 3 and all(each.rows is not None for each in expected)
    assert len(children()) == 1


async def test_the_rows_of_a_killed_process_are_made_here_and_a_new_one_makes_the_next(making: RowProcess) -> None:
    expected = project(FOUND, 1, "sqlite")
    await start(making)
    (killed,) = children()
    os.kill(killed, signal.SIGKILL)

    assert await making.project(FOUND, 1, "sqlite") == expected
    await until_gone(killed)
    await start(making)
    assert await making.project(FOUND, 1, "sqlite") == expected
    assert len(children()) == 1 and killed not in children()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_process_ends_with_its_parent(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=asyncio.subprocess.PIPE, env={"PYTHONPATH": os.getcwd(), "PATH": ""}
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    parent.send_signal(number)
    await parent.wait()

    await until_gone(child)


async def test_a_projector_that_is_behind_copies_by_way_of_the_process(
    journal: JetStreamJournal, store: Store, making: RowProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.archive.projector.BATCH_MAX", 8)
    monkeypatch.setattr("app.archive.projector.HELD_MAX", 64)
    monkeypatch.setattr("app.archive.projector.RowProcess", lambda: making)
    await start(making)
    made, project_there = list[Projected](), making.project

    async def project_and_note(*given: Any) -> list[Projected]:
        found = await project_there(*given)
        made.extend(found)
        return found

    monkeypatch.setattr(making, "project", project_and_note)
    ended, lost = stories(60), Story("lost")
    for story in (*ended, lost):
        await tell(journal, story)
    await journal.request("$JS.API.STREAM.PURGE.DELIBERATIONS", b'{"filter":"deliberations.acme.lost.accepted"}')
    async with projecting(journal, store) as projector:
        await until_copied(journal)
    assert len(made) > 20

    epoch = (await journal.state()).epoch
    for story in ended:
        assert await read(store, story.id) == Archived(epoch, await journal.facts("acme", story.id))
    assert (projector.counts["written"], projector.counts["skipped"]) == (60, 1) and await read(store, lost.id) is None
