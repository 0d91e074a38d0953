"""The full-text index: writes the words of deliberations, and selects deliberations by words."""

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

from sqlalchemy import ColumnElement, Delete, Select, delete, literal, select, text
from sqlalchemy.dialects.postgresql import TSQUERY

from app.archive.database.pages import bounds_of_place, bounds_of_time, shown
from app.archive.database.rows import maybe_microseconds
from app.archive.database.search_query import Search
from app.archive.database.tables import deliberations, texts
from app.archive.database.words import filter_word, status_value
from app.catalog.entries import BENCH, ListFilter

# The marks after the words of a PostgreSQL vector. It counts places up to the last of these.
_PLACES = [f"':{place} '" for place in range(1, 16_384)]
PUT = {
    "sqlite": text("INSERT OR REPLACE INTO texts (rowid, words) VALUES (:rowid, :words)"),
    "postgresql": text(
        "INSERT INTO texts (rowid, words) VALUES (:rowid, CAST(:words AS tsvector)) "
        "ON CONFLICT (rowid) DO UPDATE SET words = excluded.words"
    ),
}

MERGE = text("INSERT INTO texts (texts, rank) VALUES ('merge', :pages)")
"""Writes about so many pages of a merge of SQLite's segments, because one keeps the words of removed rows until then.

A negative number begins a merge of all of them. It is complete when this changes less than two rows.
"""


def written(dialect: str, words: str) -> str:
    if dialect == "sqlite":
        return words
    placed = chain.from_iterable(zip(words.split(), chain(_PLACES, repeat(_PLACES[-1])), strict=False))
    return f"'{''.join(placed)}".removesuffix("'")


def removal(places: Sequence[int]) -> Delete:
    return delete(texts).where(texts.c.rowid.in_(places))


def selection(dialect: str, tenant: str, search: Search, asked: ListFilter, *, limit: int, before: int) -> Select[Any]:
    """Selects at most `limit` rows with the words. Words of filters may collide: the caller filters again."""
    place, row = texts.c.rowid, deliberations.c
    statement = select(place).where(_matches(dialect, _filtered(tenant, search, asked)), *_times(tenant, asked))
    statement = statement.where(place < before)
    # Limited before the join: no plan begins with the deliberations.
    hits = statement.order_by(place.desc()).limit(limit).subquery()
    statement = shown().join_from(hits, deliberations, (row.accepted == hits.c.rowid) & (row.tenant == tenant))
    return statement.order_by(hits.c.rowid.desc())


def _filtered(tenant: str, search: Search, asked: ListFilter) -> Search:
    wanted = {"tenant": tenant, "role": asked.role, "strategy": asked.strategy}
    wanted |= {f"metadata.{name}": value for name, value in asked.metadata.items()}
    words = [[filter_word(tenant, name, value)] for name, value in wanted.items() if value is not None]
    if asked.statuses:
        values = sorted({status_value(status) for status in asked.statuses})
        words.append([filter_word(tenant, "status", value) for value in values])
    excluded = [] if asked.bench else [filter_word(tenant, f"metadata.{BENCH[0]}", BENCH[1])]
    return search.with_words(words, excluded)


def _times(tenant: str, asked: ListFilter) -> list[ColumnElement[bool]]:
    own = deliberations.alias("own").c
    created_us = select(own.created_us).where(own.tenant == tenant, own.accepted == texts.c.rowid).limit(1)
    since, until = maybe_microseconds(asked.created_after), maybe_microseconds(asked.created_before)
    return [*bounds_of_time(since, until, created_us.scalar_subquery()), *bounds_of_place(since, until, texts.c.rowid)]


def _matches(dialect: str, search: Search) -> ColumnElement[bool]:
    words: Any = texts.c.words
    if dialect == "sqlite":
        return words.op("MATCH", is_comparison=True)(search.fts5())
    # A literal, so that the planner sees how rare the words are. It has letters, digits and marks of our own only.
    return words.op("@@", is_comparison=True)(literal(search.tsquery(), literal_execute=True).cast(TSQUERY))
