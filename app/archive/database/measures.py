"""The measures of ended deliberations, and their sums by hour and by day.

A write first removes the deliberation's earlier measures, so a repetition changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from math import log2
from operator import itemgetter
from typing import Any

from sqlalchemy import and_, bindparam, delete
from sqlalchemy.ext.asyncio import AsyncConnection

from app.admission.backlog import Key
from app.archive.database.connection import insert
from app.archive.database.rows import microseconds, storable
from app.archive.database.tables import AMOUNTS, NAME_CHARS_MAX, ROLLUP_KEY, measures, rollups
from app.catalog.entries import BENCH
from app.deliberation.calls import Usage
from app.deliberation.contributions import winner
from app.deliberation.fold import State
from app.deliberation.specification import Specification

DAY_US = 86_400_000_000
WIDTHS_US = (DAY_US, 3_600_000_000)
"""The widths of the sums in time, the longest first; each is a multiple of the next."""
MILLION = 1_000_000
# Millions of deliberations with the largest number fit into a sum of 64 bits; an engine may report any number.
_AMOUNT_MAX = 1 << 40
_CLASSES_PER_DOUBLING = 8
_TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")

Measure = dict[str, Any]
Sums = dict[tuple[Any, ...], list[int]]


def duration_class(took_us: int) -> int:
    """The class of a duration: 0 below a millisecond, and eight classes for each doubling from there on."""
    return 0 if took_us < 1_000 else 1 + int(_CLASSES_PER_DOUBLING * log2(took_us / 1_000))


def measures_of(tenant: str, state: State) -> Iterator[Measure]:
    """Yields a row for the strategy, for its shape, and for each role and model that took part.

    In the row of a role or model `won`, tokens and cost are its own; other amounts are the deliberation's.
    """
    end, created_us = state.end, microseconds(state.accepted.ts)
    assert end is not None, "only what has ended is measured"
    verdict = end.verdict
    took_us = max(0, microseconds(end.ts) - created_us) if state.status == "completed" else 0
    agreement = None if verdict is None else verdict.agreement
    common: Measure = {
        "tenant": tenant,
        "id": state.deliberation_id,
        "created_us": created_us,
        "status": state.status,
        "duration": duration_class(took_us),
        "bench": int(BENCH in state.specification.metadata.items()),
        "number": 1,
        "took_us": min(took_us, _AMOUNT_MAX),
        "decided": int(verdict is not None and verdict.winner is not None),
        "agreeing": int(agreement is not None),
        "agreement_ppm": round(max(-1.0, min(1.0, agreement or 0.0)) * MILLION),
        "degraded": int(end.degraded is not None),
    }
    won = winner(state)
    winners = (
        set[tuple[str, str]]() if won is None else {("role", _name(won.spec.role)), ("model", _name(won.model or ""))}
    )
    for (kind, name), spent in _spent(state).items():
        yield {**common, "kind": kind, "name": name, "won": int((kind, name) in winners), **_usage(spent)}


def shape(specification: Specification) -> str:
    """The name of all deliberations with this strategy, so many members and rounds."""
    return f"{specification.strategy} {specification.size} {specification.rounds}"


def _name(text: str) -> str:
    return storable(text)[:NAME_CHARS_MAX]


def _spent(state: State) -> dict[tuple[str, str], list[Usage]]:
    strategy = ("strategy", _name(state.specification.strategy))
    whole = [strategy, ("shape", _name(shape(state.specification)))]
    spent = {key: list[Usage]() for key in whole} | {
        ("role", _name(agent.role)): [] for agent in state.specification.agents
    }
    for finished in state.finished.values():
        counted = [*whole, ("role", _name(finished.role))]
        if finished.model is not None:
            counted.append(("model", _name(finished.model)))
        for key in counted:
            spent.setdefault(key, []).append(finished.usage)
    return spent


def _usage(spent: Sequence[Usage]) -> Measure:
    total = Usage.total(spent)
    cost, calls = total.cost, max(0, total.calls)
    return {
        **{name: min(max(0, getattr(total, name)), _AMOUNT_MAX) for name in (*_TOKENS, "calls")},
        "currency": "" if cost is None else cost.currency,
        "cost_millionths": 0 if cost is None else min(cost.millionths, _AMOUNT_MAX),
        "unpriced_calls": min(calls if cost is None else cost.unpriced_calls, _AMOUNT_MAX),
    }


@cache
def _addition(dialect: str) -> Any:  # noqa: ANN401 -- see `insert`
    statement = insert(dialect, rollups)
    sums = {name: rollups.c[name] + statement.excluded[name] for name in AMOUNTS}
    return statement.on_conflict_do_update(index_elements=ROLLUP_KEY, set_=sums)


async def replace(connection: AsyncConnection, dialect: str, keys: Sequence[Key], rows: Sequence[Measure]) -> None:
    """Replace all measures of these deliberations by `rows`, in the transaction that writes the deliberations."""
    changes: Sums = {}
    for tenant, of_tenant in groupby(sorted(keys), key=itemgetter(0)):
        same = measures.c.tenant == tenant, measures.c.id.in_([id for _, id in of_tenant])
        removed = await connection.execute(delete(measures).where(*same).returning(measures))
        _add(changes, removed.mappings(), -1)
    if rows:
        await connection.execute(insert(dialect, measures), rows)
        _add(changes, rows, 1)
    # In one order, so that writers of the same sums do not wait for each other in a circle.
    names = (*ROLLUP_KEY, *AMOUNTS)
    changed = [
        dict(zip(names, (*key, *amounts), strict=True)) for key, amounts in sorted(changes.items()) if any(amounts)
    ]
    if changed:
        await connection.execute(_addition(dialect), changed)
    emptied = [{f"of_{name}": row[name] for name in ROLLUP_KEY} for row in changed if row["number"] < 0]
    if emptied:
        condition = and_(*(rollups.c[name] == bindparam(f"of_{name}") for name in ROLLUP_KEY))
        await connection.execute(delete(rollups).where(condition, rollups.c.number == 0), emptied)


def _add(changes: Sums, rows: Iterable[Mapping[Any, Any]], sign: int) -> None:
    for row in rows:
        for width_us in WIDTHS_US:
            begin_us = row["created_us"] - row["created_us"] % width_us
            named = {**row, "width_us": width_us, "begin_us": begin_us}
            key = tuple(named[name] for name in ROLLUP_KEY)
            amounts = changes.setdefault(key, [0] * len(AMOUNTS))
            for place, name in enumerate(AMOUNTS):
                amounts[place] += sign * row[name]
