"""A full store on a real nats-server: writes are refused, `prove_writes` detects it, and reads still work."""

import os
import subprocess
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import httpx
import pytest

from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import CancelRequested, Completed
from app.log.journal import JetStreamJournal
from app.log.stream_settings import STREAM, StreamSettings
from app.log.streams import apply, prove_writes
from app.main import lifespan_of
from app.routes.dependencies import SystemClock
from app.settings import Settings
from tests.components.routes.served import APP, answering
from tests.conditions import until
from tests.conftest import NATS_SERVER, free_port
from tests.story import NOW

BOUND_BYTES = 300_000


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    config = tmp_path / "nats.conf"
    store = tmp_path / "store"
    config.write_text(
        f'listen: 127.0.0.1:{port}\njetstream {{ store_dir: "{store}", max_file_store: {BOUND_BYTES} }}\n'
    )
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([NATS_SERVER, "-c", config], stdout=log, stderr=log)
    yield f"nats://127.0.0.1:{port}"
    process.terminate()
    process.wait(timeout=10)


@pytest.fixture
async def journal(url: str) -> AsyncGenerator[JetStreamJournal]:
    journal = await JetStreamJournal.connect(url, name=f"tests-{os.getpid()}", timeout_s=0.2)
    await apply(journal, StreamSettings())
    yield journal
    await journal.close()


async def fill(journal: JetStreamJournal) -> int:
    for count in range(1_000):
        fact = CancelRequested(deliberation_id=f"d{count}", ts=NOW, reason="why " * 5_000)
        try:
            await journal.append("default", fact)
        except JournalUnavailable as error:
            assert "insufficient" in str(error) or "maximum" in str(error), error
            return count
    raise AssertionError("the store has no bound")


async def test_a_full_store_refuses_writes_until_there_is_room(journal: JetStreamJournal) -> None:
    await prove_writes(journal)
    stored = await fill(journal)
    assert stored > 5
    with pytest.raises(JournalUnavailable, match="refuses writes"):
        await prove_writes(journal)
    assert len(await journal.last(["deliberations.default.*.cancel"])) == stored, "every acknowledged fact is stored"
    with pytest.raises(JournalUnavailable):
        await journal.append("default", Completed(deliberation_id="d0", ts=NOW))

    await journal.request(f"$JS.API.STREAM.PURGE.{STREAM}")
    await prove_writes(journal)
    assert (await journal.append("default", Completed(deliberation_id="d0", ts=NOW))).created


async def test_no_probe_is_written_after_a_successful_write(journal: JetStreamJournal) -> None:
    await journal.append("default", Completed(deliberation_id="d0", ts=NOW))
    before = await journal.state()
    await prove_writes(journal)
    assert (await journal.state()).last_sequence == before.last_sequence


async def test_a_probe_write_matches_no_deliberation(journal: JetStreamJournal) -> None:
    journal.writes.last_failed = True
    await prove_writes(journal)
    assert journal.writes.last_failed is False
    assert await journal.last(["deliberations.*.*.>"]) == []


async def test_a_gateway_over_a_full_store_answers_503_until_there_is_room(url: str, journal: JetStreamJournal) -> None:
    async def missing(client: httpx.AsyncClient) -> dict[str, str]:
        return {error["pointer"]: error["detail"] for error in (await client.get("/readyz")).json()["errors"]}

    body = {"task": "Name a colour. " * 2_000, "strategy": "single"}
    async with lifespan_of(Settings(nats_url=url), None, SystemClock())(APP) as gateway, answering(gateway) as client:
        await until(lambda: gateway["catalog"].caught_up)
        accepted: list[str] = []
        while (response := await client.post("/deliberations", json=body)).status_code == 202:
            accepted.append(response.json()["id"])
        assert (response.status_code, response.json()["code"]) == (503, "journal_unavailable")
        assert "the log refused the write" in response.json()["detail"]
        assert "refuses writes" in (await missing(client))["journal"]
        assert {(await client.get(f"/deliberations/{id}")).status_code for id in accepted} == {200}, "reads still work"

        await journal.request(f"$JS.API.STREAM.PURGE.{STREAM}")
        assert set(await missing(client)) == {"coordinator", "roles"}
        assert (await client.post("/deliberations", json=body)).status_code == 202
