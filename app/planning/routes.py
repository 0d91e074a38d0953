"""Routes: approve a plan, read a plan."""

from typing import Annotated

from fastapi import Path, Request, Response

from app.api.headers import submission_of
from app.api.request_body import body_of
from app.api.responses import answer, body, problems
from app.api.schemas import dump
from app.planning.events import PLAN_ID_PATTERN, PlanRequest
from app.planning.plans import Plans
from app.planning.resources import ApprovedPlan
from app.routes.dependencies import Gateway, InGateway, OfTenant, api_router

PathPlanId = Annotated[str, Path(pattern=PLAN_ID_PATTERN, description="The plan's id")]

router = api_router("plans")


def _plans(gateway: Gateway) -> Plans:
    return Plans(gateway["deliberations"], gateway["settings"].plan_roles)


def _answered(plan: ApprovedPlan, status: int, **headers: str) -> Response:
    return Response(dump(plan), status, {"Cache-Control": "private, no-cache", **headers}, "application/json")


@router.post(
    "/plans",
    summary="Approve a plan",
    status_code=202,
    responses={
        202: answer(
            "Each role's deliberation is stored durably", "Location", "Idempotency-Replayed", model=ApprovedPlan
        ),
        **problems(400, 408, 409, 413, 415, 422, 429, 503),
    },
    openapi_extra={"requestBody": body("PlanRequest")},
)
async def approve_plan(request: Request, gateway: InGateway, tenant: OfTenant) -> Response:
    """Starts one deliberation per role, once for a plan: its id is the key, so send the same plan again after an error.

    The same as an event on `planning.plan.approved`.
    """
    asked = await body_of(request, PlanRequest, {"roles": gateway["roles"], "tenants": (tenant,)})
    plan, replayed = await _plans(gateway).approve(tenant, asked, submission_of(request))
    repeated = {"Idempotency-Replayed": "true"} if replayed else {}
    return _answered(plan, 202, Location=f"/plans/{plan.id}", **repeated)


@router.get(
    "/plans/{plan_id}",
    summary="Read a plan",
    responses={200: answer("Each role's state, and the whole's", model=ApprovedPlan), **problems(404, 422, 503)},
)
async def get_plan(gateway: InGateway, tenant: OfTenant, plan_id: PathPlanId) -> Response:
    """The plan as its deliberations show it; 404 before the first of them is accepted."""
    return _answered(await _plans(gateway).find(tenant, plan_id), 200)
