"""The settings of the process that takes plans, read from the environment once."""

from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

from app.deliberation.specification import Token
from app.process_settings import listed, setting
from app.settings import AcceptanceRules

Tenants = Annotated[tuple[Token, ...], NoDecode, BeforeValidator(listed), Field(min_length=1)]


class PlanningSettings(AcceptanceRules):
    """The settings of `python -m app.planning`."""

    planning_tenants: Tenants = setting(
        ("default",),
        "Tenants whose plans are taken, separated by commas. A plan may name one; the first is that of the others.",
    )
    planning_host: str = setting("127.0.0.1", "Address of /healthz.", min_length=1)
    planning_port: int = setting(8083, "Port of /healthz; 0 takes a free one.", ge=0, le=65_535)
