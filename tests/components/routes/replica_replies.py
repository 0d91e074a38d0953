"""What replicas of each kind reply to the gateway's inquiry."""

from copy import deepcopy
from datetime import datetime
from typing import Any

from app.deliberation.engine_troubles import EngineTrouble, TroubleCause
from tests.components.routes.served import SENDER

VERSIONS = {"product": "0.1.0", "ray": "2.60.0", "python": "3.11.7"}

COORDINATOR_AT_WORK: dict[str, Any] = {
    "replica": "host-1",
    "node": "host",
    "application": "deliberations",
    "deployment": "Coordinator",
    "wanted": 1,
    "versions": VERSIONS,
    "in_flight": 7,
    "slots": 1_024,
    "roles": ["DEV"],
    "gates": [{"roles": ["DEV"], "priority": "batch", "begun": 5, "bound": 16, "waiting": 2}],
}
ROLES = ("DEV", "QA", "ARCHITECT", "DEVOPS", "DATA")


def engine(url: str, **more: Any) -> dict[str, Any]:
    shown = {"url": url, "healthy": True, "circuit": "closed", "in_flight": 0, "models": ["m-1"], "version": "0.32.0"}
    return {**shown, **more}


def agent(role: str, number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "replica": f"host-{role}-{number}",
        "node": "host",
        "application": "deliberations",
        "deployment": f"Agent:{role}",
        "wanted": 1,
        "versions": VERSIONS,
        "role": role,
        "model": "m-1",
        "simulated": False,
        "engines": [engine("http://e1:8000")],
        "in_flight": 0,
        "concurrency": 256,
        "counts": {"answered": 1},
        **more,
    }


def replies() -> dict[str, list[dict[str, Any]]]:
    of_roles = {f"control.role.{role}": [agent(role)] for role in ROLES}
    return {"control.coordinator": [deepcopy(COORDINATOR_AT_WORK)], "control.webhooks": [SENDER], **of_roles}


SINCE = datetime.fromisoformat("2026-01-02T03:04:05+00:00")


def troubled(cause: TroubleCause, words: str = "", **more: Any) -> dict[str, Any]:
    """The trouble of an engine as a replica tells it."""
    return EngineTrouble.of(cause, SINCE, words).model_dump(mode="json") | more


UNREACHABLE = troubled("refused", "connection refused")
REJECTED = troubled("key", "it answered 401", remedy="Correct the key in /run/secrets/hosted.")
