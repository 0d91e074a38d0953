"""The base of all bodies of requests, and whole numbers as JSON has them."""

from types import NoneType
from typing import Annotated, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator


class RequestModel(BaseModel):
    """Base of every body: frozen, strict, without unknown fields. Null is absent where it is no value of the field."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: object) -> object:
        if not isinstance(body, dict) or None not in cast("dict[str, object]", body).values():
            return cast("object", body)
        absent = {
            known
            for name, field in cls.model_fields.items()
            if not field.is_required() and NoneType not in get_args(field.annotation)
            for known in (name, field.alias)
        }
        entries = cast("dict[str, object]", body).items()
        return {name: value for name, value in entries if value is not None or name not in absent}


def _whole(number: object) -> object:
    return int(number) if isinstance(number, float) and number.is_integer() else number


# JSON has one kind of number, and JSON Schema calls 3.0 an integer.
Whole = Annotated[int, BeforeValidator(_whole)]
MaybeWhole = Annotated[int | None, BeforeValidator(_whole)]
