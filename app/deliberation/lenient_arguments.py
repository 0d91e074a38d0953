"""Arguments of tools as models mean them: values within strings, and numbers beyond a bound."""

import json
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, ValidationError

# A value within a string may hold further strings.
ROUNDS_MAX = 4
_WANTED: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("int_type", "float_type", "decimal_type"), (int, float)),
    **dict.fromkeys(("bool_type", "literal_error"), (bool,)),
    **dict.fromkeys(("list_type", "tuple_type"), (list,)),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), (dict,)),
}
_BOUNDS = {"less_than_equal": "le", "greater_than_equal": "ge"}


def as_meant(arguments: Mapping[str, Any], model: type[BaseModel], *, clamped: bool = False) -> dict[str, Any]:
    """The arguments with each string replaced that holds, as JSON, the number, list or object that `model` wants there.

    With `clamped` a number beyond a bound of `model` becomes the bound. What stays faulty is left to the model's check.
    """
    meant: dict[str, Any] = json.loads(json.dumps(arguments))
    for _ in range(ROUNDS_MAX):
        try:
            model.model_validate(meant)
        except ValidationError as invalid:
            faults = invalid.errors(include_url=False)
        else:
            return meant
        if not any([_replaced(meant, fault, clamped) for fault in faults]):
            return meant
    return meant


def _replaced(meant: dict[str, Any], fault: Mapping[str, Any], clamped: bool) -> bool:
    """Replace the value that a fault names, where its meaning is plain; returns whether it did."""
    holder, *rest = _holders(meant, fault["loc"])
    if not rest:
        return False
    place, kind = rest[0], str(fault["type"])
    if clamped and kind in _BOUNDS:
        bound = fault["ctx"][_BOUNDS[kind]]
        holder[place] = int(bound) if isinstance(holder[place], int) else bound
        return True
    if kind not in _WANTED or not isinstance(holder[place], str):
        return False
    try:
        value = json.loads(holder[place].strip().lower() if _WANTED[kind] == (bool,) else holder[place])
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, _WANTED[kind]) or isinstance(value, bool) != (_WANTED[kind] == (bool,)):
        return False
    holder[place] = value
    return True


def _holders(meant: Any, loc: tuple[int | str, ...]) -> list[Any]:  # noqa: ANN401 -- JSON
    """The list or object that holds the value at `loc`, and its place there; `meant` alone where there is none."""
    holder = meant
    for step in loc[:-1]:
        try:
            holder = holder[step]
        except (KeyError, IndexError, TypeError):
            return [meant]
    known = isinstance(holder, dict) and loc[-1] in cast("dict[str, Any]", holder)
    known |= isinstance(holder, list) and isinstance(loc[-1], int) and loc[-1] < len(cast("list[Any]", holder))
    return [holder, loc[-1]] if loc and known else [meant]
