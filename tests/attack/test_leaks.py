import asyncio
import json
import os
import re
import secrets
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.keys import looks_like_key
from app.log.journal import JetStreamJournal
from app.webhooks.signatures import tenant_secret
from tests.attack.gateways import Gateway, send
from tests.components.access.keyed import bearer, make_key
from tests.components.webhooks.receiving import receiving
from tests.e2e.conftest import DELIBERATE, ONE_ROLE, start_up, stop_up

ROOT = Path(__file__).resolve().parents[2]
PEPPER = f"pepper-of-this-run-{secrets.token_hex(16)}"
SETTINGS = {"KEY_PEPPER": PEPPER, "LOG_LEVEL": "debug", "WEBHOOKS": "true"}
MASTER = f"webhooks-of-this-run-{secrets.token_hex(16)}"
HOSTILE = [
    'a\n{"event": "forged", "level": "info"}',
    'a\r\n{"event": "forged"}\r\n',
    '", "event": "forged", "x": "',
    "\x1b[2J\x1b]0;forged\x07\x1b]52;c;Zm9yZ2Vk\x07",
    "\u2028forged\u2029\x85\x0b\x0c",
    "\u202eforged\u2066\u200b\ufeff",
    "\x00forged\x7f",
    "${jndi:ldap://127.0.0.1/forged}%n%s{0}{event}",
    "\ud83d",
]
HEADERS = ("X-Request-Id", "Idempotency-Key", "traceparent", "User-Agent", "X-Forwarded-For", "Last-Event-ID")
READ = ("", "/deliveries", "/events?after=0")
FIGURES = ("/metrics", "/status", "/stats", "/readyz", "/login")
# A line of a log may contain none of these: they end lines or control terminals.
CONTROLS = re.compile(rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]")


@pytest.fixture(scope="module")
async def key(attacked: Gateway, jetstream_journal: JetStreamJournal) -> str:
    made = await make_key(jetstream_journal, pepper=PEPPER)  # pyright: ignore[reportArgumentType]
    async with asyncio.timeout(10):
        while (await attacked.client.get("/roles", headers=bearer(made))).status_code != 200:
            await asyncio.sleep(0.05)
    return made


def bodies(text: str) -> Iterator[dict[str, Any]]:
    url = f"https://hooks.example/{text}"
    yield {"task": text}
    yield {"task": "t", "metadata": {"a": text}}
    yield {"task": "t", "metadata": {text: "a"}}
    yield {"task": "t", "constraints": {"requirements": [text], "metadata": {"b": text}}}
    yield {"task": "t", "constraints": {"rubric": [{"id": text, "description": text}]}}
    yield {"task": "t", "role": text, "strategy": text, text: text}
    yield {"task": "t", "agents": [{"role": text, "model": text}]}
    yield {"task": "t", "parameters": {text: text}}
    yield {"task": "t", "webhook": {"url": url, "metadata": {"c": text}}}


async def send_hostile_requests(attacked: Gateway, key: str) -> None:
    for text in HOSTILE:
        for body in bodies(text):
            content = json.dumps(body).encode()
            headers = {**bearer(key), "Content-Type": "application/json"}
            assert (await attacked.client.post("/deliberations", content=content, headers=headers)).status_code < 500
        quoted = "".join(f"%{byte:02x}" for byte in text.encode("utf-8", "surrogatepass"))
        raw = text.encode("utf-8", "surrogatepass").replace(b"\n", b"").replace(b"\r", b"")
        for path in (f"/{quoted}", f"/deliberations/{quoted}", f"/deliberations?{quoted}={quoted}", f"/roles/{quoted}"):
            assert (await attacked.client.get(path, headers=bearer(key))).status_code < 500
        for name in HEADERS:
            head = f"GET /deliberations HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n{name}: ".encode()
            answer = await send(attacked.port, [head + raw + b"\r\nConnection: close\r\n\r\n"])
            assert answer.statuses and answer.statuses[0] < 500
            assert b"forged" not in answer.content.partition(b"\r\n\r\n")[0], "no header repeats it"
    await send(attacked.port, [b"\x16\x03\x01\x00forged\r\n\r\n", b"GET \x1b[2Jforged HTTP/1.1\r\n\r\n"])


async def publish_hostile_records(attacked: Gateway, jetstream_journal: JetStreamJournal) -> None:
    for number, text in enumerate(HOSTILE):
        data = text.encode("utf-8", "surrogatepass")
        await jetstream_journal.client.publish(f"deliberations.default.leak{number}.accepted", data)
        await jetstream_journal.client.publish(f"keys.leak{number}.created", data)
    async with asyncio.timeout(20):
        while b"leak8" not in attacked.output.read_bytes():
            await asyncio.sleep(0.05)


async def test_no_request_or_record_forges_a_line_of_the_log(
    attacked: Gateway, key: str, jetstream_journal: JetStreamJournal, record_property: Callable[[str, object], None]
) -> None:
    await send_hostile_requests(attacked, key)
    await publish_hostile_records(attacked, jetstream_journal)
    lines = attacked.output.read_bytes().splitlines(keepends=True)
    record_property("lines of the log", len(lines))
    assert len(lines) > 100
    for line in lines:
        event = json.loads(line)
        assert isinstance(event, dict) and event["event"] not in ("forged", ""), line
        assert {"event", "level", "timestamp"} <= event.keys() and not CONTROLS.search(line), line
        assert b"forged" not in line.replace(b"leak", b""), line


def haystacks(places: Iterable[Path], own: Iterable[Path]) -> Iterator[tuple[Path, bytes]]:
    kept = {path.resolve() for path in own}
    for place in places:
        for path in (place, *place.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.resolve() not in kept:
                yield path, path.read_bytes()


def commands() -> Iterator[tuple[Path, bytes]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path, path.read_bytes()
        except OSError:
            continue


def deliberate(nats_url: str, *arguments: str) -> str:
    environment = {**os.environ, "NATS_URL": nats_url}
    command = [str(DELIBERATE), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def used(client: httpx.AsyncClient, key: str, hook: str) -> tuple[str, list[bytes]]:
    login = await client.post("/login", json={"key": key})
    token = login.cookies["deliberate"]
    client.cookies.clear()
    answers = [login.content]
    # A secret in the wrong place is refused, and repeated nowhere.
    wrong: list[dict[str, Any]] = [
        {"url": f"/deliberations?api_key={key}"},
        {"url": f"/deliberations/{key}", "headers": bearer(key)},
        {"url": "/roles", "headers": bearer(f"{key[:-1]}_")},
        {"url": "/roles", "headers": {"Cookie": f"deliberate={token}x"}},
        {"url": "/roles", "headers": {**bearer(key), "X-Request-Id": key}},
        {"url": "/roles", "headers": {"Authorization": f"Basic {key}"}},
    ]
    answers += [(await client.get(**request)).content for request in wrong]
    body = {"task": "Name a colour.", "strategy": "single", "num_agents": 1, "webhook": {"url": hook}}
    accepted = await client.post("/deliberations", json=body, headers={**bearer(key), "Prefer": "wait=60"})
    assert accepted.status_code in (200, 202), accepted.text
    path = f"/deliberations/{accepted.json()['id']}"
    for url in (*(f"{path}{tail}" for tail in READ), *FIGURES):
        headers = {**bearer(key), "Accept": "application/json, text/plain"}
        answers.append((await client.get(url, headers=headers)).content)
    return token, answers


@pytest.mark.long
@pytest.mark.e2e
async def test_no_secret_of_a_stack_stands_in_what_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    monkeypatch.setenv("KEY_PEPPER", PEPPER)
    monkeypatch.setenv("WEBHOOK_SECRETS", MASTER)
    monkeypatch.setenv("WEBHOOK_HOSTS", "127.0.0.1")
    monkeypatch.setenv("LOG_LEVEL", "debug")
    data_dir = tmp_path / "up"
    async with receiving() as receiver:
        process, ready = await asyncio.to_thread(start_up, data_dir, "--roles", str(ONE_ROLE))
        try:
            users = data_dir / "nats_urls"
            nats_url = f"file://{users / 'keys'}" if users.exists() else ready["nats_url"]
            options = ["--tenant", "acme", *(f"--scope={scope}" for scope in ("submit", "read", "admin"))]
            key = await asyncio.to_thread(deliberate, nats_url, "keys", "create", "canary", *options)
            async with httpx.AsyncClient(base_url=ready["url"], timeout=90) as client:
                async with asyncio.timeout(30):
                    while (await client.get("/roles", headers=bearer(key))).status_code != 200:
                        await asyncio.sleep(0.1)
                token, answers = await used(client, key, receiver.url())
            ray_dir = Path(json.loads((data_dir / "stack.json").read_text())["ray_dir"])
            await receiver.until(1)
            running = list(commands())
        finally:
            code = await asyncio.to_thread(stop_up, process)
    assert code == 0
    own = [data_dir / name for name in ("ray_token", "webhook_secret", "nats.conf", "nats-server.conf")]
    own += list(users.glob("*"))
    passwords = re.findall(r":(p[0-9a-f]{48})@", "".join(path.read_text() for path in users.glob("*")))
    canaries = [PEPPER, MASTER, key, key.rpartition("_")[2], token, tenant_secret(MASTER, "acme"), *passwords]
    canaries += [path.read_text().strip() for path in own[:2] if path.exists()]
    written = list(haystacks([data_dir, ray_dir], own))
    read = [(Path(f"answer {number}"), content) for number, content in enumerate(answers)]
    record_property("secrets", len(canaries))
    record_property("files and answers searched", len(written) + len(read) + len(running))
    assert len(written) > 10 and len(canaries) >= 7
    found = {
        (str(path), canary[:12])
        for path, content in (*written, *read, *running)
        for canary in canaries
        if canary.encode() in content
    }
    assert found == set()


def test_the_tracked_tree_holds_no_secret() -> None:
    """Private keys, keys of this product, and the forms of others' tokens. Fixtures are made while tests run."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    forms = re.compile(
        rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\n|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}\b"
        rb"|\bxox[abp]-[0-9]{10,}"
        rb"|\bsk-[A-Za-z0-9]{40,}|\bglpat-[\w-]{20}\b|\bnpm_[A-Za-z0-9]{36}\b|\bpypi-AgEI[\w-]{50,}"
        rb"|\beyJ[\w-]{20,}\.eyJ[\w-]{20,}|\bwhsec_[A-Za-z0-9+/]{40,}|\bdlb_[a-z0-9]{12}_[a-z0-9]{52}\b"
    )
    paths = [ROOT / name.decode() for name in listed.split(b"\0") if name]
    assert len(paths) > 300
    found = {str(path): forms.findall(path.read_bytes()) for path in paths if path.is_file() and not path.is_symlink()}
    # Examples in tests repeat one character, and no drawn key does.
    drawn = {path: [each for each in hits if len(set(each)) > 16] for path, hits in found.items()}
    assert {path: hits for path, hits in drawn.items() if hits} == {}
    assert looks_like_key(f"dlb_{'a' * 12}_{'b' * 52}")
