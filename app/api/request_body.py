"""Reads request bodies: strict JSON, bounded in bytes, time and depth."""

import asyncio
import codecs
import json
from typing import Any, TypeVar, cast

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from app.api.problems import (
    BodyTimeout,
    BodyTooLarge,
    InvalidJson,
    UnsupportedCoding,
    UnsupportedMediaType,
    body_problems,
)

BODY_BYTES_MAX = 262_144
BODY_TIMEOUT_S = 10.0
JSON_DEPTH_MAX = 32
_GZIP = b"\x1f\x8b"
SYNTAX_REMEDY = "Put names and texts in double quotes, and no comma before a closing bracket."

_Model = TypeVar("_Model", bound=BaseModel)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keyed = dict(pairs)
    if len(keyed) < len(pairs):
        raise InvalidJson("An object repeats a key. Name each field once.")
    return keyed


def _constant(name: str) -> Any:  # noqa: ANN401 -- the parser's hook
    raise InvalidJson(f"{name} is not JSON. Send a finite number or null.")


def _too_deep(value: object) -> bool:
    level = [value]
    for _ in range(JSON_DEPTH_MAX):
        inner = list[object]()
        for each in level:
            if isinstance(each, dict):
                inner += cast("dict[str, object]", each).values()
            elif isinstance(each, list):
                inner += cast("list[object]", each)
        level = inner
    return any(isinstance(each, dict | list) for each in level)


def checked_json(content: bytes) -> bytes:
    """`content` without a byte order mark; raises InvalidJson if it is not strict JSON in UTF-8, or nests deep."""
    content = content.removeprefix(codecs.BOM_UTF8)
    encoding = "gzip" if content.startswith(_GZIP) else json.detect_encoding(content)
    if encoding != "utf-8":
        remedy = "Send it uncompressed" if encoding == "gzip" else "Encode it as UTF-8"
        raise InvalidJson(f"The body is {encoding.upper()}, not UTF-8. {remedy}.")
    try:
        parsed = json.loads(content.decode(), object_pairs_hook=_pairs, parse_constant=_constant)
    except UnicodeDecodeError as exc:
        raise InvalidJson("The body is not UTF-8. Encode it as UTF-8.") from exc
    except json.JSONDecodeError as exc:
        raise InvalidJson(f"{exc.msg} at line {exc.lineno}, column {exc.colno}. {SYNTAX_REMEDY}") from exc
    except (RecursionError, ValueError) as exc:
        raise InvalidJson("The body nests too deep, or contains a number that is too long. Send less of both.") from exc
    if _too_deep(parsed):
        raise InvalidJson(f"The body nests deeper than {JSON_DEPTH_MAX} levels. Send fewer levels.")
    return content


async def read_body(request: Request) -> bytes:
    """The whole body; raises BodyTooLarge as early as possible, and BodyTimeout when it does not arrive."""
    declared = request.headers.get("content-length", "0")
    too_large = BodyTooLarge(f"The body exceeds {BODY_BYTES_MAX} bytes.")
    if declared.isdecimal() and int(declared) > BODY_BYTES_MAX:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                content += chunk
                if len(content) > BODY_BYTES_MAX:
                    raise too_large
    except ClientDisconnect as exc:
        raise BodyTimeout("The client disconnected within the body.") from exc
    except TimeoutError as exc:
        raise BodyTimeout(f"The body did not arrive within {BODY_TIMEOUT_S:g} seconds.") from exc
    return bytes(content)


async def body_of(request: Request, model: type[_Model], context: dict[str, Any] | None = None) -> _Model:
    """The request's body as `model`; an empty one reads as `{}`.

    Raises as `json_body` does, InvalidJson, and ValidationFailed naming every bad field.
    """
    return parsed_body(await json_body(request), model, context)


async def json_body(request: Request) -> bytes:
    """The whole body, unparsed; raises UnsupportedMediaType, BodyTooLarge and BodyTimeout."""
    content = await read_body(request)
    if content:
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json" and not media.endswith("+json"):
            raise UnsupportedMediaType("Send the body with Content-Type: application/json.")
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("identity", ""):
            detail = f"The body has the Content-Encoding {coding[:32]!r}."
            raise UnsupportedCoding(detail, "Content-Encoding", "Send it uncompressed.")
    return content


def parsed_body(content: bytes, model: type[_Model], context: dict[str, Any] | None = None) -> _Model:
    """A body as `model`; an empty one reads as `{}`. Raises BodyTooLarge, InvalidJson and ValidationFailed."""
    if len(content) > BODY_BYTES_MAX:
        raise BodyTooLarge(f"The body exceeds {BODY_BYTES_MAX} bytes.")
    try:
        return model.model_validate_json(checked_json(content or b"{}"), context=context)
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_input=False)[0]
        if fault["type"] == "json_invalid":
            where = str(fault.get("ctx", {}).get("error"))
            if "hex escape" in where:
                # Clients write it so when they cut a text within an emoji.
                remedy = "Cut texts between whole characters."
                raise InvalidJson(f"A text holds half of a surrogate pair: {where}. {remedy}") from exc
            raise InvalidJson(f"The body is not strict JSON. {SYNTAX_REMEDY}") from exc
        raise body_problems(exc, model) from exc
