"""Approved plans as the API shows them."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from app.api.schemas import Resource, Status
from app.deliberation.specification import Token

RoleStatus = Literal["waiting", Status, "gone"]
PlanStatus = Literal["waiting", "in_progress", "completed", "partial", "failed"]
_ENDED = ("completed", "failed", "cancelled", "timeout", "gone")


class PlanLinks(Resource):
    """Paths of related operations."""

    self: str
    deliberations: str = Field(description="The list of the plan's deliberations")


class PlanRole(Resource):
    """One role of a plan and its deliberation."""

    role: str
    deliberation_id: Token
    status: RoleStatus = Field(
        description="`waiting`: not accepted yet, so send the plan again; `gone`: deleted, or past its retention"
    )
    link: str


class ApprovedPlan(Resource):
    """An approved plan: the deliberation of each role, and the state of the whole."""

    id: str
    story_id: str
    status: PlanStatus = Field(
        description="`waiting`: a role is not accepted yet; `completed`: every role is; `partial`: some are and the "
        "others ended otherwise; `failed`: none is"
    )
    roles: tuple[PlanRole, ...]
    links: PlanLinks


def plan_resource(plan_id: str, story_id: str, by_role: Mapping[str, tuple[str, RoleStatus]]) -> ApprovedPlan:
    statuses = [status for _, status in by_role.values()]
    completed = statuses.count("completed")
    whole: PlanStatus = "in_progress"
    if "waiting" in statuses:
        whole = "waiting"
    elif all(status in _ENDED for status in statuses):
        whole = "completed" if completed == len(statuses) else "partial" if completed else "failed"
    return ApprovedPlan(
        id=plan_id,
        story_id=story_id,
        status=whole,
        roles=tuple(
            PlanRole(role=role, deliberation_id=id, status=status, link=f"/deliberations/{id}")
            for role, (id, status) in by_role.items()
        ),
        links=PlanLinks(self=f"/plans/{plan_id}", deliberations=f"/deliberations?metadata.plan_id={plan_id}"),
    )
