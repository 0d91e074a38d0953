"""What is exported from one database is the same after an import into another, of the same kind or not."""

import json
import random
import re
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from pyarrow import parquet

from app.api.resource import resource
from app.archive.database.store import ArchivedRow, RowFilter, Store
from app.archive.parquet import export_parquet
from app.archive.transfer import export_archive, import_archive
from app.deliberation.errors import Gone, InvalidRequest
from tests.components.docs.tables import ROOT
from tests.integration.archive.archived_stories import EPOCH, records_of, told, written
from tests.integration.archive.conftest import migrated
from tests.story import NOW, Story
from tests.unit.facts_of import ID
from tests.unit.strategies.stories import story

HOSTILE = '{"answer":"\\u0000 \U0001f600 \u2028 \' -- %s \\n 1e-7 \\ud83d\\ude00"}'

ANSWER = '{"reasoning":"r","answer":"Violet.","confidence":50}'


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[Store]:
    async with migrated(f"sqlite:///{tmp_path / 'other.db'}") as database:
        yield Store(database)


async def exported(store: Store, chosen: RowFilter | None = None, counts: Counter[str] | None = None) -> list[bytes]:
    counts = Counter[str]() if counts is None else counts
    return [line async for line in export_archive(store, chosen or RowFilter(), counts)]


async def imported(store: Store, lines: Sequence[bytes]) -> Counter[str]:
    async def one_by_one() -> AsyncGenerator[bytes]:
        for line in lines:
            yield line

    return (await import_archive(store, one_by_one(), NOW)).counts


async def rows_of(store: Store) -> list[ArchivedRow]:
    return [row async for row in store.rows(RowFilter())]


async def fill(store: Store) -> None:
    for number, epoch in enumerate((EPOCH, "ffffffff")):
        stories = [Story(f"{number}{place:025d}") for place in range(30)]
        await store.write(epoch, [written(records_of(each, told(each, HOSTILE), 7)) for each in stories])
    await store.write(EPOCH, [written(records_of(Story("running"), told(Story("running"))[:2]))])
    await store.delete("acme", "deleted", NOW + timedelta(hours=1))


async def test_an_import_holds_what_was_exported(store: Store, other: Store) -> None:
    await fill(store)
    counts = Counter[str]()
    lines = await exported(store, counts=counts)
    read = await imported(other, lines)
    back = await exported(other)

    assert lines == back and len(lines) == 63
    assert counts == {"deliberations": 60, "tombstones": 1, "unfinished": 1}
    assert read == {"deliberations": 60, "tombstones": 1}
    assert [row for row in await rows_of(store) if row.deliberation_id != "running"] == await rows_of(other)
    with pytest.raises(Gone):
        await other.read("acme", "deleted")


async def test_a_repeated_import_changes_nothing_and_brings_nothing_back(store: Store, other: Store) -> None:
    await fill(store)
    lines = await exported(store)
    await imported(other, lines)
    await other.delete("acme", f"0{3:025d}", NOW)

    await imported(other, lines)

    counts = Counter[str]()
    await exported(other, counts=counts)
    assert counts == {"deliberations": 59, "tombstones": 2}


async def test_filters_choose_by_tenant_and_time(store: Store, other: Store) -> None:
    await fill(store)
    counts = [Counter[str]() for _ in range(4)]
    await exported(store, RowFilter(tenant="umbrella"), counts[0])
    await exported(store, RowFilter(since=NOW + timedelta(seconds=1)), counts[1])
    await exported(store, RowFilter(until=NOW), counts[2])
    await imported(other, await exported(store, RowFilter("acme", NOW, NOW + timedelta(seconds=1)), counts[3]))

    assert [sum(each.values()) for each in counts] == [0, 1, 0, 61]
    assert len(await rows_of(other)) == 60


async def test_an_archive_of_other_logs_takes_no_import(store: Store, other: Store) -> None:
    await fill(store)
    await other.write("12345678", [written(records_of(Story("own"), told(Story("own"))))])

    with pytest.raises(InvalidRequest, match=r"other logs\. Import into a new, empty database"):
        await imported(other, await exported(store))

    assert [row.deliberation_id for row in await rows_of(other)] == ["own"]


# Names of a log that would end a line of an event stream, or a text of JSON.
NAMES = (rb"a\nevent: forged", rb"a\"", b"a-1", b"A", b"a" * 17, b"")
Spoil = Callable[[list[bytes]], list[bytes]]
SPOILED: list[tuple[Spoil, str]] = [
    (lambda lines: lines[:-1], "not complete"),
    (lambda lines: [], "not complete"),
    (lambda lines: [*lines[:2], lines[2][:40]], "Line 3 is not JSON"),
    (lambda lines: lines[1:], "Line 1 is out of place"),
    (lambda lines: [lines[0], *lines], "Line 2 is out of place"),
    (lambda lines: [*lines, lines[1]], "is out of place"),
    (lambda lines: [lines[0], lines[1], lines[1]], "Line 3 repeats"),
    (lambda lines: [lines[0], b'{"hello":1}'], "Line 2 is no line of an export"),
    (lambda lines: [lines[0], b"[]"], "Line 2 is no line of an export"),
    (lambda lines: [lines[0].replace(b'n":1', b'n":2'), *lines[1:]], "version"),
    (lambda lines: [lines[0], lines[1].replace(EPOCH.encode(), b"no")], "names a log"),
    (lambda lines: [lines[0], lines[1].replace(b"acme", b"a.*")], "tenant"),
    (lambda lines: [lines[0], lines[1].replace(b"[8,", b"[7,")], "out of place"),
    (lambda lines: [lines[0], lines[1].replace(b"call.finished", b"call.delta")], "no fact"),
    (lambda lines: [lines[0], lines[1].replace(b"deliberation.completed", b"?")], "no fact"),
    *((lambda lines, name=name: [lines[0].replace(EPOCH.encode(), name), *lines[1:]], "logs.0") for name in NAMES),
    (lambda lines: [lines[0], lines[1].replace(b'"ts":"2026', b'"ts":"9999')], "Line 2 has a time in ts .* 9999-01-01"),
    (lambda lines: [lines[0], lines[1].replace(b'"ts":"2026', b'"ts":"1926')], "Line 2 has a time in ts"),
    (lambda lines: [lines[0], lines[1].replace(b'_at":"2026', b'_at":"9999')], "Line 2 has a time in deadline_at"),
    (lambda lines: [lines[0], lines[-2].replace(b'_at":"2026', b'_at":"9999')], "Line 2 has a time in deleted_at"),
]


@pytest.mark.parametrize(("spoil", "complaint"), SPOILED)
async def test_what_is_no_export_is_refused_by_its_line(
    spoil: Spoil, complaint: str, other: Store, tmp_path: Path
) -> None:
    async with migrated(f"sqlite:///{tmp_path / 'source.db'}") as database:
        await fill(Store(database))
        lines = await exported(Store(database))

    with pytest.raises(InvalidRequest, match=complaint):
        await imported(other, spoil(lines))


async def test_memory_is_bounded_whatever_the_archive_holds(store: Store, other: Store) -> None:
    """120 deliberations of a megabyte each pass through, and few of them are in memory at once."""
    draw = random.Random(1)
    for place in range(0, 120, 10):
        stories = [Story(f"{number:026d}") for number in range(place, place + 10)]
        text = draw.randbytes(500_000).hex()
        await store.write(EPOCH, [written(records_of(each, told(each, f'{{"answer":"{text}"}}'))) for each in stories])

    tracemalloc.start()
    size = 0
    async for line in export_archive(store, RowFilter(), Counter()):
        size += len(line)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert size > 240_000_000 and peak < size / 2


async def test_a_parquet_file_has_a_row_for_each_ended_deliberation(store: Store, tmp_path: Path) -> None:
    await fill(store)
    answered = Story("answered")
    await store.write(EPOCH, [written(records_of(answered, told(answered, ANSWER), 7))])
    counts = Counter[str]()
    with (tmp_path / "all.parquet").open("wb") as file:
        await export_parquet(store, RowFilter(), counts, file)
    rows = parquet.read_table(tmp_path / "all.parquet").to_pylist()
    (row,) = [each for each in rows if each["id"] == "answered"]

    assert counts == {"deliberations": 61, "tombstones": 1, "unfinished": 1} and len(rows) == 61
    assert row["tenant"] == "acme" and row["status"] == "completed" and row["created_at"] == NOW
    assert [each["content"] for each in row["proposals"]] == ["Violet.", "Violet."]


async def test_a_parquet_row_has_what_was_specified_the_vote_and_the_tokens_of_each_stage(
    store: Store, tmp_path: Path
) -> None:
    one = written(records_of(Story(ID), story("council, all revise: completed")))
    assert one.state is not None
    found = resource(one.state, epoch="", retention_s=0)
    verdict, stages = found.verdict, found.usage.by_stage
    assert verdict is not None and verdict.effective_votes is not None and len(stages) > 1
    await store.write(EPOCH, [one])
    with (tmp_path / "council.parquet").open("wb") as file:
        await export_parquet(store, RowFilter(), Counter(), file)
    (row,) = parquet.read_table(tmp_path / "council.parquet").to_pylist()

    assert (row["seed"], row["rounds"], json.loads(row["parameters"])) == (found.seed, found.rounds, found.parameters)
    assert [(each["agent_id"], each["role"], each["model"]) for each in row["agents"]] == [
        (each.agent_id, each.role, each.model) for each in found.agents
    ]
    assert row["effective_votes"] == verdict.effective_votes
    assert row["dissent"] == [(each.agent_id, each.preferred) for each in verdict.dissent]
    assert [tuple(each.values()) for each in row["stages"]] == [
        (each.stage, each.purpose, each.calls, each.prompt_tokens, each.cached_tokens, each.completion_tokens)
        for each in stages
    ]


async def test_a_parquet_file_of_an_empty_archive_has_the_documented_columns(other: Store, tmp_path: Path) -> None:
    with (tmp_path / "none.parquet").open("wb") as file:
        await export_parquet(other, RowFilter(), Counter(), file)
    table = parquet.read_table(tmp_path / "none.parquet")

    (_, rows) = (ROOT / "docs/archive.md").read_text().split("| columns | content |\n|---|---|\n")
    cells = [row.split("|")[1] for row in rows.partition("\n\n")[0].splitlines()]
    assert (table.num_rows, sorted(table.column_names)) == (0, sorted(re.findall(r"`(\w+)`", "".join(cells))))
