"""Deliberations with answers to search, and a query that never ends."""

import json
from typing import Any

import sqlalchemy

from app.archive.database.search_query import parse
from app.archive.database.store import Store
from app.catalog.entries import ListFilter
from tests.integration.archive.archived_stories import EPOCH, records_of, told, written
from tests.story import Story

APART = 100


def answer(text: str) -> str:
    return json.dumps({"reasoning": "r", "answer": text, "confidence": 50})


async def write(store: Store, *answers: str) -> None:
    batch = [
        written(records_of(Story(f"{place:026d}"), told(Story(f"{place:026d}"), answer(text)), 1 + APART * place))
        for place, text in enumerate(answers)
    ]
    await store.write(EPOCH, batch)


async def places_of(store: Store, q: str, tenant: str = "acme", **asked: Any) -> list[int]:
    entries, _ = await store.page(tenant, ListFilter(**asked), parse(q), limit=50)
    return [int(entry.id) for _, entry in entries]


# A statement that takes seconds, on both databases.
ENDLESS = sqlalchemy.text(
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000000) SELECT count(*) FROM n"
)
