import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest

from app.log.journal import JetStreamJournal
from tests.attack.gateways import Gateway
from tests.components.webhooks.rebinding import ANSWERS, PUBLIC, attempts_of
from tests.components.webhooks.receiving import Receiver, receiving
from tests.components.webhooks.sending import SenderProcess, declared, sending, submit
from tests.conftest import NatsServer

SETTINGS = {"WEBHOOKS": "true", "WEBHOOK_PORTS": "443,8443,80", "WEBHOOK_HOSTS": ""}
# Spellings of 127.0.0.1 and its neighbours that some parser or resolver understands.
LOOPBACK = [
    "127.0.0.1", "127.1", "127.0.1", "0", "0.0.0.0", "2130706433", "017700000001", "0x7f000001", "0x7F.1", "0177.0.0.1",
    "0177.0x0.0.1", "127.000.000.001", "127.0.0.1.", "127.127.127.127", "localhost", "LOCALHOST", "localhost.",
    "a.localhost", "[::1]", "[0:0:0:0:0:0:0:1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]",
    "[0:0:0:0:0:ffff:127.0.0.1]", "[64:ff9b::127.0.0.1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[fe80::1%25lo]",
    "[::1%25lo]", "[2001:0:7f00:1::]", "①②⑦.⓪.⓪.①", "１２７.0.0.1", "127。0。0。1", "ⓛocalhost", "loca\u00adlhost",
    "169.254.169.254", "[fd00:ec2::254]", "168.63.129.16", "100.100.100.200", "10.0.0.1", "192.168.0.1", "172.16.0.1",
    "metadata.google.internal", "printer.local", "%31%32%37.0.0.1", "127.0.0.1%00.example", "127.0.0.1%23.example",
]  # fmt: skip
# `{}` is the address of the receiver.
DISGUISED = [
    "http://{}/", "https://{}/", "https://hooks.example@{}/", "https://user:pass@{}/", "https://hooks.example:443@{}/",
    "https://{}#@hooks.example/", "https://{}\\@hooks.example/", "https://hooks.example\\@{}/", "https://{}?@hooks.example",
    "https:{}", "https:/{}", "https:///{}/", "https:\\\\{}\\", "//{}/", "hTTp://{}/", "ftp://{}/", "file://{}/etc/passwd",
    "gopher://{}/_GET", "dict://{}/", "jar:https://{}/!/", "unix://{}/", "http+unix://{}/", "data:text/plain,{}",
    "javascript:fetch('//{}')", " https://{}/", "https://{}/ ", "https://{}/\r\nHost: hooks.example", "https://\t{}/",
    "https://hooks.example\n@{}/", "https://[{}]/", "https://{}:443/", "https://\u202e{}/",
]  # fmt: skip


def urls(receiver: Receiver) -> list[str]:
    hosts = [f"https://{host}{port}/hook" for host in LOOPBACK for port in (f":{receiver.port}", ":443", "")]
    return hosts + [each.format(f"127.0.0.1:{receiver.port}") for each in DISGUISED]


async def test_no_spelling_of_an_internal_address_is_accepted(attacked: Gateway) -> None:
    async with receiving() as receiver:
        answers: dict[str, Any] = {}
        for url in urls(receiver):
            body = {"task": "t", "webhook": {"url": url}}
            answers[url] = await attacked.client.post("/deliberations", json=body)
        assert {url for url, answer in answers.items() if answer.status_code != 422} == set()
        assert {error["pointer"] for each in answers.values() for error in each.json()["errors"]} == {"/webhook/url"}
        assert receiver.open_max == 0


async def test_no_other_field_takes_a_url(attacked: Gateway) -> None:
    """A new field that names a host must come with an attack here."""
    document = (await attacked.client.get("/openapi.json")).json()
    wanted = {"url", "uri", "href", "host", "callback", "endpoint", "base_url", "image_url", "server", "address"}
    requests = json.dumps([operation for item in document["paths"].values() for operation in item.values()])
    named = {
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        for field in schema.get("properties", {})
        if field.lower() in wanted and f"#/components/schemas/{name}" in requests + json.dumps(document["components"])
        and name.endswith("Request")
    }  # fmt: skip
    assert named == {"WebhookRequest.url"}


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
async def test_a_part_of_a_chat_that_names_a_url_is_refused_unread(attacked: Gateway, kind: str) -> None:
    async with receiving() as receiver:
        part = {"type": kind, kind: {"url": receiver.url(), "file_data": receiver.url(), "data": receiver.url()}}
        body = {"model": "council", "messages": [{"role": "user", "content": [part]}]}
        answer = await attacked.client.post("/v1/chat/completions", json=body)
        assert 400 <= answer.status_code < 500
        assert receiver.open_max == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-Host": "evil.example"},
        {"Forwarded": "host=evil.example;proto=https"},
        {"X-Original-URL": "http://evil.example/"},
        {"X-Forwarded-Proto": "gopher"},
    ],
    ids=["x-forwarded-host", "forwarded", "x-original-url", "x-forwarded-proto"],
)
async def test_no_header_puts_another_host_into_links(attacked: Gateway, headers: dict[str, str]) -> None:
    # The queue still holds work of earlier attacks. The gateway refuses a deadline that is shorter than its wait.
    body = {"task": "t", "num_agents": 1, "strategy": "single", "constraints": {"timeout_seconds": 3_600}}
    answer = await attacked.client.post("/deliberations", json=body, headers=headers)
    assert answer.status_code == 202
    assert "evil.example" not in answer.text + repr(answer.headers.raw)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_into_the_network_is_not_followed(own_sender: JetStreamJournal, status: int) -> None:
    async with receiving() as inside, receiving() as outside:
        head = f"HTTP/1.1 {status} Moved\r\nLocation: {inside.url()}\r\nContent-Length: 0\r\n\r\n"
        outside.script["/hook"].append(head.encode())
        story = await submit(own_sender, outside.url())
        await story.end()
        await outside.until(1)
        (delivery,) = await story.finished()
        assert attempts_of(delivery)[0].status_code == status
        assert inside.open_max == 0


@pytest.fixture(scope="module")
async def own_sender(nats_server: NatsServer, jetstream_journal: JetStreamJournal) -> AsyncIterator[JetStreamJournal]:
    process = SenderProcess(nats_server)
    await process.start()
    yield jetstream_journal
    process.stop()


class Flapping:
    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = answers
        self.given: list[Sequence[str]] = []
        self.connected: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.given.append(self.answers[len(self.given) % len(self.answers)])
        return self.given[-1]

    async def connect(self, addr_infos: Sequence[Any], **_: object) -> socket.socket:
        self.connected += [str(address[0]) for *_, address in addr_infos]
        raise OSError("no test connects to the Internet")


@pytest.mark.parametrize(
    "answers",
    [
        [[PUBLIC], ["127.0.0.1"]],
        [["127.0.0.1"], [PUBLIC]],
        [[PUBLIC], ["::ffff:127.0.0.1"], ["fd00::1"], ["0.0.0.0"]],
        [[PUBLIC, "127.0.0.1"], [PUBLIC]],
        [["127.0.0.1", PUBLIC]],
    ],
    ids=["then loopback", "first loopback", "then others", "both at once", "loopback first"],
)
async def test_a_name_server_that_changes_its_mind_gains_nothing(
    own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, answers: list[list[str]]
) -> None:
    """The address that was checked is the one that is connected to, and each attempt asks and checks anew."""
    names = Flapping(*answers)
    monkeypatch.setattr(aiohttp.connector.aiohappyeyeballs, "start_connection", names.connect)
    async with receiving() as receiver, declared(own_nats_server) as journal:
        settings = {"webhook_hosts": "", "webhook_ports": str(receiver.port)}
        async with sending(own_nats_server, lookup=names, **settings):
            story = await submit(journal, f"https://hooks.example:{receiver.port}/hook")
            await story.end()
            (delivery,) = await story.finished(timeout_s=30)
        attempts = attempts_of(delivery)
        assert receiver.open_max == 0
    assert len(names.given) == len(attempts) == 4, "one question for each attempt"
    assert set(names.connected) <= {PUBLIC}
    codes = [attempt.problem and attempt.problem.code for attempt in attempts]
    permitted = [given == [PUBLIC] for given in names.given]
    assert codes == ["connection_failed" if public else "address_refused" for public in permitted]
    assert len(names.connected) == sum(permitted)


@pytest.fixture(scope="module")
def rebound() -> dict[str, dict[str, Any]]:
    command = ["unshare", "-rmn", sys.executable, "-m", "tests.components.webhooks.rebinding"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, f"a user, mount and network namespace is needed (unshare(1)): {ran.stderr}"
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ANSWERS)
def test_a_real_name_server_that_changes_its_mind_gains_nothing(rebound: dict[str, dict[str, Any]], name: str) -> None:
    """The sender asks by the system's resolver once an attempt, and connects to the address that it checked."""
    answered, connected, attempts = (rebound[name][key] for key in ("answered", "connected", "attempts"))
    assert answered == ANSWERS[name] * 2 and len(attempts) == 4, "one question for each attempt"
    ends = {(PUBLIC,): "connection_failed", (): "name_unresolved"}
    assert attempts == [ends.get(tuple(addresses), "address_refused") for addresses in answered]
    assert connected == [PUBLIC] * answered.count([PUBLIC])


async def test_the_receiver_would_have_been_reached(own_sender: JetStreamJournal) -> None:
    """The attacks above fail by the rules, and not because the receiver is deaf."""
    async with receiving() as receiver:
        story = await submit(own_sender, receiver.url())
        await story.end()
        async with asyncio.timeout(20):
            await receiver.until(1)
