"""Announcements of ends as the stream stores them, and as a test expects them."""

import base64
import json
from datetime import datetime, timedelta
from typing import Any

from app.deliberation.calls import Usage
from app.log.journal import JetStreamJournal

AGENT: dict[str, Any] = {"agent_id": "dev-001", "role": "DEV", "model": None}


async def raw(
    journal: JetStreamJournal, stream: str, subject: str, sequence: int | None = None
) -> tuple[dict[str, Any], bytes]:
    """Returns the payload and the headers of a message, by default of the last on the subject."""
    query = json.dumps({"last_by_subj": subject} if sequence is None else {"seq": sequence}).encode()
    reply = await journal.request(f"$JS.API.STREAM.MSG.GET.{stream}", query)
    stored = reply["message"]
    return json.loads(base64.b64decode(stored["data"])), base64.b64decode(stored.get("hdrs", ""))


async def told_of(journal: JetStreamJournal, status: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the last announcement of a status without its duration, which is that of the facts, and the end."""
    told, _ = await raw(journal, "ORCHESTRATOR_EVENTS", f"orchestration.deliberation.{status}")
    records = await journal.facts("acme", told["deliberation_id"])
    facts = {record.tokens[-1]: json.loads(record.data) for record in records}
    spent = datetime.fromisoformat(facts["end"]["ts"]) - datetime.fromisoformat(facts["accepted"]["ts"])
    assert abs(timedelta(milliseconds=told.pop("duration_ms")) - spent) < timedelta(milliseconds=1)
    return told, facts["end"]


def announced(end: dict[str, Any], id: str, status: str, **more: Any) -> dict[str, Any]:
    skipped = {**AGENT, "status": "skipped", "content": None, "usage": Usage().model_dump(), "duration_ms": 0}
    return {
        "type": f"deliberation.{status}",
        "deliberation_id": id,
        "task_id": id,
        "ts": end["ts"],
        "tenant": "acme",
        "status": status,
        "task": "Name a colour.",
        "strategy": "single",
        "metadata": {},
        "roles": ["DEV"],
        "results": [{**skipped, "problem": None}],
        "counts": {"total": 1, "succeeded": 0, "failed": 1},
        "verdict": None,
        "problem": end["problem"],
        "usage": end["usage"],
        "degraded": None,
        "participation": end["participation"],
        "cancelled_by": end.get("by"),
        "cancel_reason": end.get("reason"),
        "url": f"/deliberations/{id}",
        **more,
    }
