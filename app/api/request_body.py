"""Reads request bodies: strict JSON, bounded in bytes, time, depth and values."""

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
from app.deliberation.errors import QueueFull
from app.tenant_slots import TenantTurns

BODY_BYTES_MAX = 4_194_304
READ_BYTES_MAX = 2 * BODY_BYTES_MAX
BODY_TIMEOUT_S = 10.0
JSON_DEPTH_MAX = 32
JSON_VALUES_MAX = 10_000
"""The objects, lists and single values of one body: each costs the event loop, and a refused one more."""
# A longer body is read in its tenant's turn: the worst of this length takes the event loop some milliseconds.
OUT_OF_TURN_BYTES_MAX = 16_384
BODIES_WAITING_MAX = 16
"""The long bodies of one tenant that wait for a turn; each is in memory."""
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


def _check_values(content: bytes) -> None:
    """Raises InvalidJson for more values than a body may have, before they cost anything: each but one has a mark."""
    if _marks(content) <= JSON_VALUES_MAX:
        return
    bare = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A value has at most two strings, itself and its name, and a string has two quotation marks.
    too_many = bare.count(b'"') > 4 * JSON_VALUES_MAX
    # What stands outside of strings.
    if too_many or _marks(b"".join(bare.split(b'"')[::2])) > JSON_VALUES_MAX:
        raise InvalidJson(f"The body has more than {JSON_VALUES_MAX:,} values. Send fewer or longer ones.")


def _marks(content: bytes) -> int:
    return sum(map(content.count, (b",", b"[", b"{")))


def _check_size(parsed: object) -> None:
    """Raises InvalidJson for more values or levels than a body may have."""
    level, values = [parsed], 1
    for _ in range(JSON_DEPTH_MAX):
        inner = list[object]()
        for node in level:
            if isinstance(node, dict):
                inner += cast("dict[str, object]", node).values()
            elif isinstance(node, list):
                inner += cast("list[object]", node)
        level, values = inner, values + len(inner)
        if values > JSON_VALUES_MAX:
            raise InvalidJson(f"The body has more than {JSON_VALUES_MAX:,} values. Send fewer or longer ones.")
    if any(isinstance(node, dict | list) for node in level):
        raise InvalidJson(f"The body nests deeper than {JSON_DEPTH_MAX} levels. Send fewer levels.")


def checked_json(content: bytes) -> bytes:
    """`content` without a byte order mark; raises InvalidJson if it is not strict JSON in UTF-8 within the bounds."""
    content = content.removeprefix(codecs.BOM_UTF8)
    encoding = "gzip" if content.startswith(_GZIP) else json.detect_encoding(content)
    if encoding != "utf-8":
        remedy = "Send it uncompressed" if encoding == "gzip" else "Encode it as UTF-8"
        raise InvalidJson(f"The body is {encoding.upper()}, not UTF-8. {remedy}.")
    _check_values(content)
    try:
        parsed = json.loads(content.decode(), object_pairs_hook=_pairs, parse_constant=_constant)
    except UnicodeDecodeError as exc:
        raise InvalidJson("The body is not UTF-8. Encode it as UTF-8.") from exc
    except json.JSONDecodeError as exc:
        raise InvalidJson(f"{exc.msg} at line {exc.lineno}, column {exc.colno}. {SYNTAX_REMEDY}") from exc
    except (RecursionError, ValueError) as exc:
        raise InvalidJson("The body nests too deep, or contains a number that is too long. Send less of both.") from exc
    _check_size(parsed)
    return content


async def read_body(request: Request) -> bytes:
    """The whole body; raises BodyTooLarge, and BodyTimeout when it does not arrive.

    A body that is somewhat too large is read to its end: a client that still sends would lose the answer.
    """
    declared = request.headers.get("content-length", "0")
    too_large = BodyTooLarge(f"The body exceeds {BODY_BYTES_MAX} bytes.")
    if declared.isdecimal() and int(declared) > READ_BYTES_MAX:
        raise too_large
    content, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > READ_BYTES_MAX:
                    raise too_large
                if size <= BODY_BYTES_MAX:
                    content += chunk
    except ClientDisconnect as exc:
        raise BodyTimeout("The client disconnected within the body.") from exc
    except TimeoutError as exc:
        raise BodyTimeout(f"The body did not arrive within {BODY_TIMEOUT_S:g} seconds.") from exc
    if size > BODY_BYTES_MAX:
        raise too_large
    return bytes(content)


async def body_of(request: Request, model: type[_Model], context: dict[str, Any] | None = None) -> _Model:
    """The request's body as `model`; an empty one reads as `{}`.

    Raises as `json_body` does, InvalidJson, and ValidationFailed naming every bad field.
    """
    return parsed_body(await json_body(request), model, context)


async def json_body(request: Request) -> bytes:
    """The whole body, unparsed; a long one is returned in its tenant's turn, to be parsed before anything is awaited.

    Raises UnsupportedMediaType, BodyTooLarge, BodyTimeout and QueueFull.
    """
    content = await read_body(request)
    if content:
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json" and not media.endswith("+json"):
            raise UnsupportedMediaType("Send the body with Content-Type: application/json.")
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("identity", ""):
            detail = f"The body has the Content-Encoding {coding[:32]!r}."
            raise UnsupportedCoding(detail, "Content-Encoding", "Send it uncompressed.")
    if len(content) > OUT_OF_TURN_BYTES_MAX:
        await _turn(request)
    return content


async def _turn(request: Request) -> None:
    turns: TenantTurns = request.scope["state"]["body_turns"]
    # Without a tenant, as at a login, the addresses of clients take turns.
    tenant: str = request.scope["caller"].tenant or f"client {request.client.host if request.client else ''}"
    if turns.slots.waiting(tenant) >= BODIES_WAITING_MAX:
        raise QueueFull(f"{BODIES_WAITING_MAX} long bodies of this tenant wait to be read.", 1)
    await turns.begin(tenant)


def parsed_body(
    content: bytes, model: type[_Model], context: dict[str, Any] | None = None, bytes_max: int = BODY_BYTES_MAX
) -> _Model:
    """A body as `model`; an empty one reads as `{}`. Raises BodyTooLarge, InvalidJson and ValidationFailed."""
    if len(content) > bytes_max:
        raise BodyTooLarge(f"The body exceeds {bytes_max} bytes.")
    try:
        return model.model_validate_json(checked_json(content or b"{}"), context=context)
    except ValidationError as exc:
        # A syntax error is the only fault of its body. To list thousands of other faults is slow.
        fault = exc.errors(include_url=False, include_input=False)[0] if exc.error_count() == 1 else None
        if fault is not None and fault["type"] == "json_invalid":
            where = str(fault.get("ctx", {}).get("error"))
            if "hex escape" in where:
                # Clients write it so when they cut a text within an emoji.
                remedy = "Cut texts between whole characters."
                raise InvalidJson(f"A text holds half of a surrogate pair: {where}. {remedy}") from exc
            raise InvalidJson(f"The body is not strict JSON. {SYNTAX_REMEDY}") from exc
        raise body_problems(exc, model) from exc
