"""Examples of answers and events, composed from their JSON Schemas; examples of requests stand on the models.

A field takes the value of its name in `VALUES`, so that one agent, model or time is the same in every example.
`Model.field` comes before `field`. Fields without an entry take what their schema says.
"""

from collections.abc import Mapping
from typing import Any

EVENT_STREAM = "text/event-stream"
AT = "2026-01-01T00:00:00Z"
ID = "06h0e1l964hhcb1ns4s28egqi1"
PLAN_ID = "plan-42"
_PATH = f"/deliberations/{ID}"
_ANSWER = "from heapq import merge\n\n\ndef merged(a, b):\n    return list(merge(a, b))"
_CURSOR = "f9c8adc3-17"
DELIVERY = "dlv_6q2l5kbo0tfgp2n3r1m8s4v7cd"
_ENGINE = "http://127.0.0.1:8000"
_HELP = "# HELP deliberations_accepted_total Deliberations that were accepted\n"

VALUES: dict[str, Any] = {
    "agent_id": "dev-001", "winner": "dev-001", "preferred": "dev-002", "author_id": "dev-001", "role": "DEV",
    "roles": "DEV", "author_role": "DEV", "call_id": "s1-dev-001", "finished_after": "s1-dev-002", "seen": "s1-dev-001",
    "deliberation_id": ID, "task_id": ID, "follows": ID, "plan_id": PLAN_ID, "story_id": "story-17",
    "tenant": "default", "case_id": None, "phase": "BUILD", "from_phase": "DESIGN", "to_phase": "BUILD",
    "timestamp": AT, "id": ID, "AgentView.id": "host-4712", "CoordinatorView.id": "host-4711",
    "SenderView.id": "host-4713", "ProjectorView.id": "host-4714", "Criterion.id": "correctness",
    "CriterionMean.id": "correctness", "Evidence.id": "adr-7", "ModelResource.id": "council/DEV",
    "WebhookPayload.id": _CURSOR, "Delivery.id": DELIVERY, "DeliveryReceipt.id": DELIVERY,
    "response_id": f"resp_{ID}", "ResponseResource.id": f"resp_{ID}", "ResponseDeleted.id": f"resp_{ID}",
    "previous_response_id": None, "first_id": f"msg_{ID}_0", "last_id": f"msg_{ID}_0",
    "instructions": "Answer in Python.", "ResponseResource.created_at": 1_767_225_600,
    "ResponseResource.completed_at": 1_767_225_615, "completed_at": 1_767_225_615, "ResponseResource.text": None,
    "ResponseResource.status": "completed",
    "ResponseResource.deliberation": "composed", "starting_after": None, "ResponseUsage.calls": 4,
    "ChatCompletion.id": f"chatcmpl-{ID}", "get_model.model": "council/DEV",
    "delivery_id": DELIVERY, "event_id": _CURSOR, "first": "f9c8adc3-0", "last": _CURSOR, "from": "f9c8adc3-3",
    "to": _CURSOR, "Stats.from": AT, "Stats.to": "2026-01-31T00:00:00Z", "next": _CURSOR, "next_cursor": None,
    "last_event_id": _CURSOR, "replica": "host-4711", "task": "Write a function that merges two sorted lists.",
    "title": "Login", "text": "Sessions live in the database.", "CallDelta.text": "from heapq",
    "CallFinished.text": '{"reasoning": "One pass over both.", "answer": "…", "confidence": 80}', "content": _ANSWER,
    "answer": _ANSWER, "strategy": "best_of_n", "model": "simulated-normal", "models": "simulated-normal",
    "source": "RFC 9111, section 4", "engine": _ENGINE, "url": _ENGINE, "Webhook.url": "https://hooks.example.com/done",
    "Announcement.url": _PATH, "engines": _ENGINE, "ClusterVersions.engines": "0.32.0", "fallback": _ENGINE,
    "self": _PATH, "events": f"{_PATH}/events", "Webhook.events": "deliberation.completed", "cancel": f"{_PATH}/cancel",
    "delete": _PATH, "deliveries": f"{_PATH}/deliveries", "deliberation": _PATH, "href": _PATH, "link": _PATH,
    "redeliver": f"{_PATH}/deliveries/{DELIVERY}/redeliver", "PlanLinks.self": f"/plans/{PLAN_ID}",
    "deliberations": f"/deliberations?metadata.plan_id={PLAN_ID}", "evidence": "Both lists may be empty.",
    "where": "merged, line 5", "claim": "It sorts again what is sorted.", "fix": "Merge in one pass.",
    "reason": "no longer needed", "IssueResponse.reason": "Right: one pass suffices.", "CheckOutcome.reason": "",
    "name": "best_of_n", "CheckOutcome.name": "empty lists", "StreamFigures.name": "DELIBERATIONS",
    "ConsumerFigures.name": "coordinator", "RoleResource.name": "DEV", "GroupFigures.name": "DEV",
    "ServeApplication.name": "deliberations", "stream": "DELIBERATIONS", "ServeDeployment.name": "Coordinator",
    "EngineView.name": None, "EngineLoad.name": None, "summary": "The best of N answers",
    "persona": "You are a senior software developer.", "calls": 4, "StrategyResource.calls": "2N", "steps": "propose",
    "tool_calls": "N",
    "fields": "quorum", "requirements": "linear time", "description": "Does it meet the whole task?",
    "cluster": "eu", "clusters": "eu",
    "code": "no_answers", "AttemptProblem.code": "http_status", "detail": "No agent answered in time.",
    "AttemptProblem.detail": "It answered 503.", "CallWaiting.detail": "No engine of role DEV can be connected to.",
    "FieldProblem.code": "less_than_equal", "cause": "Connection refused", "remedy": "Give 5 or less.",
    "pointer": "/rounds", "part": "webhooks", "failure": "", "MissingPart.detail": "None answered within 0.5 s",
    "FieldProblem.detail": "It is too large", "instance": "/deliberations", "request_id": "order-4711/1",
    "traceparent": None, "body_sha256": "9f2c41d07be3a856", "version_hash": "9f2c41d07be3a856", "currency": "USD",
    "amount": 0.018362, "finish_reason": "stop", "checks": "journal", "reasons": "1 of 2 ballots is missing",
    "degraded": "1 of 2 ballots is missing", "product": "0.1.0", "gateway": "0.1.0", "python": "3.11.7",
    "ray": "2.60.0", "nats_server": "2.15.1", "version": 4, "EngineLoad.version": "0.32.0",
    "StoryContext.version": "9f2c41d07be3a856", "node": "host", "owned_by": "deliberation-gateway", "key": None,
    "system_fingerprint": None, "context_text": "Log in by a link: the link is valid for ten minutes.", "error": None,
    "error_type": None, "prompt_tokens": 180, "completion_tokens": 60, "cached_tokens": 64, "total_tokens": 240,
    "duration_ms": 400, "ttft_ms": 80, "seed": 7, "quorum": 2, "timeout_seconds": 300, "heartbeat_s": 15,
    "depth_max": 2_000, "concurrency": 256, "offset": 0, "message": "This model does not exist", "param": "model",
    "created": 1_767_225_600, "metadata": {"project": "sorting"}, "labels": {"A": "dev-002"},
    "counts": {"answered": 310}, "held": {"attempts": 2}, "parameters": {"aggregation": "borda"},
    "StrategyResource.parameters": {"type": "object", "properties": {}},
    "WebhookPayload.links": {"self": _PATH, "events": f"{_PATH}/events", "deliveries": f"{_PATH}/deliveries"},
    "depth": 5, "in_hand": 4, "running": 12, "in_flight": 12, "bound": 16, "begun": 4, "admitted": 360,
    "messages": 4_211, "bytes": 5_242_880, "sha256": "9f" * 32, "form_sha256": "9f" * 32,
    "media_type": "application/pdf", "InputRef.name": "contract.pdf", "pages": 12, "task_file": None, "file": None,
    "File.id": f"file-{'9f' * 32}",
    "File.name": "contract.pdf", "file_id": f"file-{'9f' * 32}", "get_file.file_id": f"file-{'9f' * 32}",
    "ToolLimits.bytes": 65_536, "ToolUsed.bytes": 9, "ToolAllowance.bytes": 65_536,
    "last_sequence": 9_876, "ended_per_s": 1.2, "head_waited_s": 0.2, "lag": 0,
    "unacknowledged": 4, "redelivered": 0, "total": 4, "completed": 3, "cancelled": 0, "timeout": 0, "failed": 0,
    "won": 3, "decided": 3, "rate": 1.0, "mean": 14.2, "p50": 13.9, "p95": 16.1, "p99": 16.1, "agreement": 0.71,
    "score": 0.75, "margin": 0.25, "tally": [], "dissent": [], "prices": [], "Deliberation.evidence": [],
    "Specification.evidence": [], "max_cost": None, "Budget.max_tokens": None, "Budget.max_calls": None, "top_p": None,
    "Standing.version": 0, "TextVersion.version": 0, "effective_votes": 2.0, "Deliberation.status": "completed",
    "DeliberationResult.status": "completed", "DeliberationSummary.status": "completed",
    "DeliberationReceipt.status": "completed", "Proposal.status": "answered", "AnnouncedAnswer.status": "answered",
    "started_at": "2026-01-01T00:00:01Z", "ended_at": "2026-01-01T00:00:15Z", "deadline_at": "2026-01-01T00:05:00Z",
    "retention_until": "2026-01-31T00:00:15Z", "status_reason": None, "answer_schema": None, "system": "",
    "context": "Decided before: log in by a link.", "tools": "", "history": "", "status_code": 204, "status": 422,
    "problem": None, "Failed.problem": "composed", "agents": "dev-001",
    "Failed.verdict": None, "Cancelled.verdict": None, "TimedOut.verdict": None, "expires_at": None,
    "cancellation": None, "Deliberation.degraded": None, "Deliberation.context": None, "progress": None,
    "trouble": None, "cached_share": 0.44,
    "ttft_s": 0.08, "active": 5, "replicas": 2, "PartView.part": "coordinator",
    "key_id": "4f0q2t9v1a7c", "KeyResource.name": "ci", "NewKey.name": "ci", "NewKey.key": "dlb_…", "maker": None,
    "KeyResource.status": "good", "NewKey.status": "good", "revoked_at": None,
    "Completed.degraded": None, "Announcement.degraded": None,
    "get_metrics": _HELP,
}  # fmt: skip


def composed(schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str = "", model: str = "") -> Any:  # noqa: ANN401 -- JSON
    example = VALUES.get(f"{model}.{name}", VALUES.get(name, _UNKNOWN))
    if example == [] or (example is None and _is_nullable(schema)) or example in schema.get("enum", ()):
        return example
    match schema:
        case {"$ref": reference}:
            referred = reference.rpartition("/")[2]
            return composed(schemas[referred], schemas, name, referred)
        case {"examples": [first, *_]} | {"const": first} | {"enum": [first, *_]}:
            return first
        case {"default": int() | float() | bool() | str() as usual} if usual and example is _UNKNOWN:
            return usual
        case {"anyOf": choices} | {"oneOf": choices}:
            return composed(next(choice for choice in choices if choice.get("type") != "null"), schemas, name, model)
        case {"properties": properties}:
            owner = schema.get("title", model)
            return {field: composed(declared, schemas, field, owner) for field, declared in properties.items()}
        case {"type": "array"}:
            return [composed(schema["items"], schemas, name, model)] if "items" in schema else []
        case {"type": kind}:
            fallback = _BY_TYPE.get(kind)
            if kind == "string" and schema.get("format") == "date-time":
                return example if isinstance(example, str) else AT
            return example if isinstance(example, _PYTHON_TYPE[kind]) else schema.get("minimum", fallback)
        case _:
            return None


_UNKNOWN = object()
_BY_TYPE: dict[str, Any] = {"string": "…", "integer": 1, "number": 0.5, "boolean": False, "object": {}}
_PYTHON_TYPE: dict[str, Any] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "null": type(None)
}  # fmt: skip


def _is_nullable(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "null" or any(
        alternative.get("type") == "null" for alternative in schema.get("anyOf", ())
    )
