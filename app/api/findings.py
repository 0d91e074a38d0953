"""Findings: the faults of an installation, their effects and their remedies.

`/readyz`, `GET /status`, `deliberate doctor` and `deliberate up` show the same findings. Each has a code, whose
kind names the part, the severity and the effect.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from pydantic import Field

from app.api.schemas import FieldProblem, Resource
from app.deliberation.engine_troubles import TroubleCause

Severity = Literal["error", "warning", "info"]
_GRAVEST: tuple[Severity, ...] = ("error", "warning", "info")


class Finding(Resource):
    """A fault of the installation, or a lack that changes how it works."""

    code: str = Field(description="Stable, for programs")
    part: str = Field(description="The part that it is about, as in `/readyz`")
    severity: Severity = Field(
        description="`error`: work is refused, waits or fails; `warning`: it goes on with less; `info`: by choice"
    )
    detail: str = Field(description="The fault")
    why: str = Field(description="Why it matters")
    remedy: str = Field(description="The remedy, often a command")


class FindingKind(NamedTuple):
    part: str
    severity: Severity
    why: str


# Causes stand before their effects: findings of one severity are shown in this order.
KINDS: Mapping[str, FindingKind] = {
    "invalid_setting": FindingKind("settings", "error", "A part with this setting does not start."),
    "open_files_few": FindingKind("machine", "error", "nats-server does not start, and each viewer holds a file."),
    "address_unusable": FindingKind("machine", "error", "The parts of a stack speak to each other over loopback."),
    "data_dir_unusable": FindingKind("machine", "error", "The log and the secrets of a stack are kept there."),
    "program_missing": FindingKind("machine", "error", "A stack starts this program."),
    "ray_dir_unusable": FindingKind("machine", "error", "Ray keeps its sockets there, and does not start without."),
    "shared_memory_small": FindingKind("machine", "info", "Ray keeps its objects on the disk instead, slower."),
    "journal_unavailable": FindingKind("journal", "error", "Nothing is accepted, read or decided without the log."),
    "streams_differ": FindingKind("streams", "error", "Facts would be lost, kept too long, or reach no reader."),
    "unauthenticated": FindingKind("access", "error", "Every request with this key is refused."),
    "insufficient_scope": FindingKind("access", "warning", "Only the checks of `/readyz` can be shown."),
    "unreachable": FindingKind("gateway", "error", "Clients reach nothing."),
    "not_a_gateway": FindingKind("gateway", "error", "Clients speak to another program."),
    "draining": FindingKind("draining", "error", "This process takes no new work."),
    "catalog_unread": FindingKind("catalog", "error", "The gateway does not know yet which work is unfinished."),
    "keys_unread": FindingKind("keys", "error", "No key is accepted yet."),
    "spends_unread": FindingKind("spends", "error", "The money that each tenant may still spend today is unknown."),
    "coordinator_missing": FindingKind("coordinator", "error", "Accepted deliberations wait, and none begins."),
    "coordinators_few": FindingKind("coordinator", "warning", "The others have more work; fewer failures are borne."),
    "cluster_missing": FindingKind("clusters", "error", "Deliberations with this label wait."),
    "role_missing": FindingKind("roles", "error", "Deliberations with this role wait."),
    "role_restarts": FindingKind("roles", "error", "Calls of the role are cut, and asked for again and again."),
    "replicas_few": FindingKind("roles", "warning", "Calls of the role wait longer."),
    "archive_unusable": FindingKind("archive", "error", "Lists, searches and statistics are refused."),
    "archive_missing": FindingKind("archive", "error", "Ended deliberations are in no list, and later in no log."),
    "archive_waits": FindingKind("archive", "error", "Ended deliberations are in no list, and later in no log."),
    "archive_behind": FindingKind("archive", "warning", "Lists and statistics lack the deliberations that ended last."),
    "tool_server_away": FindingKind("tools", "warning", "Its tools are missing; councils go on and say so."),
    "engine_unreachable": FindingKind("engines", "error", "Calls go to other engines of the role, or wait and fail."),
    "engine_key_refused": FindingKind("engines", "error", "Its calls end as `engine_rejected`."),
    "engine_silent": FindingKind("engines", "error", "Its calls wait until they time out."),
    "engine_fails": FindingKind("engines", "error", "Calls avoid it; without another engine they wait and fail."),
    "engine_list_unusable": FindingKind("engines", "error", "Without a list or a named `model`, no call is made."),
    "engine_refuses": FindingKind("engines", "error", "Its calls end as `engine_rejected` or `engine_unavailable`."),
    "model_unlisted": FindingKind("engines", "error", "An engine refuses calls for a model that it does not serve."),
    "context_short": FindingKind("engines", "warning", "A long task with its answer does not fit: calls are refused."),
    "schema_lacking": FindingKind("engines", "warning", "Answers are asked for in words, and more break their form."),
    "engine_throttles": FindingKind("engines", "warning", "Calls wait for it, or go to other engines of the role."),
    "webhooks_missing": FindingKind("webhooks", "warning", "Deliveries wait in the log."),
    "reply_invalid": FindingKind("versions", "warning", "A part of another version, or a stranger, answers."),
    "versions_differ": FindingKind("versions", "warning", "Two versions may read each other's facts differently."),
    "server_old": FindingKind("versions", "warning", "Older versions have known holes that a client can reach."),
    "disk_filling": FindingKind("machine", "warning", "A full disk stops the log until it has room and restarts."),
    "store_filling": FindingKind("journal", "warning", "A full store refuses every write until facts expire."),
    "queue_full": FindingKind("queue", "warning", "New deliberations are refused with 429."),
    "clock_differs": FindingKind("clocks", "warning", "Deadlines, keys and waits are counted by these clocks."),
    "records_refused": FindingKind("journal", "warning", "Records without a valid signature are skipped."),
    "proxy_between": FindingKind("gateway", "warning", "A proxy may hold back streams, and sees the key."),
    "port_taken": FindingKind(
        "machine", "info", "A gateway with this port does not start; `up` takes the next free one."
    ),
    "proxy_unused": FindingKind("machine", "info", "No part takes a proxy from its environment."),
    "prefix_cache_idle": FindingKind("engines", "info", "Each member's prompt is computed anew."),
    "priority_off": FindingKind("engines", "info", "Batch work is served before earlier interactive calls end."),
    "simulated": FindingKind("engines", "info", "Verdicts are made up."),
    "records_unsigned": FindingKind("journal", "info", "A client that may write to NATS can forge a fact."),
    "no_gateway": FindingKind("gateway", "info", "The set-up was checked, and no running part."),
}

# The kind that a cause of an engine's trouble belongs to.
ENGINE_KINDS: Mapping[TroubleCause, str] = {
    **dict.fromkeys(("refused", "unresolved", "tls", "unconnected"), "engine_unreachable"),
    "key": "engine_key_refused",
    "silent": "engine_silent",
    **dict.fromkeys(("memory", "loading", "errors"), "engine_fails"),
    **dict.fromkeys(("model", "refusal"), "engine_refuses"),
    "list": "engine_list_unusable",
    "throttled": "engine_throttles",
}


def finding(code: str, detail: str, remedy: str, *, severity: Severity | None = None) -> Finding:
    """Returns the finding of a kind; `severity` replaces the kind's where other parts do the work instead."""
    kind = KINDS[code]
    return Finding(
        code=code, part=kind.part, severity=severity or kind.severity, detail=detail, why=kind.why, remedy=remedy
    )


def as_problem(fault: Finding) -> FieldProblem:
    """Returns the finding as `/readyz` shows it."""
    return FieldProblem(
        location="service", pointer=fault.part, code=fault.code, detail=fault.detail, remedy=fault.remedy
    )


def as_finding(problem: FieldProblem) -> Finding | None:
    """Returns the finding that `/readyz` shows as this; None for a kind that this program does not know."""
    return finding(problem.code, problem.detail, problem.remedy) if problem.code in KINDS else None


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Returns each finding once, the gravest first, causes before effects."""
    codes = list(KINDS)

    def place(fault: Finding) -> tuple[int, int]:
        return _GRAVEST.index(fault.severity), codes.index(fault.code)

    return tuple(sorted(dict.fromkeys(findings), key=place))
