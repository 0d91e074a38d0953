import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.api.schemas import dump
from app.api.webhook_payloads import EVENTS, delivery_id
from app.cli import cli
from app.deliberation.facts import Accepted, decode
from app.webhooks.attempts import (
    Attempt,
    AttemptFailed,
    AttemptProblem,
    DeliveryEnded,
    DeliveryKey,
    DeliveryRecord,
    Redelivered,
    RedeliveryRequested,
)
from app.webhooks.routes import REDELIVERIES_MAX
from app.webhooks.signatures import tenant_secret
from tests.components.routes.served import COORDINATOR, SENDER, Served, served
from tests.fakes import InMemoryJournal
from tests.story import NOW

GATEWAY = {"webhooks": True, "webhook_hosts": "receiver.test:9000"}
URL = "https://hooks.example/hook?token=1"
TAKEN = Attempt(at=NOW + timedelta(seconds=9), duration_ms=5, status_code=200)


def refused(second: int, status: int | None = 500) -> Attempt:
    problem = AttemptProblem(code="http_status", detail="No.")
    return Attempt(at=NOW + timedelta(seconds=second), duration_ms=5, status_code=status, problem=problem)


async def ended_with_webhook(gateway: Served, **webhook: Any) -> str:
    id = await gateway.accepted(webhook={"url": URL, **webhook})
    await gateway.play(id)
    return id


async def listed(gateway: Served, id: str, **query: Any) -> list[dict[str, Any]]:
    response = await gateway.client.get(f"/deliberations/{id}/deliveries", params=query)
    assert response.status_code == 200, response.text
    return response.json()["items"]


async def write(gateway: Served, id: str, delivery: str, *records: DeliveryRecord) -> None:
    key = DeliveryKey("default", id, delivery)
    for record in records:
        await gateway.journal.write(key.subject(record), dump(record))


def failed(number: int, attempt: Attempt) -> AttemptFailed:
    return AttemptFailed(fact="f", number=number, attempt=attempt, next_attempt_at=NOW + timedelta(seconds=60 * number))


def ended(ending: Any, attempt: Attempt | None) -> DeliveryEnded:
    return DeliveryEnded(fact="f", ending=ending, attempt=attempt)


async def test_accepts_stores_and_returns_a_webhook(gateway: Served) -> None:
    webhook = {"url": URL, "events": ["stage.closed", "deliberation.accepted", "stage.closed"], "metadata": {"a": "b"}}
    response = await gateway.post({"task": "t", "webhook": webhook})
    assert response.status_code == 202
    shown = {"url": URL, "events": ["deliberation.accepted", "stage.closed"], "metadata": {"a": "b"}}
    assert response.json()["webhook"] == shown
    accepted = decode(gateway.journal.records[-1].data)
    assert isinstance(accepted, Accepted) and accepted.specification.webhook is not None
    assert accepted.specification.webhook.model_dump(mode="json") == shown
    assert response.json()["links"]["deliveries"] == f"/deliberations/{response.json()['id']}/deliveries"


@pytest.mark.parametrize(
    ("webhook", "pointer", "code"),
    [
        ({"url": "http://hooks.example/"}, "/webhook/url", "unfit_url"),
        ({"url": "https://169.254.169.254/latest"}, "/webhook/url", "unfit_url"),
        ({"url": "https://user:pw@hooks.example/"}, "/webhook/url", "unfit_url"),
        ({"url": ""}, "/webhook/url", "string_too_short"),
        ({"url": "https://hooks.example/" + "a" * 3_000}, "/webhook/url", "string_too_long"),
        ({"url": 1}, "/webhook/url", "string_type"),
        ({}, "/webhook/url", "missing"),
        ({"url": URL, "events": []}, "/webhook/events", "too_short"),
        ({"url": URL, "events": ["call.delta"]}, "/webhook/events/0", "literal_error"),
        ({"url": URL, "events": "deliberation.completed"}, "/webhook/events", "list_type"),
        ({"url": URL, "metadata": {"a": 1}}, "/webhook/metadata/a", "string_type"),
        ({"url": URL, "secret": "x"}, "/webhook/secret", "extra_forbidden"),
        ("https://hooks.example/", "/webhook", "model_type"),
    ],
)
async def test_rejects_an_invalid_webhook_and_names_the_field(
    gateway: Served, webhook: object, pointer: str, code: str
) -> None:
    response = await gateway.post({"task": "t", "webhook": webhook})
    assert response.status_code == 422, response.text
    (fault,) = response.json()["errors"]
    assert (fault["pointer"], fault["code"]) == (pointer, code) and fault["remedy"]
    assert "pw" not in response.text and gateway.journal.records == []


async def test_rejects_webhooks_where_they_are_off() -> None:
    async with served() as gateway:
        response = await gateway.post({"task": "t", "webhook": {"url": URL}})
        assert response.status_code == 422
        assert [error["code"] for error in response.json()["errors"]] == ["webhooks_off"]
        assert (await gateway.post({"task": "t"})).status_code == 202


async def test_lists_a_delivery_per_subscribed_event_that_happened(gateway: Served) -> None:
    id = await gateway.accepted(strategy="independent", webhook={"url": URL, "events": list(EVENTS)})
    (waiting,) = await listed(gateway, id)
    assert (waiting["type"], waiting["status"], waiting["attempts"]) == ("deliberation.accepted", "pending", [])
    await gateway.play(id)
    items = await listed(gateway, id)
    facts = await gateway.journal.facts("default", id)
    assert [item["id"] for item in items] == [delivery_id(fact) for fact in facts]
    assert [item["event_id"] for item in items] == [f"memory-{fact.sequence}" for fact in facts]
    assert items[-1]["type"] == "deliberation.completed"
    pages = [await listed(gateway, id, limit=2, cursor=begin) for begin in range(0, len(items), 2)]
    assert [item for page in pages for item in page] == items
    page = (await gateway.client.get(f"/deliberations/{id}/deliveries?limit=2")).json()
    assert page["next_cursor"] == "2"
    last = (await gateway.client.get(f"/deliberations/{id}/deliveries?limit=200")).json()
    assert last["next_cursor"] is None


@pytest.mark.parametrize(
    ("records", "status", "statuses", "next_in_s"),
    [
        ([], "pending", [], None),
        ([ended("delivered", TAKEN)], "delivered", [200], None),
        ([failed(1, refused(1))], "retrying", [500], 60),
        ([failed(1, refused(1)), failed(2, refused(2, None))], "retrying", [500, None], 120),
        ([failed(1, refused(1)), ended("delivered", TAKEN)], "delivered", [500, 200], None),
        ([failed(1, refused(1)), ended("exhausted", refused(2))], "failed", [500, 500], None),
        ([failed(1, refused(1)), ended("stopped", refused(2, 410))], "stopped", [500, 410], None),
        ([failed(1, refused(1)), ended("expired", None)], "failed", [500], None),
        (
            [ended("exhausted", refused(1)), Redelivered(fact="f", number=1, attempt=TAKEN)],
            "delivered",
            [500, 200],
            None,
        ),
        ([failed(1, refused(1)), Redelivered(fact="f", number=1, attempt=refused(2))], "retrying", [500, 500], 60),
        ([ended("delivered", TAKEN), Redelivered(fact="f", number=1, attempt=None)], "delivered", [200], None),
    ],
)
async def test_a_delivery_shows_its_status_attempts_and_next_attempt(
    gateway: Served, records: list[DeliveryRecord], status: str, statuses: list[int | None], next_in_s: int | None
) -> None:
    id = await ended_with_webhook(gateway)
    ((delivery),) = await listed(gateway, id)
    await write(gateway, id, delivery["id"], *records)
    (found,) = await listed(gateway, id)
    assert found["status"] == status
    assert [attempt["status_code"] for attempt in found["attempts"]] == statuses
    assert [attempt["number"] for attempt in found["attempts"]] == list(range(1, len(statuses) + 1))
    due = None if next_in_s is None else (NOW + timedelta(seconds=next_in_s)).isoformat().replace("+00:00", "Z")
    assert found["next_attempt_at"] == due


async def test_410_stops_all_deliveries_of_the_deliberation(gateway: Served) -> None:
    id = await ended_with_webhook(gateway, events=["deliberation.accepted", "stage.opened", "deliberation.completed"])
    first, second, *_ = await listed(gateway, id)
    await write(gateway, id, first["id"], failed(1, refused(1)))
    await write(gateway, id, second["id"], ended("stopped", refused(2, 410)))
    assert {each["status"] for each in await listed(gateway, id)} == {"stopped"}


async def redelivered(gateway: Served, id: str, delivery: str) -> dict[str, Any]:
    response = await gateway.client.post(f"/deliberations/{id}/deliveries/{delivery}/redeliver")
    assert response.status_code == 202, response.text
    return response.json()


async def test_repeated_redelivery_requests_write_one_record_while_pending(gateway: Served) -> None:
    id = await ended_with_webhook(gateway)
    (delivery,) = await listed(gateway, id)
    await write(gateway, id, delivery["id"], ended("exhausted", refused(1)))
    for _ in range(3):
        assert (await redelivered(gateway, id, delivery["id"]))["redelivering"] is True
    requests = [record for record in gateway.journal.records if record.tokens[-2] == "redelivery"]
    assert [record.tokens[-1] for record in requests] == ["1"]
    assert json.loads(requests[0].data)["fact"] == f"deliberations.default.{id}.end"
    await write(gateway, id, delivery["id"], Redelivered(fact="f", number=1, attempt=refused(2)))
    (found,) = await listed(gateway, id)
    assert (found["redelivering"], found["attempts"][-1]["requested"]) == (False, True)
    await redelivered(gateway, id, delivery["id"])
    assert [r.tokens[-1] for r in gateway.journal.records if r.tokens[-2] == "redelivery"] == ["1", "2"]


async def test_a_redelivery_before_the_first_attempt_writes_no_record(gateway: Served) -> None:
    id = await ended_with_webhook(gateway)
    (delivery,) = await listed(gateway, id)
    assert (await redelivered(gateway, id, delivery["id"]))["status"] == "pending"
    assert not [record for record in gateway.journal.records if record.tokens[0] == "webhooks"]


async def test_rejects_redeliveries_beyond_the_maximum(gateway: Served) -> None:
    id = await ended_with_webhook(gateway)
    (delivery,) = await listed(gateway, id)
    await write(gateway, id, delivery["id"], ended("exhausted", refused(1)))
    for number in range(1, REDELIVERIES_MAX + 1):
        request = RedeliveryRequested(fact="f", number=number, at=NOW)
        await write(gateway, id, delivery["id"], request, Redelivered(fact="f", number=number, attempt=refused(2)))
    response = await gateway.client.post(f"/deliberations/{id}/deliveries/{delivery['id']}/redeliver")
    assert (response.status_code, response.json()["code"]) == (409, "too_many_redeliveries")


@pytest.mark.parametrize("delivery", ["dlv_none", "DLV", "*", "a.b", "x" * 80, "%2e%2e"])
async def test_redelivery_of_an_unknown_delivery_is_not_found(gateway: Served, delivery: str) -> None:
    id = await ended_with_webhook(gateway)
    response = await gateway.client.post(f"/deliberations/{id}/deliveries/{delivery}/redeliver")
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert not [record for record in gateway.journal.records if record.tokens[0] == "webhooks"]


@pytest.mark.parametrize("path", ["/deliberations/{}/deliveries", "/deliberations/{}/deliveries/dlv_1/redeliver"])
async def test_deliveries_of_a_missing_deliberation_are_refused(gateway: Served, path: str) -> None:
    method = "POST" if path.endswith("redeliver") else "GET"
    assert (await gateway.client.request(method, path.format("nothing"))).status_code == 404
    id = await ended_with_webhook(gateway)
    assert (await gateway.client.delete(f"/deliberations/{id}")).status_code == 204
    assert (await gateway.client.request(method, path.format(id))).status_code == 410
    gateway.journal.available = False
    response = await gateway.client.request(method, path.format(id))
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")


async def test_metrics_include_the_senders_queues() -> None:
    journal = InMemoryJournal(replies={"control.coordinator": [COORDINATOR], "control.webhooks": [SENDER]})
    async with served(journal=journal, webhooks=True) as gateway:
        figures = (await gateway.client.get("/metrics")).text.splitlines()
    for line in (
        'webhook_attempts_total{outcome="failed",sender="webhooks-7"} 2.0',
        'webhook_deliveries_total{ending="delivered",sender="webhooks-7"} 3.0',
        'webhook_attempts_in_flight{sender="webhooks-7"} 1.0',
        'webhook_attempts_waiting{sender="webhooks-7"} 4.0',
        'webhook_queue{queue="attempts",state="taken"} 8.0',
        "webhook_senders 1.0",
    ):
        assert line in figures


async def test_never_logs_the_url(gateway: Served, capsys: pytest.CaptureFixture[str]) -> None:
    id = await ended_with_webhook(gateway)
    (delivery,) = await listed(gateway, id)
    await redelivered(gateway, id, delivery["id"])
    assert "hooks.example" not in capsys.readouterr().out


@pytest.mark.parametrize("kept", [True, False])
def test_the_command_prints_the_tenants_secrets(tmp_path: Path, kept: bool) -> None:
    masters = ["n" * 40, "o" * 40]
    environment = {} if kept else {"WEBHOOK_SECRETS": ",".join(masters)}
    if kept:
        (tmp_path / "webhook_secret").write_text(",".join(masters))
    arguments = ["webhooks", "secret", "--tenant", "acme", "--data-dir", str(tmp_path), "--json"]
    result = CliRunner(env={"WEBHOOK_SECRETS": None, **environment}).invoke(cli, arguments)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"tenant": "acme", "secrets": [tenant_secret(each, "acme") for each in masters]}
    assert masters[0] not in result.output


@pytest.mark.parametrize(
    ("given", "arguments"), [("", []), ("short", []), ("x" * 40 + ",short", []), ("x" * 40, ["--tenant", "*"])]
)
def test_the_command_prints_nothing_without_a_valid_secret(tmp_path: Path, given: str, arguments: list[str]) -> None:
    runner = CliRunner(env={"WEBHOOK_SECRETS": given})
    result = runner.invoke(cli, ["webhooks", "secret", "--data-dir", str(tmp_path), *arguments])
    assert result.exit_code == 2 and "whsec" not in result.output
