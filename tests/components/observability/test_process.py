import asyncio
from dataclasses import dataclass

import pytest

from app.deliberation.errors import JournalUnavailable
from app.observability import logs
from app.observability.process import run_process


@dataclass(frozen=True)
class Settings:
    log_level: str = "info"


@pytest.fixture(autouse=True)
def _silent(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction] -- used by pytest
    def leave(level: str) -> None: ...

    monkeypatch.setattr(logs, "configure", leave)


def test_every_refusal_of_the_log_is_printed_however_deep_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    async def refused(reason: str) -> None:
        raise JournalUnavailable(reason)

    async def within() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(refused("no consumer worker-DEV; declare it"))
            group.create_task(refused("no consumer worker-QA; declare it"))

    async def serve(_: Settings) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(within())

    with pytest.raises(SystemExit) as ended:
        run_process(Settings, serve)
    assert ended.value.code == 1
    assert capsys.readouterr().err == "no consumer worker-DEV; declare it\nno consumer worker-QA; declare it\n"
