"""Approved plans: one deliberation per role, found again by ids that tenant, plan and role determine.

A story's last transition is metadata of its later deliberations.
"""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from app.api.headers import Submission
from app.api.schemas import dump
from app.deliberation.errors import Gone, IdempotencyConflict, InvalidRequest, NotFound
from app.deliberation.facts import Accepted, decode, prefix
from app.deliberation.fold import State
from app.deliberation.ports import Journal, Record
from app.deliberation.roles import Complexity
from app.lifecycle.deliberations import Deliberations
from app.lifecycle.specify import Identity, digest_id
from app.log.journal import JetStreamJournal
from app.planning.events import PlanRequest, StoryTransition
from app.planning.resources import ApprovedPlan, RoleStatus, plan_resource


class _KeptTransition(BaseModel, frozen=True):
    sequence: int
    transition: StoryTransition


def _story_subject(tenant: str, story_id: str) -> str:
    return f"stories.{tenant}.{hashlib.sha256(story_id.encode()).hexdigest()[:32]}.transitioned"


def _kept_transition(record: Record) -> _KeptTransition:
    return _KeptTransition.model_validate_json(record.data)


async def last_transition(journal: Journal, tenant: str, story_id: str) -> StoryTransition | None:
    records = await journal.last([_story_subject(tenant, story_id)])
    return _kept_transition(records[0]).transition if records else None


async def keep_transition(journal: JetStreamJournal, tenant: str, transition: StoryTransition, sequence: int) -> None:
    """Replace the story's transition by this one, unless the kept one comes from an event after `sequence`."""
    kept = _KeptTransition(sequence=sequence, transition=transition)
    subject = _story_subject(tenant, transition.story_id)
    await journal.write(subject, dump(kept), accepts=lambda record: _kept_transition(record).sequence >= sequence)


class PlanConflict(InvalidRequest):
    code = "plan_conflict"


def role_deliberation_id(tenant: str, plan_id: str, role: str) -> str:
    return digest_id("p", tenant, f"{plan_id}\n{role}")


def plan_identity(tenant: str, plan: PlanRequest, role: str) -> Identity:
    asked = plan.model_dump(mode="json", exclude={"approved_by", "timestamp", "tenant"}) | {"role": role}
    canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return Identity(role_deliberation_id(tenant, plan.plan_id, role), hashlib.sha256(canonical.encode()).hexdigest())


@dataclass(frozen=True, slots=True)
class Plans:
    """Operations on plans; each raises JournalUnavailable while the log cannot be reached."""

    deliberations: Deliberations
    roles_by_complexity: Mapping[Complexity, Sequence[str]]

    async def approve(self, tenant: str, plan: PlanRequest, submission: Submission) -> tuple[ApprovedPlan, bool]:
        """Returns the plan, accepted durably, and whether all of it was accepted before.

        After an error the same plan continues where it stopped. Raises PlanConflict, and as `Deliberations.accept`.
        """
        begun = await self._begun_roles(tenant, plan)
        by_complexity = dict(self.roles_by_complexity)
        if begun is not None:
            by_complexity[plan.complexity or "basic"] = begun
        roles = plan.resolved_roles(by_complexity, self.deliberations.roles)
        transition = await last_transition(self.deliberations.journal, tenant, plan.story_id)
        metadata = plan.metadata(roles, {} if transition is None else transition.metadata)
        statuses, replayed = dict[str, tuple[str, RoleStatus]](), True
        for role in roles:
            identity, request = plan_identity(tenant, plan, role), plan.of_role(role, metadata)
            try:
                state, known = await self.deliberations.accept(tenant, request, submission, identity)
            except IdempotencyConflict:
                # Another process accepted it at this moment.
                raise _conflict(plan) from None
            except Gone:
                statuses[role] = identity.id, "gone"
                continue
            statuses[role] = identity.id, _status(state)
            replayed = replayed and known
        return plan_resource(plan.plan_id, plan.story_id, statuses), replayed

    async def _begun_roles(self, tenant: str, plan: PlanRequest) -> list[str] | None:
        """Returns the roles of a begun plan, which stay though the operator changes those of its complexity."""
        asked = {
            identity.id: identity
            for identity in (plan_identity(tenant, plan, role) for role in self.deliberations.roles)
        }
        records = await self.deliberations.journal.last([f"{prefix(tenant, id)}.*" for id in asked])
        begun = [fact for record in records if isinstance(fact := decode(record.data), Accepted)]
        if any(fact.body_sha256 != asked[fact.deliberation_id].sha256 for fact in begun):
            raise _conflict(plan)
        return begun[0].specification.metadata["plan_roles"].split(",") if begun else None

    async def find(self, tenant: str, plan_id: str) -> ApprovedPlan:
        """The plan as its deliberations show it; raises NotFound when none of them was ever accepted here."""
        by_role = dict(await asyncio.gather(*(self._find(tenant, plan_id, role) for role in self.deliberations.roles)))
        states = [state for state in by_role.values() if isinstance(state, State)]
        if not states:
            raise NotFound(f"There is no plan {plan_id}, or all of its deliberations are gone.")
        metadata = states[0].specification.metadata
        named = metadata.get("plan_roles", "").split(",")
        by_role |= dict(
            await asyncio.gather(*(self._find(tenant, plan_id, role) for role in named if role not in by_role))
        )
        return plan_resource(
            plan_id,
            metadata["story_id"],
            {role: (role_deliberation_id(tenant, plan_id, role), _status(by_role[role])) for role in named},
        )

    async def _find(self, tenant: str, plan_id: str, role: str) -> tuple[str, State | RoleStatus]:
        try:
            return role, (await self.deliberations.find(tenant, role_deliberation_id(tenant, plan_id, role))).state
        except NotFound:
            return role, "waiting"
        except Gone:
            return role, "gone"


def _conflict(plan: PlanRequest) -> PlanConflict:
    return PlanConflict(f"Plan {plan.plan_id} was approved before with other content.")


def _status(state: State | RoleStatus) -> RoleStatus:
    return state.status if isinstance(state, State) else state  # pyright: ignore[reportReturnType] -- the fold's statuses are these
