import io
import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from app.access.authorization import ACCESS, Access
from app.access.keys import SCOPES, Scope, key_id_of, new_key
from app.access.loopback import is_loopback
from app.access.origins import checked_origin
from app.access.rate_limit import Rates
from app.deliberation.errors import InvalidRequest
from app.main import DrainingServer, access_of, serve
from app.settings import Settings, check_exposure
from tests.components.access.keyed import PEPPER, accepted, bearer, make_key, play, revoke
from tests.components.openapi.documented import filled, operations
from tests.components.routes.listening import listening
from tests.components.routes.served import ANSWERING, Served, served
from tests.conditions import until
from tests.fakes import FakeClock, InMemoryJournal
from tests.story import NOW

GATEWAY = {"key_pepper": PEPPER, "lists": True}


def refusal(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    problem = response.json()
    assert (problem["code"], problem["status"]) == (code, status)
    assert problem["errors"] and all(error["remedy"] for error in problem["errors"])
    return problem


@pytest.mark.parametrize(("name", "method", "path"), operations())
async def test_every_route_requires_the_scope_of_the_table(gateway: Served, name: str, method: str, path: str) -> None:
    async def asked(scopes: tuple[Scope, ...] | None) -> httpx.Response:
        headers = {} if scopes is None else bearer(await make_key(gateway.journal, scopes=scopes))
        if name == "read_events":  # a page, since the stream of a whole tenant has no end
            headers["Accept"] = "application/json"
        return await gateway.client.request(method, filled(path, role="DEV", model="council/DEV"), headers=headers)

    needed = ACCESS[name]
    without = await asked(None)
    if needed is None:
        assert without.status_code not in (401, 403)
        return
    assert without.status_code == 401
    assert without.headers["www-authenticate"] == 'Bearer realm="deliberation-gateway"'
    assert (await asked(needed)).status_code not in (401, 403)
    for scope in SCOPES:
        answered = await asked((scope,))
        missing = [each for each in needed if each != scope]
        assert (answered.status_code == 403) == bool(missing), scope
        if missing:
            assert f'error="insufficient_scope", scope="{" ".join(needed)}"' in answered.headers["www-authenticate"]
            assert all(each in answered.text for each in missing)


async def test_the_credential_is_checked_before_anything_else(gateway: Served) -> None:
    """The gateway reads neither body nor query, and does not reveal whether an id exists."""
    for method, path, body in (
        ("POST", "/deliberations", b"{"),
        ("GET", "/deliberations?limit=many", b""),
        ("GET", "/deliberations/x/events?after=nonsense", b""),
        ("GET", "/roles/NOBODY", b""),
    ):
        response = await gateway.client.request(method, path, content=body)
        refusal(response, 401, "unauthenticated")


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic dXNlcjpwYXNz"},
        {"Authorization": "Bearer not-a-key"},
        {"Authorization": "Bearer é"},
        {"Authorization": f"Bearer {new_key()[1]}"},
        {"Authorization": f"Bearer {new_key()[1]} more"},
        {"X-API-Key": "{key}"},
        {"Cookie": "deliberate={key}"},
        {"Cookie": "deliberate=abcdefghijkl.9999999999.AAAA"},
    ],
)
async def test_rejects_invalid_keys(gateway: Served, headers: dict[str, str]) -> None:
    key = await make_key(gateway.journal)
    sent = [(name, value.format(key=key).encode("latin-1")) for name, value in headers.items()]
    response = await gateway.client.get("/roles", headers=sent)
    refusal(response, 401, "unauthenticated")
    given = "X-API-Key" not in headers
    assert ('error="invalid_token"' in response.headers["www-authenticate"]) == given
    assert (await gateway.client.get("/roles", headers=bearer(key))).status_code == 200


async def test_rejects_two_authorization_headers(gateway: Served) -> None:
    key = await make_key(gateway.journal)
    sent = [("Authorization", f"Bearer {key}")] * 2
    refusal(await gateway.client.get("/roles", headers=sent), 401, "unauthenticated")


async def test_a_key_is_valid_until_expiry_or_revocation(gateway: Served) -> None:
    key = await make_key(gateway.journal, expires_at=NOW + timedelta(seconds=60))
    other = await make_key(gateway.journal)
    gateway.clock.present = NOW + timedelta(seconds=59)
    assert (await gateway.client.get("/roles", headers=bearer(key))).status_code == 200
    gateway.clock.present = NOW + timedelta(seconds=60)
    assert (
        "expired" in refusal(await gateway.client.get("/roles", headers=bearer(key)), 401, "unauthenticated")["detail"]
    )
    await revoke(gateway.journal, other)
    response = await gateway.client.get("/roles", headers=bearer(other))
    assert "revoked" in refusal(response, 401, "unauthenticated")["detail"]
    guessed = other[:-1] + ("0" if other[-1] != "0" else "1")
    response = await gateway.client.get("/roles", headers=bearer(guessed))
    assert "revoked" not in refusal(response, 401, "unauthenticated")["detail"], (
        "without the secret, the answer does not reveal the key's state"
    )


async def test_answers_503_until_the_keys_are_loaded() -> None:
    journal = InMemoryJournal(replies=dict(ANSWERING))
    async with served(journal=journal, key_pepper=PEPPER) as gateway:
        ring = gateway.gateway["access"].keyring
        assert ring is not None
        ring.caught_up = False
        key = await make_key(journal)
        response = await gateway.client.get("/roles", headers=bearer(key))
        assert (response.status_code, response.headers["retry-after"]) == (503, "2")
        ready = await gateway.client.get("/readyz")
        assert [error["pointer"] for error in ready.json()["errors"]] == ["keys"]
        assert "nats" not in ready.text
        ring.caught_up = True
        gateway.gateway["surveyor"].forget()
        assert (await gateway.client.get("/readyz")).json()["checks"] == [
            "journal", "streams", "catalog", "keys", "coordinator", "roles",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        ("/roles?api_key={key}", "api_key"),
        ("/roles?access_token=x", "access_token"),
        ("/deliberations?limit=3&token=x", "token"),
        ("/roles?Authorization=x", "Authorization"),
        ("/roles?whatever={key}", "whatever"),
        ("/roles?metadata.k={quoted}", "metadata.k"),
        ("/roles?{key}", "a parameter"),
        ("/roles?{key}=1", "a parameter"),
        ("/deliberations/{key}", ""),
        ("/deliberations/x/{quoted}/events", ""),
        ("/{key}", ""),
        ("/docs?key={key}", "key"),
        ("/healthz?key={key}", "key"),
        ("/v1/models?api_key={key}", "api_key"),
    ],
)
async def test_rejects_a_key_anywhere_in_the_url(gateway: Served, path: str, pointer: str) -> None:
    key = await make_key(gateway.journal)
    quoted = "".join(f"%{ord(sign):02X}" for sign in key)
    response = await gateway.client.get(path.format(key=key, quoted=quoted), headers=bearer(key))
    (fault,) = refusal(response, 400, "key_in_url")["errors"]
    assert fault["pointer"] == pointer
    assert "Authorization: Bearer" in fault["remedy"] and "revoke" in fault["remedy"]
    assert key not in response.text and quoted not in response.text


@pytest.mark.parametrize("query", ["status=pending", "metadata.token=x", "metadata.key=y", "role=dlb", "limit=1"])
async def test_a_query_without_credentials_passes(gateway: Served, query: str) -> None:
    key = await make_key(gateway.journal)
    assert (await gateway.client.get(f"/deliberations?{query}", headers=bearer(key))).status_code == 200


async def test_no_log_event_contains_a_key(gateway: Served, logged: io.StringIO) -> None:
    key = await make_key(gateway.journal)
    secret = key.rpartition("_")[2]
    client, sent = gateway.client, bearer(key)
    await client.get("/deliberations", headers=sent)
    await client.get("/roles", headers={"Authorization": f"Basic {key}"})
    await client.get(f"/roles?api_key={key}")
    await client.get(f"/{key}")
    await client.post("/login", json={"key": key})
    await client.post("/login", json={"key": key, "more": key})
    await client.post("/login", content=key, headers={"Content-Type": "application/json"})
    session = (await client.post("/login", json={"key": key})).headers["set-cookie"].split(";")[0].partition("=")[2]
    await client.get("/stats", headers={"Cookie": f"deliberate={session}"})
    misplaced = await client.get("/roles", headers=sent | {"X-Request-Id": key})
    assert secret not in misplaced.headers["x-request-id"]
    await client.post("/deliberations", json={"task": key}, headers=sent | {"Idempotency-Key": key})
    gateway.gateway["roles"] = None  # pyright: ignore[reportGeneralTypeIssues] -- a defect, whatever it is
    assert (await client.get("/roles", headers=sent)).status_code == 500
    await revoke(gateway.journal, key)
    text = logged.getvalue()
    assert "request_crashed" in text and "key_revoked" in text
    assert secret not in text and session not in text and PEPPER not in text
    events = [json.loads(line) for line in text.splitlines()]
    by_key = [event for event in events if event.get("key_id") == key_id_of(key) and event["event"] == "request"]
    assert {event["tenant"] for event in by_key} == {"acme"} and len(by_key) >= 4, "each request event has the key's id"


async def test_a_revocation_ends_only_the_streams_of_its_key() -> None:
    async with listening(key_pepper=PEPPER) as gateway:
        first, second = await make_key(gateway.journal), await make_key(gateway.journal)
        gateway.client.headers.update(bearer(second))
        response = await gateway.client.post("/deliberations", json={"task": "t"})
        watched = response.json()["id"]
        async with (
            gateway.client.stream("GET", f"/deliberations/{watched}/events", headers=bearer(first)) as theirs,
            gateway.watching(watched) as others,
        ):
            assert theirs.status_code == 200
            chunks = theirs.aiter_bytes()
            assert b"stream.opened" in await anext(chunks)
            assert (await anext(others)).event == "stream.opened"
            with anyio.fail_after(1):
                await revoke(gateway.journal, first)
                rest = b"".join([chunk async for chunk in chunks])
            assert b"deliberation.completed" not in rest
            again = await gateway.client.get(f"/deliberations/{watched}/events", headers=bearer(first))
            assert (again.status_code, again.json()["code"]) == (401, "unauthenticated")
            assert gateway.feed.streams == 1
            assert (await anext(others)).event == "deliberation.snapshot"
        await until(lambda: gateway.feed.streams == 0)


async def test_a_stream_ends_when_its_key_expires() -> None:
    async with listening(key_pepper=PEPPER) as gateway:
        key = await make_key(gateway.journal, expires_at=NOW + timedelta(seconds=0.3))
        response = await gateway.client.post("/deliberations", json={"task": "t"}, headers=bearer(key))
        path = f"/deliberations/{response.json()['id']}/events"
        with anyio.fail_after(5):
            async with gateway.client.stream("GET", path, headers=bearer(key)) as stream:
                assert stream.status_code == 200
                assert b"stream.opened" in b"".join([chunk async for chunk in stream.aiter_bytes()])


async def test_a_closed_stream_detaches_from_its_key() -> None:
    async with listening(key_pepper=PEPPER) as gateway:
        key = await make_key(gateway.journal)
        gateway.client.headers.update(bearer(key))
        watched = (await gateway.client.post("/deliberations", json={"task": "t"})).json()["id"]
        ring = gateway.server.lifespan.state["access"].keyring
        async with gateway.watching(watched) as frames:
            await anext(frames)
            assert len(ring._open) == 1
        await until(lambda: not ring._open)


async def test_without_a_pepper_every_answer_declares_development_mode() -> None:
    async with served(lists=True) as gateway:
        for path, status in (
            ("/roles", 200),
            ("/nothing", 404),
            ("/readyz", 200),
            ("/docs", 200),
            ("/openapi.json", 200),
        ):
            response = await gateway.client.get(path)
            assert (response.status_code, response.headers["development-mode"]) == (status, "no keys, loopback only")
        roles = gateway.gateway["roles"]
        gateway.gateway["roles"] = None  # pyright: ignore[reportGeneralTypeIssues] -- a defect, whatever it is
        crashed = await gateway.client.get("/roles")
        assert (crashed.status_code, crashed.headers["development-mode"]) == (500, "no keys, loopback only")
        gateway.gateway["roles"] = roles
        assert (await gateway.client.get("/readyz")).json()["mode"] == "development"
        assert "Development mode" in (await gateway.client.get("/openapi.json")).json()["info"]["description"]
        session = (await gateway.client.get("/login")).json()
        assert (session["mode"], session["tenant"], session["scopes"]) == ("development", "default", sorted(SCOPES))
        ignored = await gateway.client.get("/stats", headers=bearer("whatever"))
        assert ignored.status_code == 200 and "ratelimit" not in ignored.headers


async def test_with_a_pepper_no_answer_declares_development_mode(gateway: Served) -> None:
    key = await make_key(gateway.journal)
    for path in ("/roles", "/nothing", "/readyz"):
        assert "development-mode" not in (await gateway.client.get(path, headers=bearer(key))).headers
    assert (await gateway.client.get("/readyz")).json()["mode"] == "keys"
    async with listening(key_pepper=PEPPER) as whole:
        text = (await whole.client.get("/openapi.json")).json()["info"]["description"]
        assert "needs an API key" in text and "Development mode" not in text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.7", "gateway", "example.com", "localhost.example"])
def test_without_keys_only_loopback_hosts_are_allowed(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    assert not is_loopback(host)
    if not host:
        return
    monkeypatch.setattr(DrainingServer, "run", lambda _: pytest.fail("it listens"))
    with pytest.raises(InvalidRequest, match=r"KEY_PEPPER.*openssl rand -hex 32.*deliberate keys create"):
        serve(Settings(host=host))
    check_exposure(Settings(host=host, key_pepper=PEPPER))  # pyright: ignore[reportArgumentType]


def test_a_settings_error_does_not_show_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_PEPPER", "short-canary")
    with pytest.raises(ValueError, match="KEY_PEPPER") as caught:
        Settings()
    assert "canary" not in str(caught.value)
    monkeypatch.setenv("KEY_PEPPER", "canary" * 10)
    assert "canary" not in repr(Settings()) + str(Settings().model_dump())


@pytest.mark.parametrize(
    "origin",
    ["*", "https://*.example", "example.com", "https://a/", "https://A.example", "https://a:443", "null", "ftp://a"],
)
def test_rejects_inexact_origins(monkeypatch: pytest.MonkeyPatch, origin: str) -> None:
    with pytest.raises(ValueError, match="not an origin"):
        checked_origin(origin)
    monkeypatch.setenv("CORS_ORIGINS", f"https://fine.example, {origin}")
    with pytest.raises(ValueError, match="CORS_ORIGINS"):
        Settings()


SCOPE_MEANS: Mapping[Scope, tuple[str, str]] = {
    "submit": (
        "start, cancel and delete deliberations of the tenant, and redeliver events",
        "ids, status, revision, times, cursors and links; of a delivery also the event's type",
    ),
    "read": ("read and watch deliberations of the tenant; roles, strategies, models", "all content of the tenant"),
    "admin": (
        "read the installation's own figures, which count all tenants together; make and revoke keys of the tenant",
        "counts, names of roles, hosts and engines; names and scopes of the tenant's keys; no content",
    ),
}
_OUTLINE = "id, status, revision, times, cursor, links; with `read` everything"
_ANSWERS: Mapping[str, str] = {
    "create_deliberation": _OUTLINE,
    "quote_deliberation": "calls, tokens and cost of the request; with `read` by the tenant's means",
    "cancel_deliberation": _OUTLINE,
    "delete_deliberation": "nothing",
    "create_file": "what the file is",
    "list_files": "the tenant's files: names, types, sizes",
    "get_file": "one file likewise",
    "get_file_content": "its bytes",
    "delete_file": "nothing",
    "create_openai_file": "what the file is",
    "list_openai_files": "the tenant's files: names, types, sizes",
    "get_openai_file": "one file likewise",
    "get_openai_file_content": "its bytes",
    "delete_openai_file": "the id",
    "create_chat_completion": "the verdict",
    "create_response": "the verdict, and the members' work",
    "get_response": "the verdict, the members' work, instructions, metadata",
    "cancel_response": "the verdict, the members' work, instructions, metadata",
    "delete_response": "the id",
    "list_input_items": "the conversation",
    "refuse_operation": "nothing",
    "run_agent": "the verdict, and the members' work, as it happens",
    "connect_agent": "the conversation, the verdict, and the members' work, as it happens",
    "approve_plan": "the plan's story, and the status of each role",
    "get_plan": "the plan's story, and the status of each role",
    "list_deliberations": "the tenant's deliberations: 200 characters of the task, metadata",
    "get_deliberation": "everything",
    "read_deliberation_events": "everything, as it happens",
    "read_events": "everything of the tenant, as it happens",
    "list_deliveries": "each delivery with its attempts",
    "redeliver": "id, type, cursor, status, links; with `read` also the attempts",
    "get_stats": "counts, durations, tokens, cost and wins of the tenant, and its spend of the day; by=tenant needs "
    "`admin`, and shows all tenants",
    "list_roles": "roles as declared, their personas, their replicas and engines",
    "get_role": "one role likewise",
    "list_strategies": "strategies and their parameters",
    "list_tools": "tool servers of the roles: names, addresses, tools, limits, health",
    "list_models": "every strategy with every role",
    "get_model": "one model likewise",
    "get_metrics": "counts over all tenants, by role and engine; spends by tenant",
    "get_status": "faults and remedies; replicas, hosts, engines, streams and queues",
    "list_keys": "the tenant's keys without their secrets",
    "create_key": "the new key, this once; it has no right that the caller's lacks, and ends with it",
    "revoke_key": "nothing",
    "get_session": "tenant, scopes and name of the credential, and its end",
    "log_in": "the same, of the key that was sent",
    "log_out": "nothing",
    "get_health": "that the process lives",
    "get_readiness": "the mode, and which checks pass",
    "call_mcp": "what the operation shows that a message asks for, within the scopes that it needs",
    "call_a2a": "the verdict, and the task; each method needs scopes of its own",
    "get_agent_card": "strategies, and the card's URL",
}


def access_table() -> str:
    rows = ["| endpoint | needs | the answer shows |", "|---|---|---|"]
    # Messages of MCP and A2A are no operations of the document.
    a2a = (("call_a2a", "POST", "/a2a"), ("get_agent_card", "GET", "/.well-known/agent-card.json"))
    for operation, method, path in (*operations(), ("call_mcp", "POST", "/mcp"), *a2a):
        needed = ACCESS[operation]
        named = "nothing" if needed is None else ", ".join(f"`{scope}`" for scope in needed) or "any key"
        rows.append(f"| `{method} {path}` | {named} | {_ANSWERS[operation]} |")
    return "\n".join(rows) + "\n"


def test_the_access_table_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    assert _ANSWERS.keys() == ACCESS.keys(), "say in _ANSWERS what each operation shows"
    table = access_table()
    assert table in page, f"write this between the markers of docs/security.md:\n{table}"
    for scope, (means, shows) in SCOPE_MEANS.items():
        assert f"| `{scope}` | {means} | {shows} |" in page


def test_an_operation_outside_the_table_is_refused() -> None:
    access = Access(FakeClock(), None, None, Rates(1))
    with pytest.raises(KeyError):
        access.permit({"type": "http", "headers": [], "method": "GET", "scheme": "http"}, "unheard_of")
    assert access_of(Settings(), FakeClock()).development


async def test_a_key_for_default_reaches_deliberations_of_development_mode() -> None:
    async with served() as before:
        made = await before.accepted()
    async with served(journal=before.journal, key_pepper=PEPPER) as gateway:
        key = await make_key(gateway.journal, "default")
        assert (await gateway.client.get(f"/deliberations/{made}", headers=bearer(key))).status_code == 200
        other = await accepted(gateway, await make_key(gateway.journal, "acme"))
        await play(gateway, "acme", other)
        assert (await gateway.client.get(f"/deliberations/{other}", headers=bearer(key))).status_code == 404
