import io
from collections.abc import AsyncIterator
from contextlib import aclosing

import httpx
import pytest
from rich.console import Console
from starlette.responses import JSONResponse, PlainTextResponse, Response

from app.api.schemas import Deliberation
from app.cli import client
from app.cli.client import GatewayClient, GatewayRefused, parsed
from app.cli.exits import CommandError, Exit
from app.cli.watch import show_lanes
from app.client.sse import Frame
from tests.components.cli.council_run import ID, StubGateway, problem

URL = "http://gateway"


@pytest.fixture
async def gateway(stub: StubGateway) -> AsyncIterator[GatewayClient]:
    async with GatewayClient(URL, transport=httpx.ASGITransport(stub.app)) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_BACKOFF_FIRST_S", 0.001)
    monkeypatch.setattr(client, "_BACKOFF_MAX_S", 0.004)


async def followed(gateway: GatewayClient, **options: object) -> list[Frame]:
    async with aclosing(gateway.follow(ID, **options)) as frames:  # pyright: ignore[reportArgumentType]
        return [frame async for frame in frames]


@pytest.mark.parametrize(
    ("answer", "exit_code", "code", "remedy"),
    [
        (problem("not_found", 404), Exit.REFUSED, "not_found", "deliberate list"),
        (problem("queue_full", 429), Exit.REFUSED, "queue_full", "in 7 s"),
        (problem("journal_unavailable", 503), Exit.UNREACHABLE, "journal_unavailable", "NATS"),
        (problem("internal_error", 500), Exit.UNREACHABLE, "internal_error", None),
        (PlainTextResponse("<html>", 502), Exit.UNREACHABLE, "http_502", None),
        (JSONResponse(["odd"], 404), Exit.REFUSED, "http_404", None),
        (JSONResponse(["odd"]), Exit.UNREACHABLE, "not_a_gateway", "--url"),
    ],
)
async def test_a_refusal_of_the_gateway_has_a_remedy(
    stub: StubGateway, gateway: GatewayClient, answer: Response, exit_code: Exit, code: str, remedy: str | None
) -> None:
    stub.answers = [answer]
    with pytest.raises(CommandError) as raised:
        await gateway.deliberation(ID)
    assert (raised.value.exit_code, raised.value.code) == (exit_code, code)
    assert (remedy or "") in (raised.value.remedy or "")


async def test_retries_an_uncertain_submission_with_the_same_key(stub: StubGateway, gateway: GatewayClient) -> None:
    stub.answers = [problem("journal_unavailable", 503), problem("not_ready", 503)]
    resource = await gateway.submit({"task": "x"}, "the-key")
    assert resource["id"] == ID
    assert [headers["idempotency-key"] for _, _, headers in stub.requests] == ["the-key"] * 3
    assert stub.bodies == [{"task": "x"}] * 3


async def test_does_not_retry_a_refused_submission(stub: StubGateway, gateway: GatewayClient) -> None:
    stub.answers = [problem("queue_full", 429)]
    with pytest.raises(GatewayRefused):
        await gateway.submit({"task": "x"}, "key")
    assert len(stub.requests) == 1


def test_a_resource_of_another_version_is_an_error(stub: StubGateway) -> None:
    resource = stub.council.resource
    assert parsed(Deliberation, resource | {"newer": 1}).id == ID
    del resource["status"]
    with pytest.raises(CommandError) as raised:
        parsed(Deliberation, resource)
    assert raised.value.code == "not_understood"
    assert "status" in raised.value.detail


async def test_a_terminal_shows_the_lanes_up_to_the_last_event(gateway: GatewayClient) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100, height=30, color_system=None)
    await show_lanes(gateway, ID, console)
    _, ended, last_frame = written.getvalue().rpartition("council · completed")
    assert ended and "dev-003 DEV" in last_frame
