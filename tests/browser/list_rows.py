"""Rows of a list of deliberations, as the gateway answers them."""

from typing import Any


def summary(number: int) -> dict[str, Any]:
    at = f"2025-{1 + number % 12:02d}-{1 + number % 28:02d}T08:00:00Z"
    return {
        "id": f"row-{number}",
        "task": f"Task {number}: which of these queues is the best for us, and why?",
        "agents": [{"role": "DEV", "count": 2}, {"role": "QA", "count": 1}],
        "strategy": "council",
        "status": "completed",
        "created_at": at,
        "started_at": at,
        "ended_at": at,
        "progress": None,
        "usage": {"prompt_tokens": 1_000, "cached_tokens": 0, "completion_tokens": number, "cost": None},
        "winner": "dev-001",
        "degraded": False,
        "links": {},
    }
