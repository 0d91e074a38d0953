"""Events of the planning service, by NATS or HTTP: a plan was approved, a story moved on to another phase."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, LiteralString, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from app.api.problems import ValidationFailed, body_fault, body_problems
from app.api.requests import DeliberationRequest, Metadata, RoleName
from app.deliberation.roles import Complexity

PLAN_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$"
# Their names, joined by commas, fit in one value of metadata.
ROLES_MAX = 15
DESCRIPTION_CHARS_MAX = 32_000
_METADATA: TypeAdapter[dict[str, str]] = TypeAdapter(Metadata)

Line = Annotated[str, Field(min_length=1, max_length=512)]
PlanId = Annotated[str, Field(pattern=PLAN_ID_PATTERN)]


def _refusal(code: LiteralString, text: LiteralString, remedy: str) -> PydanticCustomError:
    return PydanticCustomError(code, text, {"remedy": remedy})


def _iso_8601(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        remedy = "Write it as 2026-01-01T00:00:00Z."
        raise _refusal("not_iso_8601", "Not a time in the form of ISO 8601", remedy) from None
    return text


def _taken_here(tenant: str | None, info: ValidationInfo) -> str | None:
    context: Any = info.context
    if tenant is not None and context is not None and tenant not in context["tenants"]:
        remedy = "Leave it out, or name a tenant whose plans are taken here."
        raise _refusal("foreign_tenant", "Plans of this tenant are not taken here", remedy)
    return tenant


def _not_blank(text: str) -> str:
    if not text.strip():
        raise _refusal("blank", "The text is blank", "Say what to deliberate about, or leave it out.")
    return text


def _lower(text: object) -> object:
    return text.lower() if isinstance(text, str) else text


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


Time = Annotated[str, Field(max_length=64), AfterValidator(_iso_8601)]


class PlanningEvent(BaseModel):
    """An event of another service: strict, with unknown fields kept. A validation context has the known `tenants`."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, hide_input_in_errors=True)

    story_id: PlanId
    timestamp: Time = Field(description="When it happened, in the form of ISO 8601")
    tenant: Annotated[str | None, AfterValidator(_taken_here)] = Field(
        default=None, description="Whose it is; by HTTP that of the key, by NATS one of PLANNING_TENANTS"
    )


class StoryTransition(PlanningEvent):
    """A story moved on from one phase to another."""

    from_phase: Line
    to_phase: Line

    @property
    def metadata(self) -> dict[str, str]:
        return {"from_phase": self.from_phase, "to_phase": self.to_phase, "transitioned_at": self.timestamp}


# The longest that a transition adds to a plan's metadata.
_ANY_TRANSITION = {"from_phase": "", "to_phase": "", "transitioned_at": ""}


_EXAMPLES: list[Any] = [
    {
        "story_id": "story-17",
        "plan_id": "plan-42",
        "approved_by": "po@example.com",
        "timestamp": "2026-01-01T00:00:00Z",
        "title": "Log in by a link",
        "roles": ["DEV"],
    }
]


class PlanRequest(PlanningEvent):
    """An approved plan. Unknown fields are kept as metadata of its deliberations, other values than text as JSON.

    A validation context has the gateway's `roles`, and the `tenants` whose plans are taken.
    """

    model_config = ConfigDict(json_schema_extra={"examples": _EXAMPLES})

    plan_id: PlanId = Field(description="With the tenant and a role it determines a deliberation's id")
    approved_by: Line
    roles: list[RoleName] = Field(
        default=[], max_length=ROLES_MAX, description="One deliberation for each; those of the complexity if absent"
    )
    title: Annotated[Line, AfterValidator(_not_blank)] | None = None
    description: Annotated[str, AfterValidator(_not_blank)] | None = Field(
        default=None, min_length=1, max_length=DESCRIPTION_CHARS_MAX
    )
    complexity: Annotated[Complexity | None, BeforeValidator(_lower)] = Field(
        default=None, description="Chooses the roles where none are given; `basic` if absent"
    )
    type: Line | None = None

    @model_validator(mode="after")
    def _fits_metadata(self) -> Self:
        try:
            self.metadata(self.roles, _ANY_TRANSITION)
        except ValidationError as invalid:
            raise body_problems(invalid, PlanRequest) from invalid
        return self

    def resolved_roles(self, by_complexity: Mapping[Complexity, Sequence[str]], known: Mapping[str, Any]) -> list[str]:
        complexity = self.complexity or "basic"
        chosen = list(dict.fromkeys(self.roles or by_complexity[complexity]))
        if unknown := [role for role in chosen if role not in known]:
            detail = f"The roles of {complexity} plans, {', '.join(unknown)} among them, are not all declared here"
            remedy = f"Name roles, of {', '.join(sorted(known))}."
            raise ValidationFailed([body_fault("/roles", "unknown_role", detail, remedy)])
        return chosen

    def metadata(self, roles: Sequence[str], transition: Mapping[str, str]) -> dict[str, str]:
        extra = {name: _text(value) for name, value in (self.model_extra or {}).items()}
        chosen = {name: value for name in ("type", "complexity") if (value := getattr(self, name)) is not None}
        own = {
            "story_id": self.story_id,
            "plan_id": self.plan_id,
            "approved_by": self.approved_by,
            "approved_at": self.timestamp,
            "plan_roles": ",".join(roles),
        }
        return _METADATA.validate_python({**extra, **chosen, **transition, **own})

    def of_role(self, role: str, metadata: dict[str, str]) -> DeliberationRequest:
        parts = [part for part in (self.title, self.description) if part is not None]
        task = "\n\n".join(parts) or f"Carry out your role's part of plan {self.plan_id} of story {self.story_id}."
        return DeliberationRequest(task=task, role=role, metadata=metadata)
