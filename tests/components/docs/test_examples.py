"""The examples parse, and the Python client resumes a broken stream without lost or repeated events."""

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import httpx
import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
PATH = "/deliberations/x1"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CLIENT = example("python_client")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(_: float) -> None: ...

    monkeypatch.setattr(CLIENT, "time", SimpleNamespace(sleep=at_once))


def frame(sequence: int, kind: str, **fields: object) -> bytes:
    event = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"id: e-{sequence}\nevent: {kind}\ndata: {event}\n\n".encode()


def delta(sequence: int, offset: int, text: str, attempt: int = 1) -> bytes:
    return frame(sequence, "call.delta", call_id="s1-dev-001", attempt=attempt, offset=offset, text=text)


class Breaking(httpx.SyncByteStream):
    """A body in given pieces that breaks off unless it is complete."""

    def __init__(self, *pieces: bytes, whole: bool = False) -> None:
        self._pieces = pieces
        self._whole = whole

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        if not self._whole:
            raise httpx.ReadError("broken")


def gateway(*answers: httpx.Response) -> tuple[httpx.Client, list[httpx.Request]]:
    """A client of a gateway that gives these responses in order, and the recorded requests."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return answers[len(asked) - 1]

    return httpx.Client(transport=httpx.MockTransport(answer), base_url="http://gateway"), asked


def stream(*pieces: bytes, whole: bool = False) -> httpx.Response:
    return httpx.Response(200, stream=Breaking(*pieces, whole=whole))


END = frame(9, "deliberation.completed")


def test_resumes_a_broken_stream_after_the_last_event() -> None:
    first, second = frame(1, "deliberation.accepted"), frame(2, "stage.closed")
    client, asked = gateway(stream(first, second[:20]), stream(second, END, whole=True))
    assert [event["type"] for event in CLIENT.events(client, PATH)] == [
        "deliberation.accepted",
        "stage.closed",
        "deliberation.completed",
    ]
    assert asked[0].url.params["after"] == "0" and "Last-Event-ID" not in asked[0].headers
    assert asked[1].headers["Last-Event-ID"] == "e-1" and "after" not in asked[1].url.params


def test_handles_frames_that_only_move_the_cursor_or_ask_to_reconnect() -> None:
    goodbye = b'retry: 1500\nevent: stream.reconnect\ndata: {"type":"stream.reconnect"}\n\n'
    client, asked = gateway(stream(b":\n\nid: e-7\n\n", goodbye, whole=True), stream(END, whole=True))
    kinds = [event["type"] for event in CLIENT.events(client, PATH)]
    assert kinds == ["stream.reconnect", "deliberation.completed"]
    assert asked[1].headers["Last-Event-ID"] == "e-7"


def test_a_cursor_at_the_end_ends_the_client() -> None:
    client, _ = gateway(stream(frame(8, "stage.closed")), httpx.Response(204))
    assert [event["type"] for event in CLIENT.events(client, PATH)] == ["stage.closed"]


def test_retries_an_unready_gateway_and_not_a_refusal() -> None:
    client, _ = gateway(httpx.Response(503), stream(END, whole=True))
    assert len(list(CLIENT.events(client, PATH))) == 1
    client, asked = gateway(httpx.Response(404))
    with pytest.raises(httpx.HTTPStatusError):
        list(CLIENT.events(client, PATH))
    assert len(asked) == 1


def test_places_pieces_of_text_by_offset(capsys: pytest.CaptureFixture[str]) -> None:
    """Covers a repeated piece, a U+2028 inside a text, and a new attempt."""
    client, _ = gateway(
        stream(delta(1, 0, "bl\u2028u"), delta(2, 4, "e")),
        stream(delta(2, 4, "e"), delta(3, 0, "re", attempt=2), delta(4, 2, "d", attempt=2), END, whole=True),
    )
    texts = CLIENT.watch(client, PATH)
    assert texts == {("s1-dev-001", 1): "bl\u2028ue", ("s1-dev-001", 2): "red"}
    assert capsys.readouterr().out == "completed\n"


def test_retries_an_uncertain_request_with_the_same_key() -> None:
    busy = httpx.Response(429, headers={"Retry-After": "3"})
    client, asked = gateway(busy, httpx.Response(202, headers={"Location": PATH}))
    assert CLIENT.submit(client, {"task": "t"}) == PATH
    assert asked[0].headers["Idempotency-Key"] == asked[1].headers["Idempotency-Key"]
    client, asked = gateway(httpx.Response(422))
    with pytest.raises(httpx.HTTPStatusError):
        CLIENT.submit(client, {"task": ""})
    assert len(asked) == 1


def test_the_shell_script_parses() -> None:
    subprocess.run(["sh", "-n", EXAMPLES / "curl.sh"], check=True)
    assert (EXAMPLES / "curl.sh").stat().st_mode & 0o111


def test_the_pages_script_parses(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: nothing here can parse JavaScript")
    scripts = re.findall(r"<script>(.*?)</script>", (EXAMPLES / "browser.html").read_text(), re.DOTALL)
    assert len(scripts) == 1
    (tmp_path / "page.js").write_text(scripts[0])
    done = subprocess.run([node, "--check", tmp_path / "page.js"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@asynccontextmanager
async def browser_at(answer: Callable[[httpx.Request], httpx.Response], *key: str) -> AsyncGenerator[httpx.AsyncClient]:
    proxy = example("browser").proxy("http://gateway", *key, transport=httpx.MockTransport(answer))
    transport = httpx.ASGITransport(app=proxy)
    async with (
        proxy.router.lifespan_context(proxy),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8090") as browser,
    ):
        yield browser


async def test_the_proxy_forwards_events_at_once_and_serves_the_page() -> None:
    served: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        served.append(request)
        return httpx.Response(200, content=END, headers={"Content-Type": "text/event-stream", "Server": "secret"})

    async with browser_at(answer) as browser:
        assert "EventSource" in (await browser.get("/")).text
        response = await browser.get(f"{PATH}/events?after=0", headers={"Last-Event-ID": "e-1", "Cookie": "mine"})
        assert (await browser.get("/readyz")).status_code == 404
    assert response.content == END and response.headers["Content-Type"] == "text/event-stream"
    assert "Server" not in response.headers
    (request,) = served
    assert str(request.url) == f"http://gateway{PATH}/events?after=0"
    assert request.headers["Last-Event-ID"] == "e-1" and "Cookie" not in request.headers


@pytest.mark.parametrize(
    ("headers", "known"),
    [
        ({}, True),
        ({"Origin": "http://127.0.0.1:8090", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "http://127.0.0.1:9000"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Host": "evil.example:8090"}, False),
    ],
)
async def test_the_proxy_adds_its_key_to_requests_of_its_own_page_alone(headers: dict[str, str], known: bool) -> None:
    served: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        served.append(request)
        return httpx.Response(202)

    async with browser_at(answer, "dlb_k") as browser:
        await browser.post("/deliberations", json={}, headers=headers)
    assert served[0].headers.get("Authorization") == ("Bearer dlb_k" if known else None)
