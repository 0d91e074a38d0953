"""From a request to its acceptance: defaults filled in, every choice made, the id and the body's hash."""

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from types import MappingProxyType
from typing import Any

from app.api.headers import Submission
from app.api.requests import SEED_DRAWN_MAX, DeliberationRequest, EvidenceRequest, SamplingRequest
from app.api.webhook_payloads import ordered
from app.deliberation.decider import StrategyDefinition
from app.deliberation.facts import Accepted
from app.deliberation.roles import Role
from app.deliberation.specification import (
    DEFAULT_RUBRIC,
    AgentSpec,
    Budget,
    Constraints,
    Criterion,
    Evidence,
    FilesWorkspace,
    GitWorkspace,
    InputRef,
    Sampling,
    Specification,
    StoryContext,
    Webhook,
)
from app.deliberation.tools import allowance

ID_CHARS = 26
_TIME_BITS = 48
_TIMED_ID = re.compile(rf"0[0-9a-v]{{{ID_CHARS - 1}}}", re.ASCII)
DIVERSITY = 1.3
TEMPERATURE_MAX = 2.0
NO_FILES: Mapping[str, InputRef] = MappingProxyType({})


def deliberation_id(tenant: str, key: str | None, now: datetime) -> str:
    """Returns 26 characters of base32hex, which sort as the bits do.

    With a key: `k` and a digest of tenant and key. Else 48 bits of milliseconds since 1970, and 82 random bits.
    """
    if key:
        return keyed_id(tenant, key)
    milliseconds = round(now.timestamp() * 1_000)
    material = milliseconds.to_bytes(_TIME_BITS // 8, "big") + secrets.token_bytes(11)
    return base64.b32hexencode(material).decode().lower()[:ID_CHARS]


def keyed_id(tenant: str, key: str) -> str:
    """The id of the deliberation that an idempotency key of a tenant starts."""
    return digest_id("k", tenant, key)


def digest_id(first: str, tenant: str, key: str) -> str:
    """An id that a tenant and a key determine; its first letter keeps different kinds of keys apart."""
    digest = hmac.digest(tenant.encode(), key.encode(), hashlib.sha256)
    return f"{first}{base64.b32hexencode(digest).decode().lower()}"[:ID_CHARS]


def issued_at(deliberation_id: str) -> datetime | None:
    if _TIMED_ID.fullmatch(deliberation_id) is None:
        return None
    milliseconds = int(deliberation_id[:10], 32) >> (50 - _TIME_BITS)
    return datetime.fromtimestamp(milliseconds / 1_000, UTC)


@dataclass(frozen=True, slots=True)
class Identity:
    id: str
    sha256: str


def body_sha256(request: DeliberationRequest) -> str:
    """Hash of the parsed body, recorded with the acceptance. A new field needs `exclude_if` for its default."""
    canonical = json.dumps(request.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def default_quorum(size: int) -> int:
    """The default number of answers that a stage needs: max(2, ceil(N/2)), and 1 of 1."""
    return 1 if size == 1 else max(2, ceil(size / 2))


def _sampling(asked: SamplingRequest, role: Role, temperature: float | None, first: bool) -> Sampling:
    sampling = {**role.sampling.model_dump(), **asked.model_dump(exclude_none=True)}
    if temperature is not None:
        sampling["temperature"] = temperature
    elif not first:
        sampling["temperature"] = min(TEMPERATURE_MAX, round(sampling["temperature"] * DIVERSITY, 6))
    return Sampling(**sampling)


def agents(request: DeliberationRequest, roles: Mapping[str, Role]) -> tuple[AgentSpec, ...]:
    members: list[AgentSpec] = []
    for entry, ids in zip(request.roster, request.member_ids, strict=True):
        role = roles[entry.role]
        for agent_id in ids:
            members.append(
                AgentSpec(
                    agent_id=agent_id,
                    role=entry.role,
                    persona=entry.persona,
                    model=entry.model or role.model,
                    sampling=_sampling(request.sampling, role, entry.temperature, first=not members),
                    tools=allowance(role.tools, request.tools, request.workspace.tools if request.workspace else ()),
                )
            )
    return tuple(members)


def _budget(request: DeliberationRequest, roles: Mapping[str, Role]) -> Budget:
    budget = request.budget
    names = sorted({entry.role for entry in request.roster}) if budget.max_cost is not None else []
    prices = [roles[name].dearest(name) for name in names]
    return Budget(**budget.model_dump(), prices=tuple(price for price in prices if price is not None))


def specification(
    request: DeliberationRequest,
    roles: Mapping[str, Role],
    strategies: Mapping[str, StrategyDefinition],
    *,
    timeout_s: int,
    files: Mapping[str, InputRef] = NO_FILES,
    added: Sequence[Evidence] = (),
    context: StoryContext | None = None,
    cluster: str | None = None,
    workspace: GitWorkspace | FilesWorkspace | None = None,
) -> Specification:
    """Returns the complete specification; draws a missing seed. `added` is evidence beyond the request's.

    `files` has the input of each id that the evidence names.
    `cluster` is the label of the clusters that may do it.
    """
    asked, definition = request.constraints, strategies[request.strategy]
    rubric = DEFAULT_RUBRIC
    if asked.rubric is not None:
        rubric = tuple(Criterion(**criterion.model_dump()) for criterion in asked.rubric)
    webhook = request.webhook
    if webhook is not None:
        told: dict[str, Any] = webhook.model_dump() | {"events": ordered(webhook.events)}
        webhook = Webhook(**told)
    return Specification(
        task=request.whole_task,
        turns=len(request.conversation or (request.task,)),
        agents=agents(request, roles),
        strategy=request.strategy,
        strategy_version=definition.version,
        parameters=definition.parameters.model_validate(request.parameters).model_dump(mode="json"),
        rounds=request.rounds,
        constraints=Constraints(
            rubric=rubric,
            requirements=tuple(asked.requirements),
            timeout_seconds=asked.timeout_seconds or timeout_s,
            on_deadline=asked.on_deadline,
            metadata=asked.metadata,
            answer_schema=asked.answer_schema,
            actions=request.actions and request.actions.specified,
            agreement_min=asked.agreement_min,
            on_disagreement=asked.on_disagreement,
        ),
        quorum=request.quorum or default_quorum(request.size),
        budget=_budget(request, roles),
        seed=secrets.randbelow(SEED_DRAWN_MAX + 1) if request.seed is None else request.seed,
        priority=request.priority,
        cluster=cluster,
        metadata=request.metadata,
        evidence=(*(_evidence(document, files) for document in request.evidence), *added),
        context=context,
        workspace=workspace,
        webhook=webhook,
    )


def _evidence(document: EvidenceRequest, files: Mapping[str, InputRef]) -> Evidence:
    file = None if document.file is None else files[document.file]
    return Evidence(id=document.id, title=document.title, text=document.text, file=file, source=document.source)


def accepted(specified: Specification, identity: Identity, submission: Submission, *, now: datetime) -> Accepted:
    return Accepted(
        deliberation_id=identity.id,
        ts=now,
        specification=specified,
        deadline_at=now + timedelta(seconds=specified.constraints.timeout_seconds),
        body_sha256=identity.sha256,
        request_id=submission.request_id,
        traceparent=submission.traceparent,
        asked=dict(submission.asked),
    )
