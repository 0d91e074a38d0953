"""Routes: the API keys of the caller's tenant, for callers with the scope `admin`.

A key that is made here has no right that its maker lacks, expires no later, and ends with its maker's revocation. So a
stolen key leaves nothing behind.
"""

from datetime import timedelta
from typing import Annotated

import structlog
from fastapi import Path, Request, Response
from pydantic import AfterValidator, AwareDatetime, ConfigDict, Field

from app.access.key_writer import LIFETIME, KeyWriter
from app.access.keyring import Keyring
from app.access.keys import NAME_CHARS_MAX, HeldKey, KeyBook, KeyState, Scope, checked_name
from app.api.refusals import InsufficientScope, KeysReadOnly, RateLimited, Unauthenticated
from app.api.request_body import body_of
from app.api.request_model import (
    MaybeWhole,
    RequestModel,
)
from app.api.responses import answer, body, problems
from app.api.schemas import Resource, dump
from app.deliberation.errors import NotFound
from app.routes.dependencies import Gateway, InGateway, OfCaller, api_router

_LIFETIME_S = int(LIFETIME.total_seconds())
_LIFETIME_S_MAX = 10 * 365 * 86_400
_NO_STORE = {"Cache-Control": "no-store"}

router = api_router("keys")
log = structlog.get_logger(__name__)


class KeyRequest(RequestModel):
    """The body of `POST /keys`. The tenant is the caller's."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ci", "scopes": ["submit", "read"]}]})

    name: Annotated[str, AfterValidator(checked_name)] = Field(
        min_length=1, max_length=NAME_CHARS_MAX, description="Purpose or holder of the key"
    )
    scopes: list[Scope] = Field(default=["submit", "read"], min_length=1, description="Only those of the caller")
    lifetime_seconds: MaybeWhole = Field(
        default=_LIFETIME_S,
        ge=60,
        le=_LIFETIME_S_MAX,
        description="Null: as long as the caller's key. No key lasts longer than the one that made it",
    )


class KeyResource(Resource):
    """A key without its secret."""

    key_id: str
    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    maker: str | None = Field(description="Id of the key that made it, whose revocation ends it; null for the operator")
    created_at: AwareDatetime
    expires_at: AwareDatetime | None
    revoked_at: AwareDatetime | None = Field(description="Null also where only the maker was revoked")
    status: KeyState


class NewKey(KeyResource):
    """A new key, with the text that is never shown again."""

    key: str = Field(json_schema_extra={"format": "password"})


class KeyList(Resource):
    """The keys of the caller's tenant, oldest first."""

    items: tuple[KeyResource, ...]
    writable: bool = Field(description="Whether this gateway makes and revokes keys")


def _resource(gateway: Gateway, book: KeyBook, key: HeldKey) -> KeyResource:
    fact = key.fact
    return KeyResource(
        key_id=fact.key_id,
        name=fact.name,
        tenant=fact.tenant,
        scopes=fact.scopes,
        maker=fact.maker,
        created_at=fact.created_at,
        expires_at=fact.expires_at,
        revoked_at=book.revoked.get(fact.key_id),
        status=book.state(key, gateway["clock"].now()),
    )


def _writer(gateway: Gateway) -> tuple[Keyring, KeyWriter]:
    keyring, writer = gateway["access"].keyring, gateway["key_writer"]
    if keyring is None or writer is None:
        raise KeysReadOnly(development=keyring is None)
    return keyring, writer


@router.get(
    "/keys",
    summary="List the tenant's keys",
    responses={200: answer("Keys without their secrets", model=KeyList), **problems(503)},
)
async def list_keys(gateway: InGateway, caller: OfCaller) -> Response:
    """The list has expired and revoked keys too. Keys of other tenants are shown by `deliberate keys list` alone."""
    keyring = gateway["access"].keyring
    book = KeyBook() if keyring is None else keyring.book
    held = [key for key in book.keys.values() if key.fact.tenant == caller.tenant]
    key_list = KeyList(
        items=tuple(_resource(gateway, book, key) for key in sorted(held, key=lambda key: key.fact.created_at)),
        writable=gateway["key_writer"] is not None,
    )
    return Response(dump(key_list), headers=_NO_STORE, media_type="application/json")


@router.post(
    "/keys",
    summary="Make a key",
    status_code=201,
    responses={
        201: answer("The key, shown this once", model=NewKey),
        **problems(400, 403, 408, 409, 413, 415, 422, 429, 503),
    },
    openapi_extra={"requestBody": body("KeyRequest")},
)
async def create_key(request: Request, gateway: InGateway, caller: OfCaller) -> Response:
    """A key of the caller's tenant, with some of the caller's scopes, that ends with the caller's key.

    A tenant makes at most ten a minute. 409 where the gateway asks for no keys, or may not write them.
    """
    keyring, writer = _writer(gateway)
    asked = await body_of(request, KeyRequest)
    if missing := [scope for scope in asked.scopes if scope not in caller.scopes]:
        raise InsufficientScope(("admin", *asked.scopes), missing)
    rate = gateway["key_rates"].admit(caller.tenant)
    if not rate.admitted:
        raise RateLimited(gateway["key_rates"].per_minute, rate.reset_s, "new keys")
    maker = keyring.good(caller.key_id)
    if maker is None:
        raise Unauthenticated("This key has been revoked.", credential_sent=True)
    lifetime = None if asked.lifetime_seconds is None else timedelta(seconds=asked.lifetime_seconds)
    fact, key, record = await writer.create(
        asked.name, caller.tenant, list(asked.scopes), gateway["clock"].now(), lifetime, maker
    )
    keyring.apply(record)
    log.info("key_created", key_id=fact.key_id, tenant=fact.tenant, scopes=fact.scopes, by=caller.key_id)
    shown = _resource(gateway, keyring.book, HeldKey.of(fact))
    made = NewKey(key=key, **shown.model_dump())
    return Response(dump(made), 201, _NO_STORE, "application/json")


@router.delete(
    "/keys/{key_id}",
    summary="Revoke a key",
    status_code=204,
    responses={204: answer("It is revoked, with each key that it made"), **problems(403, 404, 409, 503)},
)
async def revoke_key(
    gateway: InGateway, caller: OfCaller, key_id: Annotated[str, Path(description="Id of a key of the tenant")]
) -> Response:
    """A revocation lasts for ever. Every gateway refuses the key within a second, and ends its sessions and streams."""
    keyring, writer = _writer(gateway)
    held = keyring.book.keys.get(key_id)
    if held is None or held.fact.tenant != caller.tenant:
        raise NotFound("There is no key with this id.")
    if key_id not in keyring.book.revoked:
        keyring.apply(await writer.revoke(key_id, gateway["clock"].now()))
        log.info("key_revocation", key_id=key_id, tenant=caller.tenant, by=caller.key_id)
    return Response(status_code=204, headers=_NO_STORE)
