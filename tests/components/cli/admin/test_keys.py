import io
from datetime import timedelta

import pytest
import typer
from rich.console import Console
from starlette.responses import JSONResponse
from typer.testing import CliRunner, Result

from app.access.keys import SCOPES, HeldKey, KeyBook, Pepper, created
from app.api.schemas import DeliberationReceipt
from app.cli import cli
from app.cli.admin.keys import KeyListing, keys_table, lifetime
from app.cli.client import GatewayClient
from app.cli.exits import CommandError
from tests.components.access.keyed import PEPPER
from tests.components.cli.council_run import ID, StubGateway, problem
from tests.story import NOW

runner = CliRunner()
KEY = "dlb_canary000000_" + "c" * 52
CLIENT_COMMANDS = (
    ["ask", "Write a rate limiter.", "--detach"],
    ["list"],
    ["show", ID],
    ["cancel", ID],
    ["roles"],
    ["strategies"],
    ["watch", ID, "--json"],
)


def invoke(*arguments: str, **environment: str) -> Result:
    return runner.invoke(cli, arguments, env={"KEY_PEPPER": None, "DELIBERATE_API_KEY": None, **environment})


@pytest.mark.parametrize("arguments", CLIENT_COMMANDS, ids=lambda arguments: arguments[0])
def test_every_client_command_sends_the_key_and_never_prints_it(
    url: str, stub: StubGateway, arguments: list[str]
) -> None:
    by_option = invoke(*arguments, "--url", url, "--api-key", KEY)
    by_environment = invoke(*arguments, "--url", url, DELIBERATE_API_KEY=f"{KEY}\n")
    without = invoke(*arguments, "--url", url)
    assert [result.exit_code for result in (by_option, by_environment, without)] == [0, 0, 0]
    sent = [headers.get("authorization") for _, _, headers in stub.requests]
    assert len(sent) >= 3
    assert set(sent) == {f"Bearer {KEY}", None}
    assert sent[0] == f"Bearer {KEY}" and sent[-1] is None
    for result in (by_option, by_environment):
        assert KEY not in result.output
    assert all(KEY not in path for _, path, _ in stub.requests)


@pytest.mark.parametrize("arguments", CLIENT_COMMANDS, ids=lambda arguments: arguments[0])
def test_help_shows_the_variable_without_its_value(arguments: list[str]) -> None:
    result = invoke(arguments[0], "--help", DELIBERATE_API_KEY=KEY)
    assert "DELIBERATE_API_KEY" in result.output
    assert KEY not in result.output


@pytest.mark.parametrize(
    ("code", "status", "remedy"),
    [
        ("unauthenticated", 401, "--api-key or DELIBERATE_API_KEY"),
        ("insufficient_scope", 403, "use one with the scope admin"),
        ("rate_limited", 429, "send fewer requests; the gateway says in 7 s"),
    ],
)
def test_a_refusal_prints_a_remedy(url: str, stub: StubGateway, code: str, status: int, remedy: str) -> None:
    gateway_remedy = "use one with the scope admin"
    fault = {"location": "header", "pointer": "Authorization", "code": code, "detail": "d", "remedy": gateway_remedy}
    stub.answers.append(problem(code, status, [fault]))
    result = invoke("roles", "--url", url, "--api-key", KEY)
    assert result.exit_code == 4
    assert f"error {code}" in result.stderr
    assert remedy in result.stderr.replace("\n", " ")
    assert KEY not in result.output


def test_ask_with_a_key_that_may_not_read_names_the_deliberation_and_the_scope(url: str, stub: StubGateway) -> None:
    whole = stub.council.resource
    receipt = {name: whole[name] for name in DeliberationReceipt.model_fields}
    for arguments, code in (((), 4), (("--watch",), 4), (("--detach",), 0)):
        stub.answers.append(JSONResponse(receipt, 202))
        result = invoke("ask", "Write a rate limiter.", *arguments, "--url", url, "--api-key", KEY)
        assert result.exit_code == code and ID in result.output
        if code:
            text = " ".join(result.stderr.split())
            assert "error insufficient_scope" in text and "lacks the scope read" in text
            assert f"deliberate watch {ID}" in text and KEY not in text
    assert [method for method, _, _ in stub.requests] == ["POST"] * 3, "the key is not tried on reads"


@pytest.mark.parametrize("key", ["two words", "é", "a\nb", "\x00"])
def test_rejects_a_malformed_key_without_printing_it(key: str) -> None:
    with pytest.raises(CommandError) as caught:
        GatewayClient("http://gateway", key)
    assert caught.value.code == "invalid_key"
    assert key not in str(caught.value.document())


@pytest.mark.parametrize(
    ("text", "span"),
    [("90d", timedelta(days=90)), ("12h", timedelta(hours=12)), ("30m", timedelta(minutes=30)), ("never", None)],
)
def test_parses_key_lifetimes(text: str, span: timedelta | None) -> None:
    assert lifetime(text) == span


@pytest.mark.parametrize("text", ["", "0d", "90", "1w", "100000d"])
def test_rejects_invalid_lifetimes(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        lifetime(text)


def test_the_key_list_shows_each_status() -> None:
    pepper, now = Pepper(PEPPER), NOW
    fact, _ = created(pepper, name="[b]ci", tenant="acme", scopes=SCOPES, created_at=NOW, expires_at=NOW)
    fresh = fact.model_copy(update={"expires_at": None})
    listing = KeyListing(KeyBook(), frozenset())
    assert listing.status(HeldKey.of(fact), None, now) == "expired"
    assert listing.status(HeldKey.of(fresh), pepper.id, now) == "good"
    assert listing.status(HeldKey.of(fresh), "00000000", now) == "other pepper"
    assert KeyListing(KeyBook(), frozenset([fact.key_id])).status(HeldKey.of(fresh), pepper.id, now) == "not signed"
    listing.book.revoked[fact.key_id] = NOW
    assert listing.status(HeldKey.of(fresh), pepper.id, now) == "revoked"
    row = {**fresh.model_dump(mode="json"), "status": "revoked"}
    written = io.StringIO()
    Console(file=written, width=200).print(keys_table([row]))
    text = written.getvalue()
    assert all(cell in text for cell in (fact.key_id, "[b]ci", "acme", "submit, read, admin", "never", "revoked"))
