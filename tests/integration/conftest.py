"""What tests of the supervisor share: what it told, where it keeps its files, and children that run under it."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.cli.stack.processes import marked
from app.cli.stack.supervisor import Child, StackRun, supervised
from tests.integration.cli.children import Run, Stand, Told


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def stack_run(tmp_path: Path) -> StackRun:
    logs_dir = tmp_path / "logs"
    logs_dir.mkdir()
    return StackRun(
        mark=os.urandom(8).hex(), logs_dir=logs_dir, state_file=tmp_path / "stack.json", facts={"url": "here"}
    )


@pytest.fixture
async def run(stack_run: StackRun, told: Told) -> AsyncGenerator[Run]:
    @asynccontextmanager
    async def running(*children: Child) -> AsyncGenerator[Stand]:
        async with supervised(children, stack_run, told) as supervisor:
            yield Stand(supervisor, told, stack_run)

    yield running
    assert marked(stack_run.mark) == [], "a supervisor leaves nothing behind, whatever happened"
