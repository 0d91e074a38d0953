from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http.cookies import SimpleCookie
from typing import Any

import httpx
import pytest

from app.main import create_app
from app.openapi.document import document
from app.settings import Settings
from tests.components.access.keyed import PEPPER, bearer, make_key, revoke
from tests.components.openapi.documented import declarations
from tests.components.routes.listening import listening
from tests.components.routes.served import COORDINATOR, Served, served
from tests.fakes import FakeClock, InMemoryJournal

GATEWAY = {"key_pepper": PEPPER, "lists": True}
SAME_SITE = {"Sec-Fetch-Site": "same-origin"}


async def log_in(gateway: Served, key: str, url: str = "/login", **headers: str) -> httpx.Response:
    gateway.client.cookies.clear()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await gateway.client.post(url, json={"key": key}, headers=named)


def cookie_of(response: httpx.Response) -> dict[str, Any]:
    (header,) = response.headers.get_list("set-cookie")
    ((name, morsel),) = SimpleCookie(header).items()
    return {"name": name, "value": morsel.value, **{key: value for key, value in morsel.items() if value}}


async def test_a_login_sets_an_http_only_strict_cookie(gateway: Served) -> None:
    key = await make_key(gateway.journal, "acme", ("read", "submit"))
    response = await log_in(gateway, key)
    assert response.status_code == 200
    assert response.json() == {
        "mode": "keys",
        "tenant": "acme",
        "scopes": ["read", "submit"],
        "key": "of acme",
        "expires_at": "2026-01-01T12:00:00Z",
    }
    cookie = cookie_of(response)
    assert cookie | {"value": ""} == {
        "name": "deliberate", "value": "", "httponly": True, "samesite": "strict", "path": "/", "max-age": "43200",
    }  # fmt: skip
    assert key not in str(response.headers) + response.text
    assert response.headers["cache-control"] == "no-store"
    session = await gateway.client.get("/login")
    assert session.json() == response.json()
    assert (await gateway.client.get("/deliberations")).status_code == 200


async def test_over_https_the_cookie_is_secure_and_host_bound(gateway: Served) -> None:
    key = await make_key(gateway.journal)
    cookie = cookie_of(await log_in(gateway, key, "https://localhost/login"))
    assert (cookie["name"], cookie["secure"], cookie["path"]) == ("__Host-deliberate", True, "/")
    assert "domain" not in cookie
    gateway.client.cookies.clear()
    for name, status in (("__Host-deliberate", 200), ("deliberate", 401)):
        sent = {"Cookie": f"other=1; {name}={cookie['value']}"}
        assert (await gateway.client.get("https://localhost/roles", headers=sent)).status_code == status


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"key": "dlb_abcdefghijkl_" + "0" * 52}, 401, "unauthenticated"),
        ({"key": "whatever"}, 401, "unauthenticated"),
        ({"key": ""}, 422, "invalid_request"),
        ({}, 422, "invalid_request"),
        ({"key": 1}, 422, "invalid_request"),
        ({"key": "x", "remember": True}, 422, "invalid_request"),
    ],
)
async def test_an_invalid_key_starts_no_session(gateway: Served, body: Any, status: int, code: str) -> None:
    response = await gateway.client.post("/login", json=body)
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert "set-cookie" not in response.headers


async def test_a_form_of_another_site_cannot_log_in(gateway: Served) -> None:
    key = await make_key(gateway.journal)
    form = await gateway.client.post("/login", content=f'{{"key": "{key}"}}', headers={"Content-Type": "text/plain"})
    assert form.status_code == 415
    for headers in ({"Sec_Fetch_Site": "cross-site"}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        refused = await log_in(gateway, key, **headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "cross_site")
        assert "set-cookie" not in refused.headers


async def test_a_session_ends_by_expiry_revocation_or_logout(gateway: Served) -> None:
    key = await make_key(gateway.journal)
    await log_in(gateway, key)
    gateway.clock.advance(43_199)
    assert (await gateway.client.get("/login")).status_code == 200
    gateway.clock.advance(1)
    over = await gateway.client.get("/login")
    assert (over.status_code, over.json()["detail"]) == (401, "The session has ended: log in again.")
    await log_in(gateway, key)
    out = await gateway.client.post("/logout", headers=SAME_SITE)
    assert (out.status_code, cookie_of(out)["max-age"]) == (204, "0")
    assert (await gateway.client.get("/login")).status_code == 401
    await log_in(gateway, key)
    await revoke(gateway.journal, key)
    assert (await gateway.client.get("/login")).status_code == 401


async def test_a_bearer_key_beats_the_cookie_even_if_invalid(gateway: Served) -> None:
    acme, rival = await make_key(gateway.journal, "acme"), await make_key(gateway.journal, "rival")
    await log_in(gateway, rival)
    assert (await gateway.client.get("/login", headers=bearer(acme))).json()["tenant"] == "acme"
    assert (await gateway.client.get("/login", headers=bearer("dlb_nothing"))).status_code == 401


@asynccontextmanager
async def with_cors(*origins: str) -> AsyncGenerator[httpx.AsyncClient, None]:
    journal = InMemoryJournal(replies={"control.coordinator": [COORDINATOR]})
    async with served(journal=journal, key_pepper=PEPPER, cors_origins=origins) as running:
        app = create_app(running.gateway["settings"], journal, FakeClock())

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(running.gateway)}, receive, send)

        transport = httpx.ASGITransport(app=with_state, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            key = await make_key(journal)
            client.headers.update(bearer(key))
            yield client


@pytest.mark.parametrize("path", ["/deliberations", "/deliberations/x", "/deliberations/x/events", "/nothing"])
async def test_a_page_of_a_listed_origin_may_read_answers_and_refusals(path: str) -> None:
    async with with_cors("https://a.example") as client:
        response = await client.get(path, headers={"Origin": "https://a.example"})
        assert response.headers["access-control-allow-origin"] == "https://a.example"
        assert response.headers["access-control-allow-credentials"] == "true"
        assert {"ETag", "Retry-After", "RateLimit"} <= set(
            response.headers["access-control-expose-headers"].split(", ")
        )
        assert "Origin" in response.headers["vary"]
        client.headers.pop("Authorization")
        refused = await client.get(path, headers={"Origin": "https://a.example"})
        assert refused.headers["access-control-allow-origin"] == "https://a.example"


@pytest.mark.parametrize(
    "origin",
    ["https://b.example", "http://a.example", "https://a.example:8443", "https://a.example.evil.example", "null"],
)
async def test_an_unlisted_origin_cannot_read_answers(origin: str) -> None:
    async with with_cors("https://a.example") as client:
        response = await client.get("/deliberations", headers={"Origin": origin})
        assert "access-control-allow-origin" not in response.headers
        preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        refused = await client.options("/deliberations", headers=preflight)
        assert refused.status_code == 400
        assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize(
    ("method", "headers", "allowed"),
    [
        ("POST", "authorization,content-type,idempotency-key,prefer", True),
        ("GET", "Last-Event-ID, Authorization", True),
        ("DELETE", "authorization", True),
        ("PUT", "authorization", False),
        ("HEAD", "x-tenant", True),
        ("POST", "x tenant", False),
    ],
)
async def test_a_preflight_allows_the_contracts_methods_and_headers(method: str, headers: str, allowed: bool) -> None:
    asked = {
        "Origin": "https://a.example",
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": headers,
    }
    async with with_cors("https://a.example") as client:
        client.headers.pop("Authorization")
        response = await client.options("/deliberations", headers=asked)
    assert (response.status_code == 200) == allowed
    assert response.headers["x-request-id"]


async def test_cors_allows_every_header_of_the_contract() -> None:
    parameters = [each for _, _, operation in declarations() for each in operation.get("parameters", [])]
    read = ", ".join(sorted({each["name"].lower() for each in parameters if each["in"] == "header"}))
    async with with_cors("https://a.example") as client:
        asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "GET"}
        preflight = await client.options("/deliberations", headers=asked | {"Access-Control-Request-Headers": read})
        assert preflight.headers["access-control-allow-headers"] == read
        response = await client.get("/deliberations", headers={"Origin": "https://a.example"})
        exposed = {name.lower() for name in response.headers["access-control-expose-headers"].split(", ")}
    sent = {name.lower() for name in document()["components"]["headers"]}
    # Headers for the browser or for proxies, and those on the safelist.
    not_for_pages = {"set-cookie", "allow", "vary", "x-accel-buffering", "cache-control"}
    assert sent - exposed - not_for_pages == set()


async def test_a_listed_origin_can_watch_a_stream_with_the_cookie() -> None:
    async with listening(key_pepper=PEPPER, cors_origins=("https://a.example",)) as gateway:
        key = await make_key(gateway.journal)
        made = await gateway.client.post("/deliberations", json={"task": "t"}, headers=bearer(key))
        origin = {"Origin": "https://a.example"}
        assert (await gateway.client.post("/login", json={"key": key}, headers=origin)).status_code == 200
        path = f"/deliberations/{made.json()['id']}/events"
        async with gateway.client.stream("GET", path, headers=origin) as stream:
            assert stream.status_code == 200
            assert stream.headers["access-control-allow-origin"] == "https://a.example"
            assert stream.headers["access-control-allow-credentials"] == "true"
            assert b"stream.opened" in await anext(stream.aiter_bytes())


async def test_a_login_in_development_mode_sets_no_cookie() -> None:
    async with served() as gateway:
        response = await gateway.client.post("/login", json={"key": "whatever"})
        assert (response.status_code, response.json()["mode"]) == (200, "development")
        assert "set-cookie" not in response.headers
        assert Settings().key_pepper is None
