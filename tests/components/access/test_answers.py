import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.authorization import ACCESS
from app.access.keys import SCOPES, Scope
from app.api.schemas import dump
from app.deliberation.calls import Call, FactProblem
from app.deliberation.facts import Failed
from app.lifecycle.specify import deliberation_id
from app.webhooks.attempts import Attempt, AttemptFailed, AttemptProblem, DeliveryEnded, DeliveryKey
from app.webhooks.resources import Delivery, DeliveryReceipt
from tests.components.access.keyed import PEPPER, bearer, make_key, play
from tests.components.openapi.documented import filled, operations
from tests.components.routes.served import COORDINATOR, Served, served, written
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.story import NOW

CANARY = "canary-of-acme"
# The name of a role is the installation's: `read` and `admin` show it.
ROLE = "CANARYROLE"
ROLES = f"roles:\n  {ROLE}:\n    persona: You keep a {CANARY}.\n"
BODY: dict[str, Any] = {
    "task": f"Name a colour, {CANARY}.",
    "role": ROLE,
    "num_agents": 2,
    "constraints": {
        "requirements": [CANARY],
        "rubric": [{"id": CANARY, "description": CANARY}],
        "metadata": {"k": CANARY},
    },
    "metadata": {"k": CANARY},
    "webhook": {"url": f"https://hooks.example/{CANARY}", "metadata": {"k": CANARY}},
}
PLAN: dict[str, Any] = {
    "plan_id": "plan-1",
    "story_id": CANARY,
    "approved_by": CANARY,
    "timestamp": "2026-01-01T00:00:00Z",
    "title": CANARY,
    "roles": [ROLE],
}
CHAT: dict[str, Any] = {"model": f"single/{ROLE}", "messages": [{"role": "user", "content": CANARY}]}
RESPONSE: dict[str, Any] = {"model": f"single/{ROLE}", "input": CANARY, "metadata": {"canary": CANARY}}
RUN: dict[str, Any] = {
    "threadId": "t",
    "runId": "r",
    "messages": [{"id": "m", "role": "user", "content": CANARY}],
    "forwardedProps": {"deliberation": {"strategy": "single", "role": ROLE}},
}
SETS: list[tuple[Scope, ...]] = [set_ for size in range(4) for set_ in combinations(SCOPES, size)]
# Operations with content in a permitted answer; the others have none for any caller.
CONTENT = {
    "create_deliberation", "cancel_deliberation", "create_chat_completion", "list_deliberations", "get_deliberation",
    "run_agent", "connect_agent", "create_response", "get_response", "cancel_response", "list_input_items",
    "read_deliberation_events", "read_events", "approve_plan", "get_plan", "list_deliveries", "redeliver",
    "list_roles", "get_role",
}  # fmt: skip
SHOWN = {
    "id", "status", "revision", "created_at", "started_at", "ended_at", "deadline_at", "last_event_id",
    "retention_until", "links",
}  # fmt: skip
ANSWERS = {"attempts", "next_attempt_at"}
Asked = tuple[str, str, dict[str, str], Any]


@dataclass
class Kept:
    gateway: Served
    tenant: str
    ids: dict[str, str]
    delivery: str

    async def ask(self, asked: Asked, headers: dict[str, str]) -> httpx.Response:
        method, path, more, body = asked
        sent = {"Content-Type": "application/json", **headers, **more}
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        return await self.gateway.client.request(method, path, content=content, headers=sent)


def _canaried(call: Call) -> str:
    return written(call).replace('"c"', f'"{CANARY}"').replace("draft", f"draft {CANARY}")


async def _filled(gateway: Served, tenant: str, headers: dict[str, str]) -> Kept:
    ids: dict[str, str] = {}
    for name in ("ended", "running", "cancelling", "failed"):
        response = await gateway.client.post("/deliberations", json=BODY, headers=headers | {"Idempotency-Key": name})
        assert response.status_code == 202, response.text
        ids[name] = response.json()["id"]
    await play(gateway, tenant, ids["ended"], write=_canaried)
    await play(gateway, tenant, ids["running"], until_stage=2, write=_canaried)
    await gateway.client.post(f"/deliberations/{ids['cancelling']}/cancel", json={"reason": CANARY}, headers=headers)
    problem = FactProblem(code="no_answers", detail=CANARY, retryable=False)
    await gateway.journal.append(tenant, Failed(deliberation_id=ids["failed"], ts=NOW, problem=problem))
    assert (await gateway.client.post("/plans", json=PLAN, headers=headers)).status_code == 202
    listed = (await gateway.client.get(f"/deliberations/{ids['ended']}/deliveries", headers=headers)).json()["items"]
    delivery = listed[0]["id"]
    refused = Attempt(at=NOW, duration_ms=5, status_code=500, problem=AttemptProblem(code="http_status", detail=CANARY))
    for record in (
        AttemptFailed(fact="f", number=1, attempt=refused, next_attempt_at=NOW),
        DeliveryEnded(fact="f", ending="exhausted", attempt=refused),
    ):
        await gateway.journal.write(DeliveryKey(tenant, ids["ended"], delivery).subject(record), dump(record))
    chat = deliberation_id(tenant, "chat", NOW)
    accepted = {"Idempotency-Key": "chat"}
    asking = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=CHAT, headers=headers | accepted))
    await until(lambda: any(chat in record.subject for record in gateway.journal.records))
    await play(gateway, tenant, chat, write=_canaried)
    assert (await asking).status_code == 200
    known = len(gateway.journal.records)
    asking = asyncio.create_task(gateway.client.post("/ag-ui", json=RUN, headers=headers))
    await until(lambda: len(gateway.journal.records) > known)
    await play(gateway, tenant, gateway.journal.records[-1].tokens[2], write=_canaried)
    assert (await asking).status_code == 200
    return Kept(gateway, tenant, ids, delivery)


@pytest.fixture
def roles_file(tmp_path: Path) -> Path:
    path = tmp_path / "roles.yaml"
    path.write_text(ROLES)
    return path


@pytest.fixture
async def with_keys(roles_file: Path) -> AsyncGenerator[Kept, None]:
    journal = InMemoryJournal(replies={"control.coordinator": [COORDINATOR]})
    key = await make_key(journal, "acme")
    async with served(journal=journal, key_pepper=PEPPER, webhooks=True, roles_file=roles_file, lists=True) as gateway:
        yield await _filled(gateway, "acme", bearer(key))


@pytest.fixture
async def in_development(roles_file: Path) -> AsyncGenerator[Kept, None]:
    async with served(webhooks=True, roles_file=roles_file, lists=True) as gateway:
        yield await _filled(gateway, "default", {})


@pytest.fixture(autouse=True)
def no_wait_for_the_end_of_a_cancelled_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.facades.door.CANCEL_WAIT_S", 0)


def requests(kept: Kept, name: str, method: str, path: str) -> Iterator[Asked]:
    match name:
        case "create_deliberation":
            for key in kept.ids:  # replays
                for more in ({}, {"Prefer": "wait=1"} if key in ("ended", "failed") else {}):
                    yield method, path, {"Idempotency-Key": key, **more}, BODY
            yield method, path, {"Idempotency-Key": "ended"}, {**BODY, "task": "Another."}
            yield method, path, {}, {**BODY, "role": "NOBODY"}
            yield method, path, {}, {"task": "No role is named."}
            yield method, path, {}, b"{"
        case "quote_deliberation":
            yield method, path, {}, BODY
            yield method, path, {}, {**BODY, "role": "NOBODY"}
            yield method, path, {}, {**BODY, "budget": {"max_calls": 1}}
        case "create_chat_completion":
            yield method, path, {"Idempotency-Key": "chat"}, CHAT
            yield method, path, {"Idempotency-Key": "chat"}, {**CHAT, "stream": True}
            yield method, path, {"Idempotency-Key": "failed"}, CHAT
            yield method, path, {}, {**CHAT, "model": "council/NOBODY"}
        case "create_response":
            yield method, path, {"Idempotency-Key": "ended-response"}, {**RESPONSE, "background": True}
            yield method, path, {}, {**RESPONSE, "model": "council/NOBODY"}
        case "run_agent" | "connect_agent":
            yield method, path, {}, RUN
            yield method, path, {}, {**RUN, "runId": "other", "threadId": "other", "messages": []}
        case "approve_plan":
            yield method, path, {}, PLAN
            yield method, path, {}, {**PLAN, "description": CANARY}
            yield method, path, {}, {**PLAN, "roles": ["NOBODY"]}
        case "log_in":
            yield method, path, {}, {"key": "dlb_none"}
        case _:
            body = None if method == "GET" else {}
            headers = {"Accept": "application/json"} if name.startswith("read_") else {}
            for id in kept.ids.values() if re.search(r"\{(deliberation|response)_id\}", path) else ("",):
                values = {
                    "deliberation_id": id,
                    "response_id": f"resp_{id}",
                    "plan_id": PLAN["plan_id"],
                    "delivery_id": kept.delivery,
                }
                url = filled(path, **values, role=ROLE, model=f"council/{ROLE}")
                for more in ({}, {"Prefer": "wait=1"} if id == kept.ids["ended"] else {}, {"If-None-Match": "*"}):
                    yield method, url, headers | more, body


def told(response: httpx.Response) -> str:
    return f"{dict(response.headers)}\n{response.text}".replace(response.request.url.path, "PATH")


@pytest.mark.parametrize(("name", "method", "path"), operations())
async def test_an_answer_shows_only_what_the_scopes_allow(with_keys: Kept, name: str, method: str, path: str) -> None:
    needed = ACCESS[name]
    seen = set[tuple[Scope, ...]]()
    for scopes in SETS:
        key = await make_key(with_keys.gateway.journal, "acme", scopes)
        for asked in requests(with_keys, name, method, path):
            response = await with_keys.ask(asked, bearer(key))
            missing = [scope for scope in needed or () if scope not in scopes]
            if missing:
                assert response.status_code == 403, (asked, scopes)
                assert all(f" {scope}" in response.text for scope in missing)
                assert f'scope="{" ".join(needed or ())}"' in response.headers["www-authenticate"]
            else:
                assert response.status_code != 403 and (response.status_code != 401 or name == "log_in"), asked
            if "read" not in scopes:
                assert CANARY not in told(response), (asked, scopes)
                assert ROLE not in told(response) or "admin" in (needed or ()), (asked, scopes)
            elif CANARY in told(response):
                seen.add(scopes)
    allowed = {scopes for scopes in SETS if "read" in scopes and set(needed or ()) <= set(scopes)}
    assert seen == (allowed if name in CONTENT else set()), "the canary is where it can be found"


@pytest.mark.parametrize(("name", "method", "path"), operations())
async def test_without_a_credential_no_answer_shows_content(with_keys: Kept, name: str, method: str, path: str) -> None:
    for asked in requests(with_keys, name, method, path):
        response = await with_keys.ask(asked, {})
        assert (response.status_code == 401) == (ACCESS[name] is not None) or name == "log_in"
        assert CANARY not in told(response) and ROLE not in told(response)


@pytest.mark.parametrize(("name", "method", "path"), operations())
async def test_development_mode_shows_everything(in_development: Kept, name: str, method: str, path: str) -> None:
    answers = [await in_development.ask(asked, {}) for asked in requests(in_development, name, method, path)]
    assert not {401, 403} & {answer.status_code for answer in answers}
    assert any(CANARY in told(answer) for answer in answers) == (name in CONTENT)


@pytest.mark.parametrize(("name", "method", "path"), [each for each in operations() if each[1] == "GET"])
async def test_a_get_writes_nothing(in_development: Kept, name: str, method: str, path: str) -> None:
    journal = in_development.gateway.journal
    before = list(journal.records)
    for asked in requests(in_development, name, method, path):
        await in_development.ask(asked, {})
    assert journal.records == before, name


async def test_a_submit_only_key_gets_id_status_and_times(with_keys: Kept) -> None:
    submit = bearer(await make_key(with_keys.gateway.journal, "acme", ("submit",)))
    everything = bearer(await make_key(with_keys.gateway.journal, "acme"))
    for name, id in with_keys.ids.items():
        path = f"/deliberations/{id}"
        outline = await with_keys.gateway.client.post(f"{path}/cancel", headers=submit)
        whole = await with_keys.gateway.client.get(path, headers=everything)
        shown, full = outline.json(), whole.json()
        assert shown == {field: full[field] for field in SHOWN}, name
        assert outline.headers["etag"] != whole.headers["etag"], "another representation has another validator"
        again = await with_keys.gateway.client.get(
            path, headers=everything | {"If-None-Match": outline.headers["etag"]}
        )
        assert again.status_code == 200


async def test_a_redelivery_hides_the_receivers_answers_without_read(with_keys: Kept) -> None:
    path = f"/deliberations/{with_keys.ids['ended']}/deliveries/{with_keys.delivery}/redeliver"
    submit = bearer(await make_key(with_keys.gateway.journal, "acme", ("submit",)))
    response = await with_keys.gateway.client.post(path, headers=submit)
    shown = response.json()
    assert (response.status_code, shown["redelivering"]) == (202, True)
    assert shown.keys() == DeliveryReceipt.model_fields.keys() == Delivery.model_fields.keys() - ANSWERS
