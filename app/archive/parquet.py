"""The archive as a Parquet file, one row for each ended deliberation; it needs the extra `parquet`."""

import json
from collections import Counter
from decimal import Decimal
from importlib import import_module
from typing import Any, BinaryIO

from app.api.resource import resource
from app.archive.database.store import RowFilter, Store
from app.deliberation.calls import Usage
from app.deliberation.errors import InvalidRequest
from app.deliberation.fold import State, state_of

ROWS_AT_ONCE = 256
"""The rows of a group, which are in memory together."""
_INTEGER_MAX = (1 << 63) - 1
_MILLIONTH = Decimal("0.000001")
_COUNTS = ("calls", "prompt_tokens", "cached_tokens", "completion_tokens")


def _schema(arrow: Any) -> Any:  # noqa: ANN401 -- pyarrow has no types
    text, integer, time = arrow.string(), arrow.int64(), arrow.timestamp("us", tz="UTC")
    proposal = {"agent_id": text, "role": text, "model": text, "status": text, "content": text}
    proposal |= {"score": arrow.float64(), "rank": integer, "critiques": integer, "completion_tokens": integer}
    agent = {"agent_id": text, "role": text, "model": text}
    stage = {"stage": integer, "purpose": text, **dict.fromkeys(_COUNTS, integer)}
    columns: dict[str, Any] = {
        **dict.fromkeys(("tenant", "id", "status", "strategy", "task"), text),
        **dict.fromkeys(("created_at", "started_at", "ended_at"), time),
        "metadata": arrow.map_(text, text),
        **dict.fromkeys(("seed", "rounds"), integer),
        "parameters": text,
        "agents": arrow.list_(arrow.struct(list(agent.items()))),
        "proposals": arrow.list_(arrow.struct(list(proposal.items()))),
        **dict.fromkeys(("winner", "winner_role", "winner_model", "verdict"), text),
        **dict.fromkeys(("margin", "agreement", "effective_votes"), arrow.float64()),
        "dissent": arrow.map_(text, text),
        "degraded": arrow.bool_(),
        **dict.fromkeys(("problem", "cancelled_by"), text),
        **dict.fromkeys(_COUNTS, integer),
        "stages": arrow.list_(arrow.struct(list(stage.items()))),
        "cost": arrow.decimal128(20, 6),
        "currency": text,
    }
    return arrow.schema(list(columns.items()))


def _integer(count: int) -> int:
    return max(-_INTEGER_MAX, min(count, _INTEGER_MAX))


def _counts(usage: Usage) -> dict[str, int]:
    return {name: _integer(getattr(usage, name)) for name in _COUNTS}


def row_of(tenant: str, state: State) -> dict[str, Any]:
    deliberation = resource(state, epoch="", retention_s=0)
    verdict, usage = deliberation.verdict, deliberation.usage
    won = next(
        (
            proposal
            for proposal in deliberation.proposals
            if verdict is not None and proposal.agent_id == verdict.winner
        ),
        None,
    )
    proposals = [
        {
            **proposal.model_dump(include={"agent_id", "role", "model", "status", "content", "score", "rank"}),
            "critiques": len(proposal.critiques),
            "completion_tokens": _integer(proposal.usage.completion_tokens),
        }
        for proposal in deliberation.proposals
    ]
    return {
        "tenant": tenant,
        **{name: getattr(deliberation, name) for name in ("id", "status", "strategy", "task")},
        **{name: getattr(deliberation, name) for name in ("created_at", "started_at", "ended_at")},
        "metadata": list(deliberation.metadata.items()),
        "seed": deliberation.seed,
        "rounds": deliberation.rounds,
        "parameters": json.dumps(deliberation.parameters),
        "agents": [agent.model_dump(include={"agent_id", "role", "model"}) for agent in deliberation.agents],
        "proposals": proposals,
        "winner": verdict and verdict.winner,
        "winner_role": won and won.role,
        "winner_model": won and won.model,
        "verdict": verdict and verdict.content,
        "margin": verdict and verdict.margin,
        "agreement": verdict and verdict.agreement,
        "effective_votes": verdict and verdict.effective_votes,
        "dissent": verdict and [(dissent.agent_id, dissent.preferred) for dissent in verdict.dissent],
        "degraded": deliberation.degraded is not None,
        "problem": deliberation.problem and deliberation.problem.code,
        "cancelled_by": deliberation.cancellation and deliberation.cancellation.by,
        **_counts(usage),
        "stages": [{"stage": stage.stage, "purpose": stage.purpose, **_counts(stage)} for stage in usage.by_stage],
        "cost": usage.cost and Decimal(usage.cost.amount).quantize(_MILLIONTH),
        "currency": usage.cost and usage.cost.currency,
    }


def check_pyarrow() -> None:
    try:
        import_module("pyarrow.parquet")
    except ImportError as exc:
        raise InvalidRequest("Parquet files need the package pyarrow, which is missing.") from exc


async def export_parquet(store: Store, chosen: RowFilter, counts: Counter[str], destination: BinaryIO) -> None:
    """Write all that ended, after `check_pyarrow`; `counts` counts rows, also the `tombstones` and `unfinished`."""
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    schema, rows = _schema(arrow), list[dict[str, Any]]()
    with parquet.ParquetWriter(destination, schema, compression="zstd") as writer:
        async for row in store.rows(chosen):
            state = None if row.archived is None else state_of(row.archived.records)
            counts["tombstones" if row.deleted else "unfinished" if state is None else "deliberations"] += 1
            if state is not None:
                rows.append(row_of(row.tenant, state))
            if len(rows) == ROWS_AT_ONCE:
                writer.write_batch(arrow.RecordBatch.from_pylist(rows, schema=schema))
                rows.clear()
        writer.write_batch(arrow.RecordBatch.from_pylist(rows, schema=schema))
