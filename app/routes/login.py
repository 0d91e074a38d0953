"""Routes: a browser's session. The client sends the key once; the browser keeps a cookie that scripts cannot read."""

from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import Literal

from fastapi import Request, Response
from pydantic import AwareDatetime, ConfigDict, Field

from app.access.authorization import DEVELOPER, cookie_name
from app.access.keys import Caller, Scope
from app.api.request_body import body_of
from app.api.request_model import (
    RequestModel,
)
from app.api.responses import answer, body, problems
from app.api.schemas import Resource, dump
from app.routes.dependencies import InGateway, OfCaller, api_router

_NO_STORE = {"Cache-Control": "no-store"}

router = api_router("sessions")


class LoginRequest(RequestModel):
    """The body of `POST /login`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"key": "dlb_…"}]})

    key: str = Field(
        min_length=1,
        max_length=256,
        description="An API key",
        json_schema_extra={"format": "password", "writeOnly": True},
    )


class Session(Resource):
    """The caller and its scopes."""

    mode: Literal["keys", "development"] = Field(description="`development`: this gateway requires no keys")
    tenant: str
    scopes: tuple[Scope, ...]
    key: str | None = Field(description="The key's name; null in development mode")
    expires_at: AwareDatetime | None = Field(description="When the credential expires; null if never")


def _session(caller: Caller) -> Response:
    ends_at_s = caller.valid_until_s
    session = Session(
        mode="keys" if caller.authenticated else "development",
        tenant=caller.tenant,
        scopes=tuple(sorted(caller.scopes)),
        key=caller.name or None,
        expires_at=None if ends_at_s is None or ends_at_s == inf else datetime.fromtimestamp(ends_at_s, UTC),
    )
    return Response(dump(session), headers=_NO_STORE, media_type="application/json")


@router.post(
    "/login",
    summary="Begin a browser's session with a key",
    responses={
        200: answer("The session, also as a cookie", "Set-Cookie", model=Session),
        **problems(400, 401, 403, 408, 413, 415, 422, 503),
    },
    openapi_extra={"requestBody": body("LoginRequest")},
)
async def log_in(request: Request, gateway: InGateway) -> Response:
    """The cookie holds a signed token, not the key; it ends after SESSION_LIFETIME, with its key, or by logging out."""
    access = gateway["access"]
    asked = await body_of(request, LoginRequest)
    if access.sessions is None:
        return _session(DEVELOPER)
    held, now_s = access.holder(asked.key), access.now_s()
    token, ends_at_s = access.sessions.begin(held, now_s)
    answered = _session(replace(held.caller, valid_until_s=ends_at_s))
    answered.set_cookie(
        cookie_name(request.scope),
        token,
        max_age=max(0, ends_at_s - int(now_s)),
        secure=request.scope["scheme"] == "https",
        httponly=True,
        samesite="strict",
    )
    return answered


@router.get(
    "/login",
    summary="The caller and its scopes",
    responses={200: answer("By key or by cookie", model=Session), **problems(503)},
)
async def get_session(caller: OfCaller) -> Response:
    """The tenant and the scopes of this request's credential."""
    return _session(caller)


@router.post(
    "/logout",
    summary="End a browser's session",
    status_code=204,
    responses={204: answer("The browser deletes the cookie", "Set-Cookie"), **problems(403)},
)
async def log_out(request: Request) -> Response:
    """Deletes the cookie. A copied token remains valid until its expiry or its key's revocation."""
    answered = Response(status_code=204, headers=_NO_STORE)
    secure = request.scope["scheme"] == "https"
    answered.delete_cookie(cookie_name(request.scope), secure=secure, httponly=True, samesite="strict")
    return answered
