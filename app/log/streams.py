"""Declarations of streams and consumers. `apply` creates missing ones and changes none; `plan` lists differences."""

import json
from typing import Any, cast

from app.deliberation.errors import JournalUnavailable, StreamsDiffer
from app.deliberation.facts import acceptance
from app.deliberation.specification import TIMEOUT_S_MAX
from app.log.connection import UNREACHABLE
from app.log.journal import JetStreamJournal
from app.log.stream_settings import (
    ANNOUNCED_END,
    ANNOUNCEMENTS_STREAM,
    ARCHIVE_CONSUMER,
    CONTEXT_CONSUMER,
    CONTEXT_STREAM,
    COPIES,
    DAY_S,
    DUPLICATE_WINDOW_S,
    ERASED_END,
    EXCLUSIVE_GROUP,
    INPUTS_STREAM,
    KEYS_STREAM,
    LATE_END,
    PLANNING_CONSUMER,
    PLANNING_STREAM,
    PUBLICATION_STREAMS,
    RESPONSES,
    RESPONSES_STREAM,
    SPENDS_STREAM,
    STORIES_STREAM,
    STREAM,
    TASKS_STREAM,
    WEBHOOKS_STREAM,
    StreamSettings,
    coordinator_queue,
    task_subject,
    worker_consumer,
)

WEBHOOKS_CONSUMER = "webhooks"
ATTEMPTS_CONSUMER = "attempts"
WORKER_ACK_WAIT_S = 12
# Longer than the `ack_wait`: items of a dead client are redelivered before another client is pinned.
EXCLUSIVE_S = WORKER_ACK_WAIT_S + 3
_NANOSECOND = 1_000_000_000
# The probe write: no consumer reads its subject, and it expires after a second, the shortest time the server allows.
PROBE_SUBJECT = "deliberations.probe"
PROBE_TIMEOUT_S = 1.0
_PROBE_HEADERS = {"Nats-TTL": "1s"}


def _stream(name: str, age_s: int, replicas: int, **more: object) -> dict[str, Any]:
    return {
        "name": name,
        "max_age": age_s * _NANOSECOND,
        "storage": "file",
        "retention": "limits",
        "discard": "old",
        "num_replicas": replicas,
        **more,
    }


def _derived(name: str, filtered: str, age_s: int, replicas: int) -> dict[str, Any]:
    """A stream that copies some events of DELIBERATIONS to subjects with the id alone, which other services read."""
    subject = f"{COPIES[name]}.{{{{wildcard(2)}}}}"
    source = {"name": STREAM, "subject_transforms": [{"src": filtered, "dest": subject}]}
    return _stream(name, age_s, replicas, sources=[source])


def declared_streams(settings: StreamSettings) -> list[dict[str, Any]]:
    r, tasks = settings.replicas, task_subject("*", "*", "*")
    declared = [
        _stream(
            STREAM,
            settings.retention_s,
            r,
            subjects=["deliberations.>"],
            allow_direct=True,
            allow_msg_ttl=True,
            republish={"src": "deliberations.>", "dest": "live.deliberations.>"},
        ),
        # Kept for ever and protected from deletion: without its revocation, a revoked key would be valid again.
        _stream(
            KEYS_STREAM,
            0,
            r,
            subjects=["keys.>"],
            allow_direct=True,
            deny_delete=True,
            deny_purge=True,
            republish={"src": "keys.>", "dest": "live.keys.>"},
        ),
        # What each deliberation of a day has cost. Protected from deletion: no tenant lowers its spend.
        _stream(
            SPENDS_STREAM,
            2 * DAY_S,
            r,
            subjects=["spends.*.*.*"],
            allow_direct=True,
            deny_delete=True,
            deny_purge=True,
            republish={"src": "spends.>", "dest": "live.spends.>"},
        ),
        # Each input lives as long as what uses it, so that none expires by age.
        _stream(INPUTS_STREAM, 0, r, subjects=["inputs.>"], allow_direct=True, max_msgs_per_subject=1),
        # A day longer than facts, so that no record expires before its fact.
        _stream(WEBHOOKS_STREAM, settings.retention_s + DAY_S, r, subjects=["webhooks.>"], allow_direct=True),
        _stream(PLANNING_STREAM, 30 * DAY_S, r, subjects=["planning.>"]),
        # The last transition of each story, kept for as long as its events.
        _stream(STORIES_STREAM, 30 * DAY_S, r, subjects=["stories.>"], allow_direct=True, max_msgs_per_subject=1),
        _stream(
            ANNOUNCEMENTS_STREAM,
            7 * DAY_S,
            r,
            subjects=[f"{ANNOUNCED_END}.*", f"{LATE_END}.*.*", ERASED_END],
            allow_direct=True,
            duplicate_window=DUPLICATE_WINDOW_S * _NANOSECOND,
        ),
        _stream(RESPONSES_STREAM, 3_600, r, subjects=[f"{RESPONSES}.*.*.*"], allow_direct=True),
        # Prompts on their way to workers: each is removed once its calls are recorded, and at its deadline.
        _stream(TASKS_STREAM, TIMEOUT_S_MAX, r, subjects=[tasks], retention="workqueue", allow_msg_ttl=True),
        # Not `context.>`: the server would answer a request on `context.get` itself, as if it were to be stored.
        _stream(CONTEXT_STREAM, 7 * DAY_S, r, subjects=["context.updated"]),
        _derived("AGENT_RESULTS", "deliberations.*.*.call.*.finished", 3_600, r),
        _derived("VLLM_STREAMING", "deliberations.*.*.call.*.delta", 600, r),
    ]
    return [stream for stream in declared if _is_published(stream["name"], settings)]


def _is_published(stream: str, settings: StreamSettings) -> bool:
    return PUBLICATION_STREAMS.get(stream) in (None, *settings.publications)


def _filter(subjects: list[str]) -> dict[str, object]:
    """The server reports one subject in another field than several."""
    return {"filter_subject": subjects[0]} if len(subjects) == 1 else {"filter_subjects": subjects}


def _consumer(name: str, ack_wait_s: float, unacknowledged_max: int, **filters: object) -> dict[str, Any]:
    """A durable pull consumer, without `backoff`, which would override `ack_wait`, and without a delivery limit."""
    return {
        "durable_name": name,
        "name": name,
        "ack_policy": "explicit",
        "ack_wait": round(ack_wait_s * _NANOSECOND),
        "max_deliver": -1,
        "max_ack_pending": unacknowledged_max,
        "max_waiting": 512,
        "deliver_policy": "all",
        "replay_policy": "instant",
        **filters,
    }


def _exclusive(name: str, ack_wait_s: float, unacknowledged_max: int, **filters: object) -> dict[str, Any]:
    """A consumer that delivers to one pinned client, until this client unpins itself or stops pulling."""
    consumer = _consumer(name, ack_wait_s, unacknowledged_max, **filters)
    place = {"priority_groups": [EXCLUSIVE_GROUP], "priority_policy": "pinned_client"}
    return {**consumer, **place, "priority_timeout": EXCLUSIVE_S * _NANOSECOND}


def declared_consumers(settings: StreamSettings) -> list[tuple[str, dict[str, Any]]]:
    """Every durable pull consumer with its stream. A webhook's item stays unacknowledged until its next attempt."""
    accepted = {cluster: f"deliberations.*.*.{acceptance(cluster)}" for cluster in (None, *settings.clusters)}
    due = ["webhooks.*.*.*.failed.*", "webhooks.*.*.*.redelivery.*"]
    # Acceptances, cancellations, ends and deletions. Several filters cost the server five times as much.
    archived = "deliberations.*.*.*"
    planned = ["planning.plan.approved", "planning.story.transitioned"]
    ended = f"{ANNOUNCED_END}.*"
    attempts = _consumer(ATTEMPTS_CONSUMER, WORKER_ACK_WAIT_S, 1_000_000, filter_subjects=due)
    declared = [
        *(
            (STREAM, _consumer(coordinator_queue(cluster), settings.ack_wait_s, 10_000, filter_subject=subject))
            for cluster, subject in accepted.items()
        ),
        (STREAM, _consumer(WEBHOOKS_CONSUMER, WORKER_ACK_WAIT_S, 1_000_000, **_filter(list(accepted.values())))),
        (STREAM, _consumer(ARCHIVE_CONSUMER, WORKER_ACK_WAIT_S, 100_000, filter_subject=archived)),
        (WEBHOOKS_STREAM, attempts),
        (PLANNING_STREAM, _exclusive(PLANNING_CONSUMER, WORKER_ACK_WAIT_S, 100_000, filter_subjects=planned)),
        (ANNOUNCEMENTS_STREAM, _consumer(CONTEXT_CONSUMER, WORKER_ACK_WAIT_S, 100_000, filter_subject=ended)),
        *(
            (
                TASKS_STREAM,
                _consumer(
                    worker_consumer(role), settings.ack_wait_s, 100_000, filter_subject=task_subject(role, "*", "*")
                ),
            )
            for role in settings.worker_roles
        ),
    ]
    return [(stream, consumer) for stream, consumer in declared if _is_published(stream, settings)]


def differences(name: str, declared: dict[str, Any], stored: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for key, expected in declared.items():
        actual = stored.get(key)
        if key == "sources":
            sources = cast("list[dict[str, Any]]", actual or [])
            actual = [{"name": s["name"], "subject_transforms": s.get("subject_transforms")} for s in sources]
        if actual != expected:
            lines.append(f"{name}.{key}: declared {json.dumps(expected)}, found {json.dumps(actual)}")
    return lines


async def _find(journal: JetStreamJournal, subject: str) -> dict[str, Any] | None:
    reply = await journal.request(f"$JS.API.{subject}")
    error = reply.get("error")
    if error is None:
        return reply["config"]
    if error.get("code") == 404:
        return None
    raise StreamsDiffer(f"{subject}: {error.get('description')}")


async def _create(journal: JetStreamJournal, subject: str, config: dict[str, Any]) -> None:
    reply = await journal.request(f"$JS.API.{subject}", json.dumps(config).encode())
    if "error" in reply:
        raise StreamsDiffer(f"{subject}: {reply['error'].get('description')}")


async def plan(journal: JetStreamJournal, settings: StreamSettings) -> tuple[list[str], list[str]]:
    compared: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
        (declared["name"], declared, await _find(journal, f"STREAM.INFO.{declared['name']}"))
        for declared in declared_streams(settings)
    ]
    absent = {name for name, _, stored in compared if stored is None}
    for stream, declared in declared_consumers(settings):
        subject = f"CONSUMER.INFO.{stream}.{declared['name']}"
        compared.append(
            (f"{stream}/{declared['name']}", declared, None if stream in absent else await _find(journal, subject))
        )
    missing, different = list[str](), list[str]()
    for name, declared, stored in compared:
        if stored is None:
            missing.append(name)
        else:
            different += differences(name, declared, stored)
    return missing, different


async def apply(journal: JetStreamJournal, settings: StreamSettings) -> list[str]:
    """Create missing streams and consumers, and return their names; raises StreamsDiffer before any change."""
    missing, different = await plan(journal, settings)
    if different:
        raise StreamsDiffer("; ".join(different))
    for declared in declared_streams(settings):
        if declared["name"] in missing:
            await _create(journal, f"STREAM.CREATE.{declared['name']}", declared)
    for stream, declared in declared_consumers(settings):
        if f"{stream}/{declared['name']}" in missing:
            body = {"stream_name": stream, "config": declared}
            await _create(journal, f"CONSUMER.DURABLE.CREATE.{stream}.{declared['name']}", body)
    return missing


async def prove_writes(journal: JetStreamJournal) -> None:
    """Raise JournalUnavailable when the last write failed and a probe fails too; a full store answers reads."""
    if not journal.writes.last_failed:
        return
    try:
        message = await journal.client.request(PROBE_SUBJECT, b"", timeout=PROBE_TIMEOUT_S, headers=_PROBE_HEADERS)
    except UNREACHABLE as exc:
        raise JournalUnavailable(f"{journal.server} acknowledges no write; its store may be full") from exc
    if error := json.loads(message.data).get("error"):
        raise JournalUnavailable(f"{journal.server} refuses writes: {error.get('description')}")
    journal.writes.last_failed = False
