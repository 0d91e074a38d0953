"""A plan as another service announces it."""

from typing import Any

PLAN: dict[str, Any] = {
    "story_id": "story-1",
    "plan_id": "plan-1",
    "approved_by": "po",
    "timestamp": "2026-01-01T00:00:00Z",
    "roles": ["DEV", "QA"],
}
